import type { NativeModelConfig, NativeMoeConfig } from '../native/bridge';
import { attentionMapping, mlpMapping } from './block_names';
import { atLayer, sharesKeys } from './layer_shapes';
import type { MappingBuilder } from './tensor_mapping';

/** Names of Gemma 4's tensors. */
export function gemma4Mapping(c: NativeModelConfig, map: MappingBuilder): void {
  const all = c.numLayers * c.perLayerSize;
  map.tensor('model.embed_tokens.weight', 'embed.weight', c.vocabSize, c.hiddenSize);
  if (all > 0) {
    map.tensor('model.embed_tokens_per_layer.weight', 'per_layer.embed.weight', c.vocabSize, all);
    map.tensor('model.per_layer_model_projection.weight', 'per_layer.in.weight', all, c.hiddenSize);
    map.tensor('model.per_layer_projection_norm.weight', 'per_layer.norm.weight', c.perLayerSize);
  }
  for (let i = 0; i < c.numLayers; i++) layerMapping(c, i, map);
  map.tensor('model.norm.weight', 'norm.weight', c.hiddenSize);
}

function layerMapping(c: NativeModelConfig, i: number, map: MappingBuilder): void {
  const own = `layers.${i}`;
  const hf = `model.layers.${i}`;
  const shape = atLayer(c, i);
  const norm = (leaf: string, name: string): void =>
    map.tensor(`${hf}.${leaf}.weight`, `${own}.${name}.weight`, c.hiddenSize);
  map.buffer(`${hf}.layer_scalar`, `${own}.scale`, [1]);
  norm('input_layernorm', 'attn_norm');
  attentionMapping(shape, map, `${hf}.self_attn`, `${own}.attn`, sharesKeys(c, i));
  norm('post_attention_layernorm', 'attn_post_norm');
  norm('pre_feedforward_layernorm', 'mlp_norm');
  mlpMapping(shape, map, `${hf}.mlp`, `${own}.mlp`);
  if (c.moe !== null) expertsMapping(c, c.moe, map, hf, own);
  norm('post_feedforward_layernorm', 'mlp_post_norm');
  if (c.perLayerSize === 0) return;
  map.tensor(`${hf}.per_layer_input_gate.weight`, `${own}.token.in.weight`, c.perLayerSize, c.hiddenSize);
  map.tensor(`${hf}.per_layer_projection.weight`, `${own}.token.out.weight`, c.hiddenSize, c.perLayerSize);
  norm('post_per_layer_input_norm', 'token.norm');
}

/** Of all experts in one, beside the MLP, with the norms of both. */
function expertsMapping(
  c: NativeModelConfig,
  { numExperts, intermediateSize: size }: NativeMoeConfig,
  map: MappingBuilder,
  hf: string,
  own: string,
): void {
  const norm = (leaf: string, name: string): void =>
    map.tensor(`${hf}.${leaf}.weight`, `${own}.${name}.weight`, c.hiddenSize);
  norm('post_feedforward_layernorm_1', 'mlp_out_norm');
  norm('pre_feedforward_layernorm_2', 'moe.in_norm');
  norm('post_feedforward_layernorm_2', 'moe.out_norm');
  map.tensor(`${hf}.router.proj.weight`, `${own}.moe.router.weight`, numExperts, c.hiddenSize);
  map.tensor(`${hf}.router.scale`, `${own}.moe.router.scale`, c.hiddenSize);
  map.tensor(`${hf}.router.per_expert_scale`, `${own}.moe.router.expert_scale`, numExperts);
  const matrices = [
    ['gate_up_proj', 'in', 2 * size, c.hiddenSize],
    ['down_proj', 'out', c.hiddenSize, size],
  ] as const;
  for (const [name, leaf, rows, cols] of matrices)
    for (let e = 0; e < numExperts; e++)
      map.matrixOf(
        `${hf}.experts.${name}`,
        e,
        numExperts,
        `${own}.moe.experts.${e}.${leaf}.weight`,
        rows,
        cols,
      );
}

/** Tensors that published files have in layers that take keys and values from others, which use none of them. */
export function isUnusedKey(c: NativeModelConfig, hf: string): boolean {
  const found = /^model\.layers\.(\d+)\.self_attn\.[kv]_(proj|norm)\.weight$/.exec(hf);
  return found !== null && sharesKeys(c, Number(found[1]));
}
