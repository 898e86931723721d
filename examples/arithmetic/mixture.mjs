// A mixture of experts from a dense model: every MLP becomes N copies of itself behind a router of random weights
// ("sparse upcycling", Komatsuzaki et al. 2022, arXiv:2212.05055).
import { copyFileSync, mkdirSync, readdirSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { INITIAL_STD } from './initial_model.mjs';
import { readTensors, writeTensors } from './safetensors.mjs';

/** Of each token. */
const CHOSEN = 2;
/** Width of the expert of all tokens, which Qwen2 MoE always has. */
const SHARED = 32;

/**
 * Writes a Qwen2 MoE model that answers as the Qwen2 model in `dense` does: weights of the chosen experts sum to 1, and the
 * shared expert adds nothing before it has learnt something.
 * @param {string} dense a Hugging Face directory
 * @param {string} directory
 * @param {number} experts of each layer
 * @param {import('./random.mjs').Random} random
 * @returns {number} its number of parameters
 */
export function writeMixture(dense, directory, experts, random) {
  mkdirSync(directory, { recursive: true });
  const config = JSON.parse(readFileSync(join(dense, 'config.json'), 'utf8'));
  const { hidden_size: hidden, num_hidden_layers: layers } = config;
  const normal = (name, shape) => ({
    name,
    shape,
    data: Float32Array.from({ length: shape[0] * shape[1] }, () => INITIAL_STD * random.normal()),
  });
  const tensors = readTensors(join(dense, 'model.safetensors')).flatMap(({ name, ...tensor }) => {
    const [, mlp, matrix] = name.match(/^(.*\.mlp)\.(\w+\.weight)$/) ?? [];
    if (!mlp) return [{ name, ...tensor }];
    return Array.from({ length: experts }, (_, e) => ({ name: `${mlp}.experts.${e}.${matrix}`, ...tensor }));
  });
  for (let layer = 0; layer < layers; layer++) {
    const mlp = `model.layers.${layer}.mlp`;
    tensors.push(
      normal(`${mlp}.gate.weight`, [experts, hidden]),
      normal(`${mlp}.shared_expert.gate_proj.weight`, [SHARED, hidden]),
      normal(`${mlp}.shared_expert.up_proj.weight`, [SHARED, hidden]),
      {
        name: `${mlp}.shared_expert.down_proj.weight`,
        shape: [hidden, SHARED],
        data: new Float32Array(hidden * SHARED),
      },
      normal(`${mlp}.shared_expert_gate.weight`, [1, hidden]),
    );
  }
  const others = readdirSync(dense).filter((file) => file.endsWith('.json') && !/^config|index/.test(file));
  for (const file of others) copyFileSync(join(dense, file), join(directory, file));
  writeTensors(join(directory, 'model.safetensors'), tensors);
  const mixture = {
    ...config,
    architectures: ['Qwen2MoeForCausalLM'],
    model_type: 'qwen2_moe',
    num_experts: experts,
    num_experts_per_tok: Math.min(CHOSEN, experts),
    moe_intermediate_size: config.intermediate_size,
    shared_expert_intermediate_size: SHARED,
    norm_topk_prob: true,
    decoder_sparse_step: 1,
    mlp_only_layers: [],
  };
  // Last: a directory with this file is a whole model.
  writeFileSync(join(directory, 'config.json'), `${JSON.stringify(mixture, null, 2)}\n`);
  return tensors.reduce((sum, { data }) => sum + data.length, 0);
}
