import type { NativeLatentConfig, NativeModelConfig } from '../native/bridge';
import type { FusedRows, MappingBuilder } from './tensor_mapping';

// Names of attention and of a dense MLP, whichever block of the files they are in.

/** The decoder of GLM-4 (0414). */
export const hasGlm4Names = (c: NativeModelConfig): boolean => c.family === 'glm4' || c.family === 'glm4v';

function latentMapping(
  c: NativeModelConfig,
  latent: NativeLatentConfig,
  map: MappingBuilder,
  hf: string,
  own: string,
): void {
  const { queryRank, keyRank, stillDim, rotaryDim, valueDim } = latent;
  const down = (file: string, name: string, rows: number): void => {
    map.tensor(`${hf}.${file}.weight`, `${own}.${name}.weight`, rows, c.hiddenSize);
    if (c.qkvBias) map.tensor(`${hf}.${file}.bias`, `${own}.${name}.bias`, rows);
  };
  const queries = c.numHeads * (stillDim + rotaryDim);
  if (queryRank > 0) {
    down('q_a_proj', 'q_a', queryRank);
    map.tensor(`${hf}.q_a_layernorm.weight`, `${own}.q_norm.weight`, queryRank);
    map.tensor(`${hf}.q_b_proj.weight`, `${own}.q.weight`, queries, queryRank);
  } else {
    map.tensor(`${hf}.q_proj.weight`, `${own}.q.weight`, queries, c.hiddenSize);
  }
  down('kv_a_proj_with_mqa', 'kv_a', keyRank + rotaryDim);
  map.tensor(`${hf}.kv_a_layernorm.weight`, `${own}.kv_norm.weight`, keyRank);
  map.tensor(`${hf}.kv_b_proj.weight`, `${own}.kv_b.weight`, c.numHeads * (stillDim + valueDim), keyRank);
}

export const hasLfm2Names = (c: NativeModelConfig): boolean => c.family === 'lfm2' || c.family === 'lfm2_moe';

/** What families call norms of queries and keys, and the output projection. */
const attentionNames = (c: NativeModelConfig): { qNorm: string; kNorm: string; out: string } =>
  hasLfm2Names(c)
    ? { qNorm: 'q_layernorm', kNorm: 'k_layernorm', out: 'out_proj' }
    : { qNorm: 'q_norm', kNorm: 'k_norm', out: c.family === 'exaone' ? 'out_proj' : 'o_proj' };

function qkvMapping(
  c: NativeModelConfig,
  map: MappingBuilder,
  hf: string,
  own: string,
  sharesKeys: boolean,
): void {
  const q = c.numHeads * c.headDim;
  const kv = c.numKvHeads * c.headDim;
  const queries = c.attentionGate && !c.gatesApart ? 2 * q : q;
  const slices = (leaf: string): FusedRows[] =>
    c.family === 'phi3'
      ? [{ hf: `${hf}.qkv_proj.${leaf}`, rows: q + 2 * kv }]
      : [
          { hf: `${hf}.q_proj.${leaf}`, rows: queries },
          ...(sharesKeys ? [] : [{ hf: `${hf}.k_proj.${leaf}`, rows: kv }]),
          ...(sharesKeys || c.valuesFromKeys ? [] : [{ hf: `${hf}.v_proj.${leaf}`, rows: kv }]),
          ...(c.gatesApart ? [{ hf: `${hf}.gate_proj.${leaf}`, rows: q }] : []),
        ];
  map.fused(`${own}.qkv.weight`, slices('weight'), c.hiddenSize);
  if (c.qkvBias) map.fused(`${own}.qkv.bias`, slices('bias'));
  if (c.qkNorm || c.wholeQkNorm) {
    const { qNorm, kNorm } = attentionNames(c);
    map.tensor(`${hf}.${qNorm}.weight`, `${own}.q_norm.weight`, c.qkNorm ? c.headDim : q);
    if (!sharesKeys) map.tensor(`${hf}.${kNorm}.weight`, `${own}.k_norm.weight`, c.qkNorm ? c.headDim : kv);
  }
}

/** sharesKeys: the layer takes keys and values from another one. */
export function attentionMapping(
  c: NativeModelConfig,
  map: MappingBuilder,
  hf: string,
  own: string,
  sharesKeys = false,
): void {
  if (c.latent !== null) latentMapping(c, c.latent, map, hf, own);
  else qkvMapping(c, map, hf, own, sharesKeys);
  const values = c.numHeads * (c.latent?.valueDim ?? c.headDim);
  const { out } = attentionNames(c);
  map.tensor(`${hf}.${out}.weight`, `${own}.out.weight`, c.hiddenSize, values);
  if (c.outputBias) map.tensor(`${hf}.${out}.bias`, `${own}.out.bias`, c.hiddenSize);
  if (c.attentionSinks) map.tensor(`${hf}.sinks`, `${own}.sinks`, c.numHeads);
}

/** What families call the matrices of an MLP. */
function mlpNames(c: NativeModelConfig): readonly [gate: string, up: string, down: string] {
  if (hasLfm2Names(c)) return ['w1', 'w3', 'w2'];
  return c.family === 'exaone' ? ['c_fc_0', 'c_fc_1', 'c_proj'] : ['gate_proj', 'up_proj', 'down_proj'];
}

export function mlpMapping(c: NativeModelConfig, map: MappingBuilder, hf: string, own: string): void {
  const [gate, up, down] = mlpNames(c);
  const slices = (leaf: string): FusedRows[] =>
    c.family === 'phi3' || c.family === 'glm' || hasGlm4Names(c)
      ? [{ hf: `${hf}.gate_up_proj.${leaf}`, rows: 2 * c.intermediateSize }]
      : [
          ...(c.gatedMlp ? [{ hf: `${hf}.${gate}.${leaf}`, rows: c.intermediateSize }] : []),
          { hf: `${hf}.${up}.${leaf}`, rows: c.intermediateSize },
        ];
  map.fused(`${own}.in.weight`, slices('weight'), c.hiddenSize);
  if (c.mlpBias) map.fused(`${own}.in.bias`, slices('bias'));
  map.tensor(`${hf}.${down}.weight`, `${own}.out.weight`, c.hiddenSize, c.intermediateSize);
  if (c.mlpBias) map.tensor(`${hf}.${down}.bias`, `${own}.out.bias`, c.hiddenSize);
  if (c.activation !== 'xielu') return;
  for (const alpha of ['alpha_p', 'alpha_n']) map.tensor(`${hf}.act_fn.${alpha}`, `${own}.${alpha}`, 1);
  for (const constant of ['beta', 'eps']) map.buffer(`${hf}.act_fn.${constant}`, `${own}.${constant}`, []);
}
