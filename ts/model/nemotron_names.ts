import type { NativeModelConfig, NativeMoeConfig } from '../native/bridge';
import { attentionMapping, mlpMapping } from './block_names';
import { moeMapping } from './expert_names';
import { mambaMapping } from './mamba_names';
import type { MappingBuilder } from './tensor_mapping';

// Names of Nemotron-H's tensors: a block of the files is what looks across rows, an MLP, or experts; a layer of ours is one of the
// first kind with what comes behind it.

export function nemotronMapping(c: NativeModelConfig, map: MappingBuilder): void {
  map.tensor('backbone.embeddings.weight', 'embed.weight', c.vocabSize, c.hiddenSize);
  let block = 0;
  for (let i = 0; i < c.numLayers; i++) {
    const own = `layers.${i}`;
    const next = (norm: string): string => {
      const hf = `backbone.layers.${block++}`;
      map.tensor(`${hf}.norm.weight`, `${own}.${norm}.weight`, c.hiddenSize);
      return hf;
    };
    const mixer = `${next('attn_norm')}.mixer`;
    if (c.linear !== null && c.linearLayers[i]) mambaMapping(c, c.linear, map, mixer, `${own}.mamba`);
    else attentionMapping(c, map, mixer, `${own}.attn`);
    if (c.bareLayers[i]) continue;
    const hf = next('mlp_norm');
    if (c.moe !== null && c.moeLayers[i]) {
      latentMapping(c, c.moe, map, `${hf}.mixer`, `${own}.moe.latent`);
      moeMapping(c, c.moe, map, hf, own, 'apart');
    } else mlpMapping(c, map, `${hf}.mixer`, `${own}.mlp`);
  }
  map.tensor('backbone.norm_f.weight', 'norm.weight', c.hiddenSize);
}

function latentMapping(
  c: NativeModelConfig,
  { latentSize }: NativeMoeConfig,
  map: MappingBuilder,
  hf: string,
  own: string,
): void {
  if (latentSize === 0) return;
  map.tensor(`${hf}.fc1_latent_proj.weight`, `${own}.in.weight`, latentSize, c.hiddenSize);
  map.tensor(`${hf}.fc2_latent_proj.weight`, `${own}.out.weight`, c.hiddenSize, latentSize);
}
