import { mkdirSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { writeTensors } from './safetensors.mjs';
import { EOS, PAD, VOCABULARY_SIZE, writeTokenizer } from './tokenizer.mjs';

const HIDDEN = 192;
const LAYERS = 3;
const HEADS = 6;
const INTERMEDIATE = 512;
/** Wider than the usual 0.02: at this width it is closer to 1 / sqrt(hidden) and trains in far fewer steps. */
export const INITIAL_STD = 0.06;

/** config.json of a vocabulary. */
const configOf = ({ vocabulary, positions, theta }) => ({
  architectures: ['Qwen2ForCausalLM'],
  model_type: 'qwen2',
  vocab_size: vocabulary,
  hidden_size: HIDDEN,
  intermediate_size: INTERMEDIATE,
  num_hidden_layers: LAYERS,
  num_attention_heads: HEADS,
  num_key_value_heads: HEADS,
  hidden_act: 'silu',
  max_position_embeddings: positions,
  initializer_range: INITIAL_STD,
  rms_norm_eps: 1e-6,
  // Sequences have at most a dozen tokens: a short wavelength lets every rotary pair tell positions apart.
  rope_theta: theta,
  use_sliding_window: false,
  tie_word_embeddings: true,
  attention_dropout: 0,
  use_cache: true,
  eos_token_id: EOS.id,
  pad_token_id: PAD.id,
  torch_dtype: 'float32',
});

/** Of the arithmetic example. */
const ARITHMETIC = { vocabulary: VOCABULARY_SIZE, positions: 64, theta: 100, writeTokenizer };

/** Hugging Face name -> [shape, kind] in the order in which they are drawn and stored. */
function parameters(vocabulary) {
  const tensors = { 'model.embed_tokens.weight': [[vocabulary, HIDDEN], 'normal'] };
  for (let i = 0; i < LAYERS; i++) {
    const layer = `model.layers.${i}`;
    tensors[`${layer}.input_layernorm.weight`] = [[HIDDEN], 'ones'];
    for (const name of ['q_proj', 'k_proj', 'v_proj']) {
      tensors[`${layer}.self_attn.${name}.weight`] = [[HIDDEN, HIDDEN], 'normal'];
      tensors[`${layer}.self_attn.${name}.bias`] = [[HIDDEN], 'zeros'];
    }
    tensors[`${layer}.self_attn.o_proj.weight`] = [[HIDDEN, HIDDEN], 'normal'];
    tensors[`${layer}.post_attention_layernorm.weight`] = [[HIDDEN], 'ones'];
    tensors[`${layer}.mlp.gate_proj.weight`] = [[INTERMEDIATE, HIDDEN], 'normal'];
    tensors[`${layer}.mlp.up_proj.weight`] = [[INTERMEDIATE, HIDDEN], 'normal'];
    tensors[`${layer}.mlp.down_proj.weight`] = [[HIDDEN, INTERMEDIATE], 'normal'];
  }
  tensors['model.norm.weight'] = [[HIDDEN], 'ones'];
  return tensors;
}

function values(kind, count, random) {
  const data = new Float32Array(count);
  if (kind === 'ones') data.fill(1);
  if (kind === 'normal') for (let i = 0; i < count; i++) data[i] = INITIAL_STD * random.normal();
  return data;
}

/**
 * Writes a Hugging Face directory with a small Qwen2 model of random weights and its tokenizer.
 * @param {import('./random.mjs').Random} random
 * @param {typeof ARITHMETIC} model whose tokens 0 and 1 are those of padding and of the end
 * @returns {number} its number of parameters
 */
export function writeInitialModel(directory, random, model = ARITHMETIC) {
  mkdirSync(directory, { recursive: true });
  const tensors = Object.entries(parameters(model.vocabulary)).map(([name, [shape, kind]]) => {
    const count = shape.reduce((product, size) => product * size, 1);
    return { name, shape, data: values(kind, count, random) };
  });
  const json = (name, value) => writeFileSync(join(directory, name), `${JSON.stringify(value, null, 2)}\n`);
  json('config.json', configOf(model));
  json('generation_config.json', { eos_token_id: EOS.id, pad_token_id: PAD.id });
  model.writeTokenizer(directory);
  writeTensors(join(directory, 'model.safetensors'), tensors);
  return tensors.reduce((sum, { data }) => sum + data.length, 0);
}
