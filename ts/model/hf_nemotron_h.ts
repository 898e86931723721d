// What config.json says of Nemotron-H and Nemotron 3: blocks of Mamba 2, of attention without positions, of MLPs
// and of experts, in an order that the file gives.
import { show } from '../base/text';
import type { NativeModelConfig } from '../native/bridge';
import { checkConvWidth } from './conv_width';
import { invalid, type Raw, rmsDecoder } from './hf_decoder';
import { deepseekExperts } from './hf_experts';
import { MOST_KEY_DIM } from './hf_gated_delta';
import type { FamilyConfig } from './hf_schema';

type Nemotron = FamilyConfig<'nemotron_h'>;
type Block = 'mamba' | 'attention' | 'mlp' | 'experts';

/** As hybrid_override_pattern writes them. */
const PATTERN: Readonly<Record<string, Block>> = { M: 'mamba', '*': 'attention', '-': 'mlp', E: 'experts' };
/** As layers_block_type does, also in the words of earlier versions. */
const TYPES: Readonly<Record<string, Block>> = {
  linear_attention: 'mamba',
  mamba: 'mamba',
  full_attention: 'attention',
  attention: 'attention',
  mlp: 'mlp',
  moe: 'experts',
};

/** A block that looks across rows, and the MLP or the experts behind it: one of our layers. */
interface Layer {
  mixer: 'mamba' | 'attention';
  mlp: 'mlp' | 'experts' | null;
}

/** As NemotronHForCausalLM of transformers. */
export function nemotronH(c: Nemotron, raw: Raw, where: string): NativeModelConfig {
  refuseOthers(c, raw, where);
  const layers = layersOf(blocksOf(c, where), where);
  const decoder = rmsDecoder(
    'nemotron_h',
    {
      ...c,
      num_hidden_layers: layers.length,
      hidden_act: c.mlp_hidden_act,
      rms_norm_eps: c.layer_norm_epsilon,
    },
    {}, // nothing turns
    where,
  );
  const moeLayers = layers.map(({ mlp }) => mlp === 'experts');
  const linearLayers = layers.map(({ mixer }) => mixer === 'mamba');
  const experts = deepseekExperts({ ...c, n_shared_experts: 1 }, moeLayers, where);
  return {
    ...decoder,
    gatedMlp: false,
    positions: 'none',
    ropeInvFreq: new Float64Array(0),
    ...experts,
    moe: experts.moe && {
      ...experts.moe,
      sharedIntermediateSize: c.moe_shared_expert_intermediate_size,
      latentSize: c.moe_latent_size ?? 0,
    },
    linear: linearLayers.includes(true)
      ? {
          rule: 'mamba2',
          keyHeads: c.n_groups,
          valueHeads: c.mamba_num_heads,
          keyDim: c.ssm_state_size,
          valueDim: c.mamba_head_dim,
          matrices: 'joined',
          convBias: c.use_conv_bias,
          convWidth: c.conv_kernel,
          leastStep: c.time_step_min,
          betaScale: 1,
          normEps: decoder.normEps,
        }
      : null,
    linearLayers: linearLayers.includes(true) ? linearLayers : [],
    bareLayers: layers.map(({ mlp }) => mlp === null),
  };
}

/** Of keys that change what a model computes, the values that are supported. */
const SUPPORTED: Readonly<Record<string, unknown>> = {
  use_bias: false,
  mamba_proj_bias: false,
  mlp_bias: false,
  attention_bias: false,
  tie_word_embeddings: false, // transformers has a head of its own, whatever this says
  mamba_hidden_act: 'silu',
  sliding_window: null,
};

function refuseOthers(c: Nemotron, raw: Raw, where: string): void {
  for (const [key, supported] of Object.entries(SUPPORTED)) {
    const value = raw[key] ?? supported;
    if (value !== supported)
      throw invalid(where, `${key} ${show(value)} is not supported; supported: ${show(supported)}`);
  }
  checkConvWidth('conv_kernel', c.conv_kernel, where);
  if (c.ssm_state_size > MOST_KEY_DIM)
    throw invalid(where, `ssm_state_size ${c.ssm_state_size}: expected at most ${MOST_KEY_DIM}`);
  if (c.mamba_num_heads % c.n_groups !== 0)
    throw invalid(where, `mamba_num_heads ${c.mamba_num_heads} does not divide by n_groups ${c.n_groups}`);
}

/** The blocks, which num_hidden_layers counts. */
function blocksOf(c: Nemotron, where: string): Block[] {
  const { layers_block_type: types, hybrid_override_pattern: pattern } = c;
  const written = types === null && pattern !== null;
  const known = written ? PATTERN : TYPES;
  const key = written ? 'hybrid_override_pattern' : 'layers_block_type';
  const names =
    types ?? (pattern !== null ? [...pattern] : ['linear_attention', 'moe', 'full_attention', 'mlp']);
  if (c.num_hidden_layers !== null && names.length !== c.num_hidden_layers)
    throw invalid(
      where,
      `${key} has ${names.length} entries but the model has ${c.num_hidden_layers} layers (num_hidden_layers)`,
    );
  return names.map((name, i) => {
    const block = Object.hasOwn(known, name) ? known[name] : undefined;
    if (block === undefined)
      throw invalid(
        where,
        `${key}[${i}] ${show(name)} is not supported; supported: ${Object.keys(known).join(', ')}`,
      );
    return block;
  });
}

function layersOf(blocks: readonly Block[], where: string): Layer[] {
  const layers: Layer[] = [];
  for (const [i, block] of blocks.entries()) {
    if (block === 'mamba' || block === 'attention') {
      layers.push({ mixer: block, mlp: null });
      continue;
    }
    const before = layers.at(-1);
    if (before === undefined || before.mlp !== null)
      throw invalid(
        where,
        `block ${i} is an MLP or has experts: expected a block of Mamba 2 or of attention before it, got ${before === undefined ? 'none' : 'another of these'}`,
      );
    before.mlp = block;
  }
  return layers;
}
