import type { NativeLinearConfig, NativeModelConfig } from '../native/bridge';
import type { StoredShapes } from './expert_names';
import type { FusedRows, MappingBuilder } from './tensor_mapping';

/** What files call the matrices and the vectors of a layer of the gated delta rule. */
interface DeltaNames {
  inputs(sizes: DeltaSizes): readonly (readonly [string, number])[];
  convolutions(sizes: DeltaSizes): readonly (readonly [string, number])[];
  norm: string;
  out: string;
}

interface DeltaSizes {
  keys: number;
  values: number;
  heads: number;
}

const QWEN = {
  convolutions: ({ keys, values }: DeltaSizes) => [['conv1d', 2 * keys + values]] as const,
  norm: 'norm',
  out: 'out_proj',
};

const NAMES: Readonly<Record<NativeLinearConfig['matrices'], DeltaNames>> = {
  by_key_head: {
    ...QWEN,
    inputs: ({ keys, values, heads }) => [
      ['in_proj_qkvz', 2 * keys + 2 * values],
      ['in_proj_ba', 2 * heads],
    ],
  },
  joined: {
    ...QWEN,
    inputs: ({ keys, values, heads }) => [
      ['in_proj_qkv', 2 * keys + values],
      ['in_proj_z', values],
      ['in_proj_b', heads],
      ['in_proj_a', heads],
    ],
  },
  apart: {
    inputs: ({ keys, values, heads }) => [
      ['q_proj', keys],
      ['k_proj', keys],
      ['v_proj', values],
      ['g_proj', values],
      ['b_proj', heads],
      ['a_proj', heads],
    ],
    convolutions: ({ keys, values }) => [
      ['q_conv1d', keys],
      ['k_conv1d', keys],
      ['v_conv1d', values],
    ],
    norm: 'o_norm',
    out: 'o_proj',
  },
};

/**
 * The tensors of a layer of the gated delta rule, which files have under `hf` and parameters under `own`; `stored`: those of files that have been
 * looked at.
 */
export function deltaMapping(
  c: NativeModelConfig,
  { matrices, keyHeads, valueHeads, keyDim, valueDim, convWidth }: NativeLinearConfig,
  map: MappingBuilder,
  hf: string,
  own: string,
  stored: StoredShapes,
): void {
  const names = NAMES[matrices];
  const sizes = { keys: keyHeads * keyDim, values: valueHeads * valueDim, heads: valueHeads };
  const weights = (of: readonly (readonly [string, number])[]): FusedRows[] =>
    of.map(([name, rows]) => ({ hf: `${hf}.${name}.weight`, rows }));
  map.fused(`${own}.in.weight`, weights(names.inputs(sizes)), c.hiddenSize);
  map.convolution(`${own}.conv.weight`, asStored(weights(names.convolutions(sizes)), stored), convWidth);
  map.tensor(`${hf}.A_log`, `${own}.a_log`, valueHeads);
  map.tensor(`${hf}.dt_bias`, `${own}.dt_bias`, valueHeads);
  map.tensor(`${hf}.${names.norm}.weight`, `${own}.norm.weight`, valueDim);
  map.tensor(`${hf}.${names.out}.weight`, `${own}.out.weight`, c.hiddenSize, sizes.values);
}

/** transformers 5 cuts the convolution into equal parts where it saves OLMo Hybrid, whatever is of q, of k and of v, and joins them where it loads it. */
function asStored(slices: FusedRows[], stored: StoredShapes): FusedRows[] {
  const found = slices.map(({ hf, rows }) => ({ hf, rows: stored.get(hf)?.shape[0] ?? rows }));
  const sum = (of: FusedRows[]): number => of.reduce((total, { rows }) => total + rows, 0);
  return sum(found) === sum(slices) ? found : slices;
}
