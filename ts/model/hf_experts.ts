import { show } from '../base/text';
import { TroupeError } from '../errors';
import type { NativeModelConfig, NativeMoeConfig } from '../native/bridge';
import type { FamilyConfig } from './hf_schema';

// What config.json says of a decoder's experts, and of the layers that have them.

type Experts = Pick<NativeModelConfig, 'moe' | 'moeLayers'>;

/** What Mixtral and the Qwen models have in common. */
export const SOFTMAX_EXPERTS = {
  sharedIntermediateSize: 0,
  sharedGate: true,
  score: 'softmax',
  wideLogits: false,
  latentSize: 0,
  correctionBias: false,
  groups: 1,
  topGroups: 1,
  groupBest: 1,
  routedScale: 1,
  normalizerEps: 0,
  biases: false,
  besideMlp: false,
} as const;

type Mixtral = Pick<
  FamilyConfig<'mixtral'>,
  'num_local_experts' | 'num_experts_per_tok' | 'intermediate_size' | 'num_hidden_layers'
>;

/** Mixtral's: on all layers; a softmax over the chosen ones is that over all of them, divided by the sum of the chosen ones. */
export function mixtralExperts(c: Mixtral): { moe: NativeMoeConfig; moeLayers: boolean[] } {
  return {
    moe: {
      ...SOFTMAX_EXPERTS,
      numExperts: c.num_local_experts,
      topK: c.num_experts_per_tok,
      intermediateSize: c.intermediate_size,
      normalizeTopK: true,
    },
    moeLayers: new Array(c.num_hidden_layers).fill(true),
  };
}

type QwenMoe = Pick<
  FamilyConfig<'qwen3_moe'>,
  | 'mlp_only_layers'
  | 'num_experts'
  | 'decoder_sparse_step'
  | 'num_hidden_layers'
  | 'num_experts_per_tok'
  | 'moe_intermediate_size'
  | 'norm_topk_prob'
>;

export function qwenExperts(c: QwenMoe, sharedIntermediateSize: number): Experts {
  const sparse = (layer: number): boolean =>
    !c.mlp_only_layers.includes(layer) && c.num_experts > 0 && (layer + 1) % c.decoder_sparse_step === 0;
  const moeLayers = Array.from({ length: c.num_hidden_layers }, (_, i) => sparse(i));
  if (!moeLayers.includes(true)) return { moe: null, moeLayers: [] };
  return {
    moe: {
      ...SOFTMAX_EXPERTS,
      numExperts: c.num_experts,
      topK: c.num_experts_per_tok,
      intermediateSize: c.moe_intermediate_size,
      normalizeTopK: c.norm_topk_prob,
      sharedIntermediateSize,
    },
    moeLayers,
  };
}

/** How DeepSeek's routers score experts and groups of them. */
type DeepseekRouter = Pick<NativeMoeConfig, 'score' | 'correctionBias' | 'groupBest'>;
const SIGMOID_ROUTER: DeepseekRouter = { score: 'sigmoid', correctionBias: true, groupBest: 2 };
/** DeepSeek-V2's. */
export const GREEDY_ROUTER: DeepseekRouter = { score: 'softmax', correctionBias: false, groupBest: 1 };

type DeepseekExperts = Pick<
  FamilyConfig<'deepseek_v3'>,
  | 'n_group'
  | 'topk_group'
  | 'n_routed_experts'
  | 'num_experts_per_tok'
  | 'moe_intermediate_size'
  | 'norm_topk_prob'
  | 'n_shared_experts'
  | 'routed_scaling_factor'
>;

/** DeepSeek's, beside a shared one without a gate; `router`: default DeepSeek-V3's. */
export function deepseekExperts(
  c: DeepseekExperts,
  moeLayers: boolean[],
  where: string,
  router = SIGMOID_ROUTER,
): Experts {
  const { n_group: groups, topk_group: topGroups, n_routed_experts: numExperts } = c;
  const size = numExperts / groups;
  if (!Number.isInteger(size) || (groups > 1 && size < router.groupBest))
    throw invalid(
      where,
      `n_group ${groups}: expected a divisor of the ${numExperts} experts that leaves ${router.groupBest} or more in a group`,
    );
  if (topGroups > groups || topGroups * size < c.num_experts_per_tok) {
    throw invalid(
      where,
      `topk_group ${topGroups}: expected at most n_group ${groups}, and groups of ${size} experts that have the ${c.num_experts_per_tok} of num_experts_per_tok`,
    );
  }
  if (!moeLayers.includes(true)) return { moe: null, moeLayers: [] };
  return {
    moe: {
      numExperts,
      topK: c.num_experts_per_tok,
      intermediateSize: c.moe_intermediate_size,
      normalizeTopK: c.norm_topk_prob,
      sharedIntermediateSize: c.moe_intermediate_size * c.n_shared_experts,
      sharedGate: false,
      ...router,
      wideLogits: true,
      latentSize: 0,
      groups,
      topGroups,
      routedScale: c.routed_scaling_factor,
      normalizerEps: 0,
      biases: false,
      besideMlp: false,
    },
    moeLayers,
  };
}

type Corrected = Pick<
  NativeMoeConfig,
  'score' | 'numExperts' | 'topK' | 'intermediateSize' | 'sharedIntermediateSize' | 'wideLogits'
> &
  Partial<Pick<NativeMoeConfig, 'routedScale'>>;

/** Chosen by their scores with a correction, and weighted by them without, divided by the sum of the chosen ones; the shared one has no gate. */
export function correctedExperts(moeLayers: boolean[], router: Corrected): Experts {
  if (!moeLayers.includes(true)) return { moe: null, moeLayers: [] };
  const moe = {
    ...SOFTMAX_EXPERTS,
    sharedGate: false,
    correctionBias: true,
    normalizeTopK: true,
    ...router,
  };
  return { moe, moeLayers };
}

/** Layers that mlp_layer_types says, or all but the first ones. @throws TroupeError INVALID_MODEL naming the key */
export function typedExperts(
  c: { num_hidden_layers: number; mlp_layer_types: string[] | null },
  dense: number,
  where: string,
): boolean[] {
  const { num_hidden_layers: layers, mlp_layer_types: types } = c;
  if (types === null) return Array.from({ length: layers }, (_, i) => i >= dense);
  if (types.length !== layers)
    throw invalid(where, `mlp_layer_types has ${types.length} entries but the model has ${layers} layers`);
  return types.map((type, i) => {
    if (type !== 'sparse' && type !== 'dense')
      throw invalid(where, `mlp_layer_types[${i}] ${show(type)} is not supported; supported: dense, sparse`);
    return type === 'sparse';
  });
}

/** All layers but the first ones. */
export const behindDense = (
  c: Pick<FamilyConfig<'deepseek_v3'>, 'num_hidden_layers' | 'first_k_dense_replace'>,
) => Array.from({ length: c.num_hidden_layers }, (_, i) => i >= c.first_k_dense_replace);

const invalid = (where: string, message: string): TroupeError =>
  new TroupeError('INVALID_MODEL', `[model] ${where}: ${message}`);
