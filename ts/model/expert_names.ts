import type { NativeModelConfig, NativeMoeConfig } from '../native/bridge';
import type { Family } from './hf_schema';
import type { MappingBuilder } from './tensor_mapping';

// Names of a decoder's experts, with their router and the expert that all tokens share.

/** The tensors of some files, by name. */
export type StoredShapes = ReadonlyMap<string, { readonly shape: readonly number[] }>;

/** For each expert of a layer tensors of its own, or one of each kind for all of them: as the parameters are, or each transposed. */
export type ExpertFiles = 'apart' | 'in_one' | 'in_one_transposed';

/** Names of tensors in a block of experts. */
interface ExpertNames {
  block: string;
  router: string;
  /** Of the scores, for the choice alone. */
  correction: string;
  /** That all tokens go to; null: shared_expert with a gate, shared_experts without. */
  shared: string | null;
  /** Of an expert with tensors of its own: gate, up, down. */
  apart: readonly [gate: string, up: string, down: string];
  /** Of what all experts have in one: gate and up, down. */
  inOne: readonly [gateUp: string, down: string];
}

const NAMES: ExpertNames = {
  block: 'mlp',
  router: 'gate',
  correction: 'gate.e_score_correction_bias',
  shared: null,
  apart: ['gate_proj', 'up_proj', 'down_proj'],
  inOne: ['experts.gate_up_proj', 'experts.down_proj'],
};

const MIXTRAL = { block: 'block_sparse_moe', apart: ['w1', 'w3', 'w2'] } as const;

const GRANITE = {
  block: 'block_sparse_moe',
  router: 'router.layer',
  inOne: ['input_linear.weight', 'output_linear.weight'],
} as const;

/** What families call otherwise. */
const OTHER_NAMES: Readonly<Record<string, Partial<ExpertNames>>> = {
  mixtral: MIXTRAL,
  minimax_m2: { ...MIXTRAL, correction: 'e_score_correction_bias' },
  ernie4_5_moe: { correction: 'moe_statics.e_score_correction_bias' },
  hy_v3: { router: 'router.gate', correction: 'expert_bias', shared: 'shared_mlp' },
  exaone_moe: { correction: 'e_score_correction_bias' },
  afmoe: { router: 'router.gate', correction: 'expert_bias' },
  nemotron_h: { block: 'mixer' },
  lfm2_moe: { block: 'feed_forward', correction: 'expert_bias', apart: MIXTRAL.apart },
  granitemoe: GRANITE,
  granitemoeshared: GRANITE,
  granitemoehybrid: GRANITE,
} satisfies Partial<Record<Family, Partial<ExpertNames>>>;

const namesOf = (family: string): ExpertNames => ({ ...NAMES, ...OTHER_NAMES[family] });

const GRANITES: ReadonlySet<string> = new Set<Family>(['granitemoe', 'granitemoeshared', 'granitemoehybrid']);
const QWEN35: ReadonlySet<string> = new Set<Family>(['qwen3_5_moe_text', 'qwen3_5_moe']);

/**
 * How files have the experts of a layer, or of all layers like it, whose MLP is at `block`. Qwen3.5 is published with those of a layer in one tensor;
 * transformers writes its language model with tensors for each. Qwen3-VL is published with them in one, transposed, and transformers 5 writes
 * them as they are. One of the two tensors of a layer may be square, so that both are looked at.
 */
export function expertFiles(c: NativeModelConfig, block: string, stored: StoredShapes): ExpertFiles {
  if (GRANITES.has(c.family)) return 'in_one';
  if (QWEN35.has(c.family)) return stored.has(`${block}.experts.gate_up_proj`) ? 'in_one' : 'apart';
  if (c.family !== 'qwen3_vl_moe') return 'apart';
  const straight =
    c.moe !== null &&
    matrices(c, c.moe).every(([name, , rows, cols]) => {
      const shape = stored.get(`${block}.${name}`)?.shape;
      return shape?.length === 3 && shape[1] === rows && shape[2] === cols;
    });
  return straight ? 'in_one' : 'in_one_transposed';
}

/** Of each expert: name of the tensor for all of them, that of the parameter, rows and columns. */
function matrices({ family, hiddenSize }: NativeModelConfig, { intermediateSize }: NativeMoeConfig) {
  const [gateUp, down] = namesOf(family).inOne;
  return [
    [gateUp, 'in', 2 * intermediateSize, hiddenSize],
    [down, 'out', hiddenSize, intermediateSize],
  ] as const;
}

/** Of layer `hf` of the files, whose parameters are those of layer `own`. */
export function moeMapping(
  c: NativeModelConfig,
  moe: NativeMoeConfig,
  map: MappingBuilder,
  hf: string,
  own: string,
  files: ExpertFiles,
): void {
  const names = namesOf(c.family);
  const block = `${hf}.${names.block}`;
  const [gate, up, down] = names.apart;
  map.tensor(`${block}.${names.router}.weight`, `${own}.moe.router.weight`, moe.numExperts, c.hiddenSize);
  if (moe.correctionBias) {
    // ERNIE has one of a single group.
    const shape = c.family === 'ernie4_5_moe' ? [1, moe.numExperts] : [moe.numExperts];
    map.buffer(`${block}.${names.correction}`, `${own}.moe.router.correction_bias`, shape);
  }
  const shared = moe.sharedIntermediateSize;
  if (shared > 0 && GRANITES.has(c.family)) {
    graniteMlpMapping(c, map, hf, `${own}.moe.shared`, shared);
  } else if (shared > 0) {
    const expert = `${block}.${names.shared ?? (moe.sharedGate ? 'shared_expert' : 'shared_experts')}`;
    if (moe.sharedGate)
      map.tensor(`${block}.shared_expert_gate.weight`, `${own}.moe.shared.gate.weight`, 1, c.hiddenSize);
    const inputs = c.gatedMlp ? ['gate_proj', 'up_proj'] : ['up_proj'];
    const slices = inputs.map((name) => ({ hf: `${expert}.${name}.weight`, rows: shared }));
    map.fused(`${own}.moe.shared.in.weight`, slices, c.hiddenSize);
    map.tensor(`${expert}.down_proj.weight`, `${own}.moe.shared.out.weight`, c.hiddenSize, shared);
  }
  if (files !== 'apart') {
    for (const [name, leaf, rows, cols] of matrices(c, moe))
      for (let e = 0; e < moe.numExperts; e++) {
        const param = `${own}.moe.experts.${e}.${leaf}.weight`;
        if (files === 'in_one') map.matrixOf(`${block}.${name}`, e, moe.numExperts, param, rows, cols);
        else map.part(`${block}.${name}`, e, moe.numExperts, param, rows, cols);
      }
    return;
  }
  const width = moe.latentSize > 0 ? moe.latentSize : c.hiddenSize;
  for (let e = 0; e < moe.numExperts; e++) {
    const expert = `${block}.experts.${e}`;
    const inputs = c.gatedMlp ? [gate, up] : [up];
    const slices = inputs.map((name) => ({ hf: `${expert}.${name}.weight`, rows: moe.intermediateSize }));
    map.fused(`${own}.moe.experts.${e}.in.weight`, slices, width);
    map.tensor(`${expert}.${down}.weight`, `${own}.moe.experts.${e}.out.weight`, width, moe.intermediateSize);
  }
}

/** Granite's expert that all tokens share, of `size`, and the MLP of Granite 4's layers without experts. */
export function graniteMlpMapping(
  c: NativeModelConfig,
  map: MappingBuilder,
  hf: string,
  own: string,
  size: number,
): void {
  map.tensor(`${hf}.shared_mlp.input_linear.weight`, `${own}.in.weight`, 2 * size, c.hiddenSize);
  map.tensor(`${hf}.shared_mlp.output_linear.weight`, `${own}.out.weight`, c.hiddenSize, size);
}

/** gpt-oss: what all experts have in one tensor, transposed, and pairs of gate and up as the parameters have them. */
export function gptOssExpertsMapping(
  c: NativeModelConfig,
  moe: NativeMoeConfig,
  map: MappingBuilder,
  hf: string,
  own: string,
): void {
  const { numExperts } = moe;
  map.tensor(`${hf}.router.weight`, `${own}.router.weight`, numExperts, c.hiddenSize);
  map.tensor(`${hf}.router.bias`, `${own}.router.bias`, numExperts);
  for (const [name, leaf, rows, cols] of matrices(c, moe)) {
    const all = `${hf}.${name}`;
    for (let e = 0; e < numExperts; e++)
      map.part(all, e, numExperts, `${own}.experts.${e}.${leaf}.weight`, rows, cols);
    for (let e = 0; e < numExperts; e++)
      map.part(`${all}_bias`, e, numExperts, `${own}.experts.${e}.${leaf}.bias`, rows);
  }
}
