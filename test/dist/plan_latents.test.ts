// `troupe plan` of models with latent attention, whose rollout can keep latents.
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { CONFORMANCE } from '../helpers/conformance';
import { config, engines, file, report, troupe } from '../helpers/planned';

afterAll(() => engines.close());

const LATENTS = 'actor_rollout_ref.rollout.latent_cache=true';
const MODEL = 'actor_rollout_ref.model.path=latents';
const moonlight = readFileSync(join(CONFORMANCE, 'models', 'moonlight', 'actor', 'config.json'), 'utf8');
// The attention of DeepSeek-V3: 128 heads of 192 numbers, a latent of 512 and 64 that turn.
file(
  'latents/config.json',
  JSON.stringify({
    ...(JSON.parse(moonlight) as object),
    num_attention_heads: 128,
    num_key_value_heads: 128,
    qk_nope_head_dim: 128,
    qk_rope_head_dim: 64,
    qk_head_dim: 192,
    v_head_dim: 128,
    kv_lora_rank: 512,
    max_position_embeddings: 4096,
  }),
);

// One prompt of four samples, in small micro-batches and steps: keys and values are what takes most.
const ACTOR = 'actor_rollout_ref.actor';
const one = [
  MODEL,
  'data.train_batch_size=1',
  `${ACTOR}.ppo_mini_batch_size=1`,
  `${ACTOR}.use_kl_loss=false`,
  `${ACTOR}.ppo_max_token_len_per_gpu=1024`,
  'actor_rollout_ref.model.enable_gradient_checkpointing=true',
  'actor_rollout_ref.rollout.log_prob_max_token_len_per_gpu=1024',
  'actor_rollout_ref.rollout.max_num_batched_tokens=128',
];

test('latents are 1/85 of keys and values, and are advised', async () => {
  const target = { gpus: 1, memory: 2 ** 32, advise: true };
  const [before, after] = [await report(one, target), await report([...one, LATENTS], target)];
  const cache = ({ phases }: typeof before): number =>
    phases.find(({ verb }) => verb === 'generate')?.memory.kvCache as number;
  // Rounded up to what a GPU allocates.
  expect(cache(before) / cache(after)).toBeCloseTo((128 * 2 * 192) / (512 + 64), 0);
  const knob = before.advice.knobs.find(({ change }) => change === LATENTS);
  expect(knob?.saves).toBe(before.peak.total - after.peak.total);
  expect(knob?.saves).toBeGreaterThan(0);
  expect(after.advice.knobs.map(({ change }) => change)).not.toContain(LATENTS);
});

test('a model that has none is refused', () => {
  const { code, stderr } = troupe(config, LATENTS);
  expect(code).toBe(2);
  expect(stderr).toMatch(/actor_rollout_ref\.rollout\.latent_cache: the model has no latent attention/);
});
