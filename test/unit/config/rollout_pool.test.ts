import { batchArithmetic, configNotes, describeConfig, loadConfig } from '../../../ts/config/config';
import { checkGpus, poolHosts, poolSizes } from '../../../ts/config/derived/pools';
import { decodingRanks } from '../../../ts/config/derived/rollout_place';
import { rolloutSettings } from '../../../ts/roles/role_settings';
import { rolloutOptions } from '../../../ts/roles/settings';
import { configError, MINIMAL, writeConfig } from './write_config';

// Workers that do nothing but generate.

const ROLLOUT = 'actor_rollout_ref.rollout';
const T = `${ROLLOUT}.tensor_model_parallel_size`;
const load = (...overrides: string[]) =>
  loadConfig(writeConfig(`${MINIMAL}\nalgorithm: { adv_estimator: grpo }\n`), overrides);
/** null: as many as the policy has. */
const pool = (nnodes: number, perNode: number | null) => [
  `${ROLLOUT}.nnodes=${nnodes}`,
  ...(perNode === null ? [] : [`${ROLLOUT}.n_gpus_per_node=${perNode}`]),
];
const notes = (...overrides: string[]): string[] =>
  configNotes(load(...overrides)).map(({ path, reason }) => `${path}: ${reason}`);

test('none by default; on, its ranks are beside those of the policy, as many on a machine unless it says otherwise', () => {
  expect(poolSizes(load('trainer.n_gpus_per_node=4'))).toEqual({ policy: 4 });
  expect(poolSizes(load('trainer.n_gpus_per_node=4', ...pool(1, 3)))).toEqual({ policy: 4, rollout: 3 });
  expect(poolSizes(load('trainer.n_gpus_per_node=4', ...pool(1, null)))).toEqual({ policy: 4, rollout: 4 });
  const three = load(
    'trainer.default_local_dir=/runs/x',
    'trainer.nnodes=3',
    'trainer.n_gpus_per_node=2',
    ...pool(2, 6),
    'reward.reward_model.enable=true',
    'reward.reward_model.model_path=rm',
    'reward.reward_model.enable_resource_pool=true',
    'reward.reward_model.nnodes=1',
    'reward.reward_model.n_gpus_per_node=1',
  );
  expect(poolSizes(three)).toEqual({ policy: 6, rollout: 12, reward: 1 });
  expect(Object.keys(poolSizes(three))).toEqual(['policy', 'rollout', 'reward']);
  expect(poolHosts(three)).toEqual({ policy: 3, rollout: 2, reward: 1 });
  expect(batchArithmetic(three)[0]).toBe(
    'pools: policy, 6 ranks; rollout, 12 ranks for generation alone; reward, 1 rank for the reward model alone; 19 worker processes',
  );
});

test('the model there: whole on each rank or cut by what decodes together, however it is laid out for training', () => {
  const megatron = [
    'trainer.n_gpus_per_node=8',
    'actor_rollout_ref.actor.strategy=megatron',
    'actor_rollout_ref.actor.megatron.tensor_model_parallel_size=4',
    'actor_rollout_ref.actor.megatron.context_parallel_size=2',
    'actor_rollout_ref.actor.megatron.dtype=float32',
    `${T}=2`,
  ];
  const own = load(...megatron, ...pool(1, 2));
  expect(decodingRanks(own)).toBe(2);
  expect(decodingRanks(load(...megatron))).toBe(1);
  expect(notes(...megatron, ...pool(1, 2))).toEqual([]);
  expect(rolloutSettings(own)).toMatchObject({
    name: 'rollout',
    model: 'model',
    dtype: 'float32',
    optim: null,
    ulysses: 1,
    layout: { tp: 1, pp: 1 },
    fsdp: { fsdp_size: -1, param_offload: false },
    tokensPerRank: 2 * own.actor_rollout_ref.actor.ppo_max_token_len_per_gpu,
  });
  // Its memory is wanted by nobody else.
  expect(rolloutOptions(own)).toMatchObject({ tensorParallel: 2, freeCacheEngine: false });
  expect(rolloutOptions(load()).freeCacheEngine).toBe(true);
});

test('what the names and keys of verl mean is said', () => {
  expect(notes(`${ROLLOUT}.name=vllm`, ...pool(1, 1))).toEqual([
    expect.stringMatching(/rollout\.name: responses come from our own engine in workers of their own/),
  ]);
  expect(notes(`${ROLLOUT}.n_gpus_per_node=8`)).toEqual([
    `${ROLLOUT}.n_gpus_per_node: has no effect without ${ROLLOUT}.nnodes`,
  ]);
  const two = ['trainer.default_local_dir=/runs/x', 'trainer.nnodes=2', `${T}=4`];
  expect(notes(...two, 'trainer.n_gpus_per_node=8', ...pool(2, 2))).toEqual([
    expect.stringMatching(/of 4 neighbouring workers some are on two machines \(2 on each\)/),
  ]);
  expect(notes(...two, 'trainer.n_gpus_per_node=2', ...pool(1, 4))).toEqual([]);
  // A configuration that is written down is read again.
  expect(poolSizes(loadConfig(writeConfig(describeConfig(load(...pool(1, null))))))).toEqual({
    policy: 1,
    rollout: 1,
  });
});

test.each<[string, string[], string, RegExp]>([
  [
    'a pool beside servers',
    [`${ROLLOUT}.name=vllm`, `${ROLLOUT}.mode=managed`, ...pool(1, 1)],
    `${ROLLOUT}.nnodes`,
    /1 asks for workers that generate with our own engine, but mode is managed/,
  ],
  [
    'machines that the run does not have',
    pool(2, 1),
    `${ROLLOUT}.nnodes`,
    /expected 0 or 1, got 2: a pool lies on the machines of the run/,
  ],
  ['no workers on a machine', pool(1, 0), `${ROLLOUT}.n_gpus_per_node`, /from 1 to 1024, got 0/],
  [
    'a number that does not divide the pool',
    ['trainer.n_gpus_per_node=4', `${T}=2`, ...pool(1, 3)],
    T,
    /divisor of the number of workers \(3, actor_rollout_ref\.rollout\.nnodes x actor_rollout_ref\.rollout\.n_gpus_per_node\), got 2/,
  ],
  [
    'a pool for what shares the workers of training',
    ['trainer.v1.trainer_mode=colocate_async', ...pool(1, 1)],
    'trainer.v1.trainer_mode',
    /colocate_async is for responses from the training workers, but rollout\.nnodes 1 asks for workers of their own/,
  ],
  [
    'responses from nowhere',
    ['trainer.v1.trainer_mode=separate_async'],
    'trainer.v1.trainer_mode',
    /separate_async needs .*: give them workers of their own \(actor_rollout_ref\.rollout\.nnodes and n_gpus_per_node\) or servers/,
  ],
])('%s: refused', (_, overrides, path, message) => {
  const error = configError(() => load(...overrides));
  expect(error.path).toBe(path);
  expect(error.message).toMatch(message);
});

test('a number that divides the pool need not divide the policy', () => {
  expect(decodingRanks(load('trainer.n_gpus_per_node=3', `${T}=2`, ...pool(1, 4)))).toBe(2);
  const asynchronous = load('trainer.v1.trainer_mode=separate_async', ...pool(1, 2));
  expect(poolSizes(asynchronous).rollout).toBe(2);
});

test('GPUs of several machines: one per worker on the one that has most', () => {
  const two = ['trainer.default_local_dir=/runs/x', 'trainer.nnodes=2', 'trainer.n_gpus_per_node=6'];
  const config = load('trainer.device=cuda', ...two, ...pool(1, 4));
  expect(() => checkGpus(config, 20)).not.toThrow();
  // As many as there are workers, but not where they are.
  expect(() => checkGpus(config, 16)).toThrow(
    /but a machine offers 8, and on the first one are 6 of the policy and 4 of the rollout/,
  );
});

test('GPUs: one per worker of all pools, where their number is known', () => {
  const config = load('trainer.device=cuda', 'trainer.n_gpus_per_node=6', ...pool(1, 2));
  for (const gpus of [null, 8]) expect(() => checkGpus(config, gpus)).not.toThrow();
  expect(() => checkGpus(config, 7)).toThrow(
    /^actor_rollout_ref\.rollout\.n_gpus_per_node: expected one GPU per worker, but this machine offers 7, and there are 6 of the policy and 2 of the rollout: with actor_rollout_ref\.rollout\.nnodes=0 the workers of the policy generate$/,
  );
});
