// The model and the batch of the benchmarks over several workers.
import { mkdirSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { writeSafetensors } from './safetensors_file.mjs';

const VOCABULARY = 4096;

/** A Qwen2 of 8 layers with made-up weights: what it computes does not matter here. */
export function madeModel(positions = 1024) {
  const [hidden, intermediate, layers, heads] = [512, 1536, 8, 8];
  const directory = join('.troupe', 'bench', 'sharding-model');
  const shapes = { 'model.embed_tokens.weight': [VOCABULARY, hidden], 'model.norm.weight': [hidden] };
  for (let i = 0; i < layers; i++) {
    const at = (name) => `model.layers.${i}.${name}`;
    shapes[at('input_layernorm.weight')] = [hidden];
    shapes[at('post_attention_layernorm.weight')] = [hidden];
    for (const name of ['q', 'k', 'v', 'o']) shapes[at(`self_attn.${name}_proj.weight`)] = [hidden, hidden];
    for (const name of ['q', 'k', 'v']) shapes[at(`self_attn.${name}_proj.bias`)] = [hidden];
    for (const name of ['gate', 'up']) shapes[at(`mlp.${name}_proj.weight`)] = [intermediate, hidden];
    shapes[at('mlp.down_proj.weight')] = [hidden, intermediate];
  }
  mkdirSync(directory, { recursive: true });
  const wave = (count) => new Float32Array(count).map((_, i) => 0.02 * Math.sin(i * 12.9898));
  writeSafetensors(
    join(directory, 'model.safetensors'),
    Object.entries(shapes).map(([name, shape]) => [
      name,
      'F32',
      shape,
      () => wave(shape.reduce((all, size) => all * size, 1)),
    ]),
  );
  const config = {
    architectures: ['Qwen2ForCausalLM'],
    model_type: 'qwen2',
    vocab_size: VOCABULARY,
    hidden_size: hidden,
    intermediate_size: intermediate,
    num_hidden_layers: layers,
    num_attention_heads: heads,
    num_key_value_heads: heads,
    hidden_act: 'silu',
    max_position_embeddings: positions,
    rms_norm_eps: 1e-6,
    rope_theta: 10000,
    tie_word_embeddings: true,
    eos_token_id: 1,
    torch_dtype: 'float32',
  };
  writeFileSync(join(directory, 'config.json'), JSON.stringify(config));
  return directory;
}

/** Policy updates read no more than this. Sequences of `tokens` tokens, a quarter of them the prompt. */
export function makeBatch(Batch, sequences, tokens) {
  const ids = (i, n) => Int32Array.from({ length: n }, (_, t) => 2 + ((i * 131 + t * 17) % 97));
  const prompts = Array.from({ length: sequences }, (_, i) => ids(i, tokens / 4));
  const responses = Array.from({ length: sequences }, (_, i) => ids(i + 7, (tokens * 3) / 4));
  const batch = Batch.fromSequences(prompts, responses);
  const column = (f) => Float32Array.from({ length: batch.numResponseTokens }, (_, t) => f(t));
  return batch.with({ oldLogProbs: column(() => -8), advantages: column((t) => Math.sin(t)) });
}
