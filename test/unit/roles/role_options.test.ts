import type { ResolvedConfig } from '../../../ts/config/config';
import { rewardModelRole } from '../../../ts/planner/reward_model_role';
import { roleSpec } from '../../../ts/planner/role_parts';
import { engineOptions, trainedOptions } from '../../../ts/roles/role_options';
import {
  actorSettings,
  criticSettings,
  type RoleSettings,
  referenceSettings,
  rewardModelSettings,
  sftSettings,
} from '../../../ts/roles/role_settings';
import { group, model, ppo, sft } from './role_configs';

test('a micro-batch has the tokens of all ranks that share it, for every role, and so it is planned', () => {
  const config = ppo(
    'actor_rollout_ref.actor.ulysses_sequence_parallel_size=2',
    'actor_rollout_ref.actor.ppo_max_token_len_per_gpu=100',
    'actor_rollout_ref.ref.ulysses_sequence_parallel_size=1',
    'actor_rollout_ref.ref.log_prob_max_token_len_per_gpu=300',
    'critic.ulysses_sequence_parallel_size=4',
    'critic.ppo_max_token_len_per_gpu=50',
    'reward.reward_model.ulysses_sequence_parallel_size=2',
    'reward.reward_model.forward_max_token_len_per_gpu=70',
  );
  const roles = [
    actorSettings(config),
    referenceSettings(config) as NonNullable<ReturnType<typeof referenceSettings>>,
    criticSettings(config),
    rewardModelSettings(config),
  ];
  const options = roles.map((role) => engineOptions(role, group, config));
  expect(options.map((o) => [o.name, o.maxTokensPerMicroBatch, o.parallel?.ulysses])).toEqual([
    ['actor', 200, 2],
    ['ref', 300, 1],
    ['critic', 200, 4],
    ['reward_model', 140, 2],
  ]);
  const target = { device: 'cpu', worldSize: 4 } as const;
  const planned = roles.map((role) => roleSpec(role, target));
  expect(planned.map(({ name, capacity, ulysses }) => [name, capacity, ulysses])).toEqual([
    ['actor', 100, 2],
    ['reference', 300, 1],
    ['critic', 50, 4],
    ['reward model', 70, 2],
  ]);
  expect(rewardModelRole(config, target)).toMatchObject({ capacity: 71, uncounted: 1 });
  const tuned = sft(
    'data.max_token_len_per_gpu=100',
    'ulysses_sequence_parallel_size=2',
    'trainer.n_gpus_per_node=2',
  );
  expect(engineOptions(sftSettings(tuned), group, tuned).maxTokensPerMicroBatch).toBe(200);
});

test('what the trainer shards and offloads is what is planned', () => {
  const fsdp = 'actor_rollout_ref.actor.fsdp_config';
  const config = ppo(
    `${fsdp}.fsdp_size=2`,
    `${fsdp}.reshard_after_forward=false`,
    `${fsdp}.optimizer_offload=true`,
    `${fsdp}.forward_prefetch=true`,
    'actor_rollout_ref.ref.fsdp_config.param_offload=true',
    'critic.model.fsdp_config.fsdp_size=1',
  );
  const target = { device: 'cuda', worldSize: 4 } as const;
  const actor = actorSettings(config);
  expect(engineOptions(actor, group, config, 'mini_batch')).toMatchObject({
    parallel: { fsdpSize: 2, sharding: 'shard_grad_op', prefetch: true, reduce: 'mini_batch' },
    offload: { params: false, grads: false, optimizer: true },
  });
  expect(roleSpec(actor, target)).toMatchObject({
    dtype: 'bfloat16',
    strategy: 'shard_grad_op',
    shardSize: 2,
    placement: { prefetch: true, offload: { parameters: false, gradients: false, moments: true } },
  });
  const reference = referenceSettings(config) as NonNullable<ReturnType<typeof referenceSettings>>;
  expect(roleSpec(reference, target)).toMatchObject({
    strategy: 'shard_grad_op',
    placement: { prefetch: false, offload: { parameters: true, gradients: false, moments: false } },
  });
  expect(roleSpec(criticSettings(config), target)).toMatchObject({ strategy: 'no_shard', shardSize: null });
});

test('only a role that learns has an optimiser; with LoRA the reference is the actor', () => {
  const config = ppo('actor_rollout_ref.actor.optim.lr=0.5', 'actor_rollout_ref.actor.grad_clip=0');
  expect(trainedOptions(actorSettings(config), 9)).toMatchObject({
    optim: { lr: 0.5, gradClip: Number.MAX_VALUE, totalSteps: 9 },
  });
  expect(referenceSettings(config)?.optim).toBeNull();
  expect(referenceSettings(ppo('actor_rollout_ref.model.lora_rank=2'))).toBeNull();
});

test('masters in bfloat16 are computed with as they are, in the plan too, and the reference beside them', () => {
  const config = ppo(
    'actor_rollout_ref.actor.fsdp_config.model_dtype=bf16',
    'critic.model.fsdp_config.model_dtype=fp32',
  );
  const actor = actorSettings(config);
  expect(trainedOptions(actor, 9).masterDtype).toBe('bfloat16');
  expect(engineOptions(actor, group, config).dtype).toBe('bfloat16');
  expect(roleSpec(actor, { device: 'cpu', worldSize: 4 })).toMatchObject({
    dtype: 'bfloat16',
    masterDtype: 'bfloat16',
  });
  expect(referenceSettings(config)).toMatchObject({ dtype: 'bfloat16', optim: null });
  expect(trainedOptions(criticSettings(config), 9)).not.toHaveProperty('masterDtype');
  expect(trainedOptions(sftSettings(sft('engine.model_dtype=bfloat16')), 9).masterDtype).toBe('bfloat16');
});

test('gradients are sent in bfloat16 where mixed_precision says so, with either strategy, and the plan knows', () => {
  const key = 'fsdp_config.mixed_precision.reduce_dtype';
  const parallelOf = (config: ResolvedConfig) =>
    engineOptions(actorSettings(config), group, config).parallel as { reduceDtype?: string };
  const config = ppo(`actor_rollout_ref.actor.${key}=bf16`, `critic.model.${key}=fp32`);
  expect(parallelOf(config).reduceDtype).toBe('bfloat16');
  expect(roleSpec(actorSettings(config), { device: 'cpu', worldSize: 4 }).placement.reduceDtype).toBe(
    'bfloat16',
  );
  expect(roleSpec(criticSettings(config), { device: 'cpu', worldSize: 4 }).placement.reduceDtype).toBe(
    'float32',
  );
  expect(parallelOf(ppo())).not.toHaveProperty('reduceDtype');
  const megatron = ppo(
    'actor_rollout_ref.actor.strategy=megatron',
    `actor_rollout_ref.actor.${key}=bfloat16`,
  );
  expect(parallelOf(megatron).reduceDtype).toBe('bfloat16');
  const supervised = sftSettings(sft('engine.mixed_precision.reduce_dtype=bf16'));
  expect(supervised.fsdp.mixed_precision?.reduce_dtype).toBe('bf16');
});

test('what learns is saved with the tokenizer that its data went through', () => {
  const config = ppo(
    'actor_rollout_ref.model.tokenizer_path=/other',
    'actor_rollout_ref.model.custom_chat_template=mine',
  );
  const used = { directory: '/other', chatTemplate: 'mine' };
  expect(trainedOptions(actorSettings(config), 9).savedTokenizer).toEqual(used);
  expect(trainedOptions(criticSettings(config), 9).savedTokenizer).toEqual(used);
  expect(trainedOptions(criticSettings(ppo()), 9).savedTokenizer).toEqual({
    directory: model,
    chatTemplate: null,
  });
  const tuned = sft('model.tokenizer_path=/other', 'model.custom_chat_template=mine');
  expect(trainedOptions(sftSettings(tuned), 9).savedTokenizer).toEqual(used);
});

test.each([
  ['-1', 3],
  ['0', 3],
  ['2', 2],
])('lr_warmup_steps %s: %d of 30 steps with a ratio of 0.1', (steps, expected) => {
  const warmup = [`optim.lr_warmup_steps=${steps}`, 'optim.lr_warmup_steps_ratio=0.1'];
  const actor = ppo(...warmup.map((key) => `actor_rollout_ref.actor.${key}`));
  expect(trainedOptions(actorSettings(actor), 30).optim?.warmupSteps).toBe(expected);
  expect(trainedOptions(sftSettings(sft(...warmup)), 30).optim?.warmupSteps).toBe(expected);
});

test('positions in place of those of config.json reach the roles that use the model', () => {
  const key = 'model.override_config.max_position_embeddings';
  const config = ppo(`actor_rollout_ref.${key}=9000`, `critic.${key}=8000`);
  const of = (role: RoleSettings) => engineOptions(role, group, config).maxPositionEmbeddings;
  expect(of(actorSettings(config))).toBe(9000);
  expect(of(referenceSettings(config) as RoleSettings)).toBe(9000);
  expect(of(criticSettings(config))).toBe(8000);
  expect(of(actorSettings(ppo()))).toBeUndefined();
});
