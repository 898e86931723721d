// node bench/latents.mjs [--heads 16] [--dtype float32] [--requests 1,8] [--context 2048]: generation of a model with the attention of DeepSeek-V3 (queries
// and keys of 192 numbers, a latent of 512 and 64 that turn) over keys and values of all heads, and over latents: tokens per second behind prompts of so many
// tokens, seconds until the first token of a prompt, and the cache's bytes per token. Few layers, which are not wide: attention is what takes the time.
import { mkdirSync } from 'node:fs';
import { createRequire } from 'node:module';
import { join } from 'node:path';
import { commandLine } from '../scripts/command_line.mjs';
import { writeWeights } from './make_case.mjs';
import { median } from './measure.mjs';
import { Random } from './random.mjs';
import { scratchDirectory } from './scratch.mjs';

const { Actor } = createRequire(import.meta.url)('../dist/index.js');

const { values } = commandLine({
  options: {
    heads: { type: 'string', least: 1, default: '16' },
    dtype: { type: 'string', default: 'float32' },
    requests: { type: 'string', least: 1, list: true, default: '1,8' },
    context: { type: 'string', least: 1, default: '2048' },
    rounds: { type: 'string', least: 1, default: '5' },
  },
});

const HEADS = Number(values.heads);
const CONTEXT = Number(values.context);
const ROUNDS = Number(values.rounds);
const LENGTH = 32;
const SIZES = { hidden: 512, layers: 4, ffn: 1024, vocabulary: 1000 };
const [STILL, TURNING, VALUE, RANK] = [128, 64, 128, 512];

const config = {
  architectures: ['DeepseekV3ForCausalLM'],
  model_type: 'deepseek_v3',
  hidden_size: SIZES.hidden,
  num_hidden_layers: SIZES.layers,
  first_k_dense_replace: SIZES.layers,
  num_attention_heads: HEADS,
  num_key_value_heads: HEADS,
  q_lora_rank: null,
  kv_lora_rank: RANK,
  qk_nope_head_dim: STILL,
  qk_rope_head_dim: TURNING,
  v_head_dim: VALUE,
  intermediate_size: SIZES.ffn,
  vocab_size: SIZES.vocabulary,
  max_position_embeddings: 2 * CONTEXT + LENGTH,
  rope_theta: 1e4,
  torch_dtype: 'float32',
};

const bytesOf = { float32: 4, bfloat16: 2 }[values.dtype];
const perToken = (latentCache) =>
  SIZES.layers * bytesOf * (latentCache ? RANK + TURNING : HEADS * 2 * (STILL + TURNING));

/** Both forms in turn, so that a change of the machine meets both. */
async function compare(model, count) {
  const tokens = count * (CONTEXT + LENGTH + 64);
  const forms = [];
  for (const latentCache of [false, true]) {
    const actor = await Actor.create({
      model,
      optim: null,
      numThreads: 2,
      device: 'cpu',
      dtype: values.dtype,
      rollout: { freeCacheEngine: false, latentCache, kvCacheBytes: tokens * perToken(latentCache) },
    });
    forms.push({ actor, rates: [], firsts: [] });
  }
  const random = new Random(2);
  for (let round = 0; round <= ROUNDS; round++) {
    const prompts = Array.from({ length: count }, () =>
      Array.from({ length: CONTEXT }, () => 1 + random.integer(SIZES.vocabulary - 1)),
    );
    for (const { actor, rates, firsts } of forms) {
      const ask = async (maxNewTokens) => {
        const started = performance.now();
        await Promise.all(
          prompts.map(
            (promptIds, i) =>
              actor.rollout.submit({
                promptIds,
                sampling: { maxNewTokens, seed: BigInt(i), stopTokenIds: [] },
              }).result,
          ),
        );
        return (performance.now() - started) / 1000;
      };
      const first = await ask(1);
      // The prompts are in the cache now.
      const decoding = await ask(LENGTH);
      if (round === 0) continue;
      firsts.push(first / count);
      rates.push((count * LENGTH) / decoding);
    }
  }
  for (const { actor } of forms) await actor.close();
  const [heads, latents] = forms.map(({ rates, firsts }) => ({ rate: median(rates), first: median(firsts) }));
  console.log(
    `${values.dtype}, ${HEADS} heads, ${count} at a time behind ${CONTEXT} tokens: ${heads.rate.toFixed(1)} tokens/s over heads, ` +
      `${(latents.rate / heads.rate).toFixed(2)} times over latents; a prompt takes ${heads.first.toFixed(2)} s, ${(latents.first / heads.first).toFixed(2)} times; ` +
      `${perToken(false)} bytes per token, ${perToken(true)}`,
  );
}

const directory = scratchDirectory('latents');
const model = join(directory, 'model');
mkdirSync(model);
writeWeights(model, config, new Random(1));
for (const count of values.requests.split(',').map(Number)) await compare(model, count);
