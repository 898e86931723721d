import type { NativeVisionConfig } from '../native/bridge';
import type { MappingBuilder } from './tensor_mapping';

/** Names of the tower that reads images, beside those of its decoder. `first`: of classes before transformers 4.52. */
export function visionMapping(
  v: NativeVisionConfig,
  textWidth: number,
  first: boolean,
  map: MappingBuilder,
): void {
  const root = first ? 'visual' : 'model.visual';
  const { hiddenSize: width, patchSize, temporalPatchSize } = v;
  const both = bothOf(map);
  const linear = (hf: string, own: string, rows: number, bias: boolean): void => {
    map.tensor(`${hf}.weight`, `${own}.weight`, rows, width);
    if (bias) map.tensor(`${hf}.bias`, `${own}.bias`, rows);
  };
  const norm = (hf: string, own: string, size: number): void => {
    if (v.norm === 'layer') both(hf, own, size);
    else map.tensor(`${hf}.weight`, `${own}.weight`, size);
  };
  const kernel = [width, 3, temporalPatchSize, patchSize, patchSize];
  map.shaped(`${root}.patch_embed.proj.weight`, 'vision.patches.weight', kernel);
  if (v.patchBias) map.tensor(`${root}.patch_embed.proj.bias`, 'vision.patches.bias', width);
  if (v.patchNorm) norm(`${root}.post_conv_layernorm`, 'vision.patches.norm', width);
  const positions = v.cubicPositions ? 'embeddings.position_embedding' : 'pos_embed';
  if (v.positionSide > 0)
    map.tensor(`${root}.${positions}.weight`, 'vision.positions.weight', v.positionSide ** 2, width);
  for (let i = 0; i < v.numLayers; i++) {
    const [hf, own] = [`${root}.blocks.${i}`, `vision.layers.${i}`];
    norm(`${hf}.norm1`, `${own}.attn_norm`, width);
    linear(`${hf}.attn.qkv`, `${own}.attn.qkv`, 3 * width, v.qkvBias);
    linear(`${hf}.attn.proj`, `${own}.attn.out`, width, v.layerBias);
    norm(`${hf}.norm2`, `${own}.mlp_norm`, width);
    mlpMapping(v, first, map, `${hf}.mlp`, `${own}.mlp`);
  }
  if (v.gatedMergerSize > 0) {
    gatedMergerMapping(v, textWidth, map, root);
    return;
  }
  const merged = width * v.mergeSize ** 2;
  const [normed, inner, outer] = first ? ['ln_q', 'mlp.0', 'mlp.2'] : ['norm', 'linear_fc1', 'linear_fc2'];
  const merger = (hf: string, own: string, size: number): void => {
    norm(`${hf}.${normed}`, `${own}.norm`, size);
    both(`${hf}.${inner}`, `${own}.in`, merged, merged);
    both(`${hf}.${outer}`, `${own}.out`, textWidth, merged);
  };
  merger(`${root}.merger`, 'vision.merger', width);
  for (const k of v.deepstackLayers.keys())
    merger(`${root}.deepstack_merger_list.${k}`, `vision.deepstack.${k}`, merged);
}

/** Weight and bias. */
const bothOf =
  (map: MappingBuilder) =>
  (hf: string, own: string, rows: number, cols = 0): void => {
    map.tensor(`${hf}.weight`, `${own}.weight`, rows, cols);
    map.tensor(`${hf}.bias`, `${own}.bias`, rows);
  };

function mlpMapping(
  v: NativeVisionConfig,
  first: boolean,
  map: MappingBuilder,
  hf: string,
  own: string,
): void {
  const { hiddenSize: width, intermediateSize: inner } = v;
  const both = bothOf(map);
  if (!v.gatedMlp) {
    const leaf = first ? 'fc' : 'linear_fc';
    both(`${hf}.${leaf}1`, `${own}.in`, inner, width);
    both(`${hf}.${leaf}2`, `${own}.out`, width, inner);
    return;
  }
  const slices = (leaf: string) =>
    ['gate_proj', 'up_proj'].map((name) => ({ hf: `${hf}.${name}.${leaf}`, rows: inner }));
  map.fused(`${own}.in.weight`, slices('weight'), width);
  if (v.layerBias) map.fused(`${own}.in.bias`, slices('bias'));
  map.tensor(`${hf}.down_proj.weight`, `${own}.out.weight`, width, inner);
  if (v.layerBias) map.tensor(`${hf}.down_proj.bias`, `${own}.out.bias`, width);
}

/** GLM-4.1V's, with the norm behind its layers. */
function gatedMergerMapping(
  v: NativeVisionConfig,
  textWidth: number,
  map: MappingBuilder,
  root: string,
): void {
  const { hiddenSize: width, mergeSize, gatedMergerSize: inner } = v;
  const [hf, own] = [`${root}.merger`, 'vision.merger'];
  map.tensor(`${root}.post_layernorm.weight`, `${own}.norm.weight`, width);
  map.shaped(`${root}.downsample.weight`, `${own}.merge.weight`, [textWidth, width, mergeSize, mergeSize]);
  map.tensor(`${root}.downsample.bias`, `${own}.merge.bias`, textWidth);
  map.tensor(`${hf}.proj.weight`, `${own}.proj.weight`, textWidth, textWidth);
  bothOf(map)(`${hf}.post_projection_norm`, `${own}.proj_norm`, textWidth);
  const slices = ['gate_proj', 'up_proj'].map((name) => ({ hf: `${hf}.${name}.weight`, rows: inner }));
  map.fused(`${own}.in.weight`, slices, textWidth);
  map.tensor(`${hf}.down_proj.weight`, `${own}.out.weight`, textWidth, inner);
}
