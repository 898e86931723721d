import { mkdtempSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { loadConfig, type ResolvedConfig } from '../../../ts/config/config';
import { rewardModelRole } from '../../../ts/planner/reward_model_role';
import { engineOptions } from '../../../ts/roles/role_options';
import {
  actorSettings,
  type RoleSettings,
  referenceSettings,
  rewardModelSettings,
} from '../../../ts/roles/role_settings';
import { createEngines } from '../../../ts/trainer/engines';
import { FakeGroup } from '../actor/fake_group';

// verl's keys of its Megatron engine below the reference and the reward model, and how experts are shared.

const MODELS = join(__dirname, '../../fixtures/conformance/models');
const file = join(mkdtempSync(join(tmpdir(), 'megatron-')), 'run.yaml');
writeFileSync(
  file,
  `
data: { train_files: none.jsonl, train_batch_size: 8, max_prompt_length: 4, max_response_length: 4 }
actor_rollout_ref: { model: { path: ${MODELS}/llama_gqa/actor }, actor: { ppo_mini_batch_size: 4, use_kl_loss: true } }
reward: { reward_model: { enable: true, model_path: ${MODELS}/llama_gqa/critic } }
trainer: { n_gpus_per_node: 4, device: cpu }`,
);
const ppo = (...overrides: string[]): ResolvedConfig => loadConfig(file, overrides);
const group = new FakeGroup({}, 4).asGroup();

const ACTOR = 'actor_rollout_ref.actor';
const REF = 'actor_rollout_ref.ref.megatron';
const RM = 'reward.reward_model';
const megatron = `${ACTOR}.strategy=megatron`;
const [tp, pp, vpp, cp, ep, etp] = [
  'tensor_model_parallel_size',
  'pipeline_model_parallel_size',
  'virtual_pipeline_model_parallel_size',
  'context_parallel_size',
  'expert_model_parallel_size',
  'expert_tensor_parallel_size',
];
const reference = (config: ResolvedConfig) =>
  engineOptions(referenceSettings(config) as RoleSettings, group, config);

test('the reference lies as the actor does where it says nothing else', () => {
  const following = ppo(megatron, `${ACTOR}.megatron.${tp}=2`, `${ACTOR}.megatron.${pp}=2`);
  expect(reference(following).parallel).toMatchObject({ tp: 2, sequenceParallel: true, pp: 2 });
  const own = ppo(
    megatron,
    `${ACTOR}.megatron.${pp}=2`,
    `${ACTOR}.megatron.${vpp}=2`,
    `${ACTOR}.megatron.param_offload=true`,
    `${REF}.${pp}=1`,
    `${REF}.${tp}=4`,
    `${REF}.sequence_parallel=false`,
    `${REF}.use_distributed_optimizer=false`,
  );
  expect(engineOptions(actorSettings(own), group, own)).toMatchObject({
    parallel: { tp: 1, pp: 2, vpp: 2, sharding: 'shard_grad_op' },
    offload: { params: true },
  });
  expect(reference(own)).toMatchObject({
    parallel: { tp: 4, sequenceParallel: false, pp: 1, fsdpSize: 1 },
    offload: { params: false, grads: false, optimizer: false },
  });
  const offloaded = ppo(megatron, `${REF}.param_offload=true`, `${REF}.${cp}=2`);
  expect(reference(offloaded)).toMatchObject({ parallel: { cp: 2 }, offload: { params: true } });
  expect(reference(offloaded).maxTokensPerMicroBatch).toBe(2 * 16384);
});

test('the reward model has a layout of its own, by both names of its section', () => {
  const section = `${RM}.megatron`;
  const keys = [
    `${section}.${tp}=2`,
    `${section}.${cp}=2`,
    `${section}.param_offload=true`,
    `${section}.dtype=bfloat16`,
    `${RM}.forward_max_token_len_per_gpu=6`,
  ];
  const config = ppo(`${RM}.strategy=megatron`, ...keys);
  const settings = rewardModelSettings(config);
  expect(engineOptions(settings, group, config)).toMatchObject({
    parallel: { tp: 2, cp: 2, sequenceParallel: true, fsdpSize: 1 },
    offload: { params: true },
    dtype: 'bfloat16',
    maxTokensPerMicroBatch: 12, // 2 x 6, for 8 of the longest sequence
  });
  expect(rewardModelRole(config, { device: 'cpu', worldSize: 4 }).inference?.sequences).toBe(8);
  const older = ppo(...[`${RM}.strategy=megatron`, ...keys].map((key) => key.replace('reward.', '')));
  expect(rewardModelSettings(older)).toEqual(settings);
  const sharded = ppo(`${RM}.strategy=megatron`, `${section}.use_distributed_optimizer=true`);
  expect(engineOptions(rewardModelSettings(sharded), group, sharded).parallel).toMatchObject({
    sharding: 'shard_grad_op',
    fsdpSize: -1,
  });
});

test('a reward model that cannot be cut so is refused before a worker is started', async () => {
  const config = ppo(`${RM}.strategy=megatron`, `${RM}.megatron.${pp}=4`);
  const launcher = {
    start: () => {
      throw new Error('a worker was started');
    },
  };
  const needs = { reference: false, critic: false, rewardModel: true, totalSteps: 1, device: 'cpu' as const };
  await expect(createEngines(config, { ...needs, launcher })).rejects.toThrow(
    /reward_model\.megatron\] parallel\.pp 4 x parallel\.vpp 1: \d layers do not make 4 parts/,
  );
});

// Megatron's E x T ranks that share experts are tp x ours: each of ours is cut over tp.
test.each([
  [4, 1, null, 1],
  [2, 2, null, 2],
  [2, 2, 2, 2],
  [2, 4, 1, 2],
  [4, 4, 1, 1],
  [4, 1, 1, 1],
  [1, 4, 1, 4],
])('tp %d, ep %d, etp %j: %d groups of experts', (cut, experts, own, groups) => {
  const config = ppo(
    megatron,
    `${ACTOR}.megatron.${tp}=${cut}`,
    `${ACTOR}.megatron.${ep}=${experts}`,
    `${ACTOR}.megatron.${etp}=${own}`,
  );
  expect(actorSettings(config).layout).toMatchObject({ tp: cut, ep: groups });
  expect(referenceSettings(config)?.layout).toMatchObject({ tp: cut, ep: groups });
});

test('use_megatron_fsdp shards parameters, too', () => {
  const config = ppo(megatron, `${ACTOR}.megatron.use_megatron_fsdp=true`, `${ACTOR}.megatron.${tp}=2`);
  const { parallel } = engineOptions(actorSettings(config), group, config);
  expect(parallel).toMatchObject({ tp: 2, sharding: 'full_shard', fsdpSize: -1 });
});

test.each<[string[], RegExp]>([
  [
    [
      megatron,
      'trainer.n_gpus_per_node=12',
      `${ACTOR}.megatron.${tp}=4`,
      `${ACTOR}.megatron.${ep}=3`,
      `${ACTOR}.megatron.${etp}=2`,
    ],
    /expert_tensor_parallel_size: expected .* to be a divisor or a multiple of tensor_model_parallel_size \(4\).* got 3 x 2 = 6/,
  ],
  [
    [megatron, `${ACTOR}.megatron.${tp}=2`, `${ACTOR}.megatron.${ep}=4`, `${ACTOR}.megatron.${etp}=4`],
    /expert_model_parallel_size: expected a divisor of the 2 workers .*got 4 x expert_tensor_parallel_size 4 \/ 2 = 8/,
  ],
  [
    [
      megatron,
      `${ACTOR}.megatron.use_megatron_fsdp=true`,
      `${ACTOR}.megatron.use_distributed_optimizer=false`,
    ],
    /use_megatron_fsdp: expected use_distributed_optimizer true beside it, got false/,
  ],
  [
    [`${REF}.${tp}=2`],
    /ref\.megatron\.tensor_model_parallel_size: expected actor_rollout_ref\.actor\.strategy megatron beside 2, got fsdp/,
  ],
  [[megatron, `${REF}.${tp}=3`], /ref\.megatron\.tensor_model_parallel_size: expected a divisor .*got 3/],
  [
    [megatron, 'actor_rollout_ref.ref.fsdp_config.param_offload=true'],
    /ref\.fsdp_config\.param_offload: not read beside strategy megatron: give actor_rollout_ref\.ref\.megatron\.param_offload/,
  ],
  [
    [`${RM}.megatron.${tp}=2`],
    /reward_model\.megatron\.tensor_model_parallel_size: expected reward\.reward_model\.strategy megatron beside 2, got fsdp/,
  ],
  [
    [`${RM}.strategy=megatron`, `${RM}.model.fsdp_config.fsdp_size=2`],
    /reward_model\.model\.fsdp_config\.fsdp_size: not read beside strategy megatron/,
  ],
  [
    [
      `${RM}.strategy=megatron`,
      `${RM}.enable_resource_pool=true`,
      `${RM}.nnodes=1`,
      `${RM}.n_gpus_per_node=2`,
      `${RM}.megatron.${tp}=4`,
    ],
    /expected a divisor of the number of workers \(2, reward\.reward_model\.nnodes x reward\.reward_model\.n_gpus_per_node\), got 4/,
  ],
  [
    [`${RM}.strategy=megatron`, `${RM}.megatron.override_transformer_config.fp8=hybrid`],
    /reward_model\.megatron\.override_transformer_config\.fp8: .*training in fp8/,
  ],
])('%j is refused', (overrides, message) => {
  expect(() => ppo(...overrides)).toThrow(message);
});
