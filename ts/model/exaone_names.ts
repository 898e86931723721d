import type { NativeModelConfig } from '../native/bridge';
import { attentionMapping, mlpMapping } from './block_names';
import type { MappingBuilder } from './tensor_mapping';

/** Names of EXAONE 3's tensors: the decoder is Llama's, and its files have names of their own. */
export function exaoneMapping(c: NativeModelConfig, map: MappingBuilder): void {
  map.tensor('transformer.wte.weight', 'embed.weight', c.vocabSize, c.hiddenSize);
  for (let i = 0; i < c.numLayers; i++) {
    const hf = `transformer.h.${i}`;
    const own = `layers.${i}`;
    map.tensor(`${hf}.ln_1.weight`, `${own}.attn_norm.weight`, c.hiddenSize);
    attentionMapping(c, map, `${hf}.attn.attention`, `${own}.attn`);
    map.tensor(`${hf}.ln_2.weight`, `${own}.mlp_norm.weight`, c.hiddenSize);
    mlpMapping(c, map, `${hf}.mlp`, `${own}.mlp`);
  }
  map.tensor('transformer.ln_f.weight', 'norm.weight', c.hiddenSize);
}

/** What the classes of transformers call a tensor of these files. */
const MODULES: readonly (readonly [RegExp, string])[] = [
  [/^transformer\.wte\./, 'model.embed_tokens.'],
  [/^transformer\.h\./, 'model.layers.'],
  [/^transformer\.ln_f\./, 'model.norm.'],
  [/\.attn\.attention\./, '.self_attn.'],
  [/\.out_proj\./, '.o_proj.'],
  [/\.ln_1\./, '.input_layernorm.'],
  [/\.ln_2\./, '.post_attention_layernorm.'],
  [/\.c_fc_0\./, '.gate_proj.'],
  [/\.c_fc_1\./, '.up_proj.'],
  [/\.c_proj\./, '.down_proj.'],
];

export const exaoneModule = (hf: string): string =>
  MODULES.reduce((name, [file, module]) => name.replace(file, module), hf);
