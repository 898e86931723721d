// The plan's bytes of keys and values are what a run needs: with them nothing is preempted, and with 1 % less something is.
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { Actor, type ActorOptions } from '../../ts/actor/actor';
import { EngineMemory } from '../../ts/planner/engine_memory';
import { configuredPlan } from '../../ts/planner/from_config';
import { planMemory } from '../../ts/planner/plan';
import { CONFORMANCE } from '../helpers/conformance';

const directoryOf = (name: string): string => path.join(CONFORMANCE, 'models', name, 'actor');
const PAGE_POSITIONS = 32;
const [PROMPTS, SAMPLES, PROMPT, RESPONSE] = [64, 2, 33, 40];

interface Setup {
  setup: string;
  model: string;
  workers: number;
  keys: readonly string[];
  options: Partial<ActorOptions>;
  /** Bytes of a number, and ranks that a position is spread over. */
  bytes: number;
  parts: number;
}

const ACTOR = 'actor_rollout_ref.actor';
const megatron = (key: string): string[] => [
  `${ACTOR}.strategy=megatron`,
  `${ACTOR}.megatron.${key}_model_parallel_size=2`,
];
const SETUPS: readonly Setup[] = [
  { setup: 'float32', model: 'qwen3_headdim', workers: 1, keys: [], options: {}, bytes: 4, parts: 1 },
  {
    setup: 'bfloat16',
    model: 'qwen3_headdim',
    workers: 1,
    keys: [`${ACTOR}.fsdp_config.dtype=bfloat16`],
    options: { dtype: 'bfloat16' },
    bytes: 2,
    parts: 1,
  },
  { setup: 'fsdp 2', model: 'qwen3_headdim', workers: 2, keys: [], options: {}, bytes: 4, parts: 1 },
  {
    setup: 'fsdp 2 that decodes together',
    model: 'qwen3_headdim',
    workers: 2,
    keys: ['actor_rollout_ref.rollout.tensor_model_parallel_size=2'],
    options: { rollout: { tensorParallel: 2 } },
    bytes: 4,
    parts: 2,
  },
  {
    setup: 'tp 2',
    model: 'qwen3_headdim',
    workers: 2,
    keys: megatron('tensor'),
    options: { parallel: { tp: 2 } },
    bytes: 4,
    parts: 2,
  },
  {
    setup: 'pp 2',
    model: 'qwen3_headdim',
    workers: 2,
    keys: megatron('pipeline'),
    options: { parallel: { pp: 2 } },
    bytes: 4,
    parts: 2,
  },
  {
    setup: 'latents',
    model: 'moonlight',
    workers: 1,
    keys: ['actor_rollout_ref.rollout.latent_cache=true'],
    options: { rollout: { latentCache: true } },
    bytes: 4,
    parts: 1,
  },
];

const directory = mkdtempSync(path.join(tmpdir(), 'plan-rollout-'));
const engines = new EngineMemory();
afterAll(async () => {
  await engines.close();
  rmSync(directory, { recursive: true });
});

/** Of the rank that is shown; all have the same here. */
async function plannedBytes({ model, workers, keys }: Setup): Promise<number> {
  const file = path.join(directory, 'run.yaml');
  writeFileSync(
    file,
    `data: { train_files: train.jsonl, train_batch_size: ${PROMPTS}, max_prompt_length: ${PROMPT}, max_response_length: ${RESPONSE} }
actor_rollout_ref:
  model: { path: ${directoryOf(model)} }
  actor: { ppo_mini_batch_size: ${PROMPTS} }
  rollout: { n: ${SAMPLES} }
trainer: { device: cpu }
algorithm: { adv_estimator: grpo }
`,
  );
  const { pools } = await configuredPlan({ file, overrides: keys, gpus: workers, memory: null }, engines);
  const { phases } = await planMemory(pools[0] as (typeof pools)[number], engines);
  return phases.find(({ verb }) => verb === 'generate')?.memory.kvCache as number;
}

/** Of a batch of whole lengths in a cache of so many bytes, in one engine that nothing else uses. */
async function preemptions({ model, workers, options }: Setup, kvCacheBytes: number): Promise<number> {
  const rollout = { ...options.rollout, kvCacheBytes };
  const shared = { model: directoryOf(model), optim: null, worldSize: workers, numThreads: 1 };
  const actor = await Actor.create({ ...shared, ...options, rollout });
  try {
    const prompts = Array.from({ length: PROMPTS }, (_, p) =>
      Array.from({ length: PROMPT }, (_, i) => 1 + ((p * 31 + i * i + i * p) % 119)),
    );
    await actor.generate(prompts, { n: SAMPLES, maxNewTokens: RESPONSE, stopTokenIds: [] });
    return (await actor.rollout.stats()).preemptions;
  } finally {
    await actor.close();
  }
}

test.each(SETUPS)('a batch runs in the bytes of the plan, and not in 1 % less: $setup', async (setup) => {
  const planned = await plannedBytes(setup);
  const file = path.join(directoryOf(setup.model), 'config.json');
  const config = JSON.parse(readFileSync(file, 'utf8')) as Record<string, number>;
  const of = (key: string): number => config[key] as number;
  const kept =
    setup.model === 'moonlight'
      ? of('kv_lora_rank') + of('qk_rope_head_dim')
      : 2 * of('num_key_value_heads') * of('head_dim');
  const page = (PAGE_POSITIONS * of('num_hidden_layers') * kept * setup.bytes) / setup.parts;
  expect(planned % page).toBe(0);
  expect(planned / page).toBeGreaterThan(100);
  expect(await preemptions(setup, planned)).toBe(0);
  expect(await preemptions(setup, Math.floor(0.99 * planned))).toBeGreaterThan(0);
});
