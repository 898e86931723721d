import type { NativeVisionConfig } from '../native/bridge';
import type { MappingBuilder } from './tensor_mapping';

/** Names of the tower that reads images (Qwen3-VL, Qwen3.5), beside those of its decoder. */
export function visionMapping(v: NativeVisionConfig, textWidth: number, map: MappingBuilder): void {
  const root = 'model.visual';
  const { hiddenSize: width, intermediateSize: inner, patchSize, temporalPatchSize } = v;
  const both = (hf: string, own: string, rows: number, cols = 0): void => {
    map.tensor(`${hf}.weight`, `${own}.weight`, rows, cols);
    map.tensor(`${hf}.bias`, `${own}.bias`, rows);
  };
  const kernel = [width, 3, temporalPatchSize, patchSize, patchSize];
  map.shaped(`${root}.patch_embed.proj.weight`, 'vision.patches.weight', kernel);
  map.tensor(`${root}.patch_embed.proj.bias`, 'vision.patches.bias', width);
  map.tensor(`${root}.pos_embed.weight`, 'vision.positions.weight', v.positionSide ** 2, width);
  for (let i = 0; i < v.numLayers; i++) {
    const [hf, own] = [`${root}.blocks.${i}`, `vision.layers.${i}`];
    both(`${hf}.norm1`, `${own}.attn_norm`, width);
    both(`${hf}.attn.qkv`, `${own}.attn.qkv`, 3 * width, width);
    both(`${hf}.attn.proj`, `${own}.attn.out`, width, width);
    both(`${hf}.norm2`, `${own}.mlp_norm`, width);
    both(`${hf}.mlp.linear_fc1`, `${own}.mlp.in`, inner, width);
    both(`${hf}.mlp.linear_fc2`, `${own}.mlp.out`, width, inner);
  }
  const merged = width * v.mergeSize ** 2;
  const merger = (hf: string, own: string, normed: number): void => {
    both(`${hf}.norm`, `${own}.norm`, normed);
    both(`${hf}.linear_fc1`, `${own}.in`, merged, merged);
    both(`${hf}.linear_fc2`, `${own}.out`, textWidth, merged);
  };
  merger(`${root}.merger`, 'vision.merger', width);
  for (const k of v.deepstackLayers.keys())
    merger(`${root}.deepstack_merger_list.${k}`, `vision.deepstack.${k}`, merged);
}
