import type { NativeLinearConfig, NativeModelConfig } from '../native/bridge';
import { attentionMapping, mlpMapping } from './block_names';
import { moeMapping } from './expert_names';
import type { MappingBuilder } from './tensor_mapping';

/** Names of LFM2's tensors. */
export function lfm2Mapping(c: NativeModelConfig, map: MappingBuilder): void {
  map.tensor('model.embed_tokens.weight', 'embed.weight', c.vocabSize, c.hiddenSize);
  for (let i = 0; i < c.numLayers; i++) {
    const own = `layers.${i}`;
    const hf = `model.layers.${i}`;
    map.tensor(`${hf}.operator_norm.weight`, `${own}.attn_norm.weight`, c.hiddenSize);
    if (c.linear !== null && c.linearLayers[i])
      convolutionMapping(c, c.linear, map, `${hf}.conv`, `${own}.short_conv`);
    else attentionMapping(c, map, `${hf}.self_attn`, `${own}.attn`);
    map.tensor(`${hf}.ffn_norm.weight`, `${own}.mlp_norm.weight`, c.hiddenSize);
    if (c.moe !== null && c.moeLayers[i]) moeMapping(c, c.moe, map, hf, own, 'apart');
    else mlpMapping(c, map, `${hf}.feed_forward`, `${own}.mlp`);
  }
  map.tensor('model.embedding_norm.weight', 'norm.weight', c.hiddenSize);
}

function convolutionMapping(
  c: NativeModelConfig,
  { valueHeads: channels, convBias, convWidth }: NativeLinearConfig,
  map: MappingBuilder,
  hf: string,
  own: string,
): void {
  map.tensor(`${hf}.in_proj.weight`, `${own}.in.weight`, 3 * channels, c.hiddenSize);
  map.convolution(`${own}.conv.weight`, [{ hf: `${hf}.conv.weight`, rows: channels }], convWidth);
  map.tensor(`${hf}.out_proj.weight`, `${own}.out.weight`, c.hiddenSize, channels);
  if (!convBias) return;
  map.tensor(`${hf}.in_proj.bias`, `${own}.in.bias`, 3 * channels);
  map.tensor(`${hf}.conv.bias`, `${own}.conv.bias`, channels);
  map.tensor(`${hf}.out_proj.bias`, `${own}.out.bias`, c.hiddenSize);
}
