import { roleSpec } from '../../../ts/planner/role_parts';
import { engineOptions } from '../../../ts/roles/role_options';
import {
  actorSettings,
  criticSettings,
  type RoleSettings,
  referenceSettings,
} from '../../../ts/roles/role_settings';
import { createEngines } from '../../../ts/trainer/engines';
import { group, ppo } from './role_configs';

test('the keys of Megatron are those of the strategy megatron', () => {
  const config = ppo(
    'actor_rollout_ref.actor.strategy=megatron',
    'actor_rollout_ref.actor.megatron.tensor_model_parallel_size=2',
    'actor_rollout_ref.actor.megatron.optimizer_offload=true',
    'critic.strategy=megatron',
    'critic.megatron.use_distributed_optimizer=false',
    'critic.megatron.dtype=float32',
  );
  const reference = referenceSettings(config) as NonNullable<ReturnType<typeof referenceSettings>>;
  const [actor, ref, critic] = [actorSettings(config), reference, criticSettings(config)].map((role) =>
    engineOptions(role, group, config),
  );
  expect(actor?.parallel).toMatchObject({
    tp: 2,
    sequenceParallel: true,
    sharding: 'shard_grad_op',
    fsdpSize: -1,
  });
  expect(actor?.offload).toEqual({ params: false, grads: false, optimizer: true });
  expect(ref?.parallel).toMatchObject({ tp: 2, sequenceParallel: true });
  expect(ref?.offload).toEqual({ params: false, grads: false, optimizer: false });
  expect(critic?.parallel).toMatchObject({ tp: 1, sequenceParallel: false, fsdpSize: 1 });
  expect(critic?.dtype).toBe('float32');
  const target = { device: 'cpu', worldSize: 4 } as const;
  expect(roleSpec(actorSettings(config), target).layout.parallel).toEqual({
    tp: 2,
    cp: 1,
    sequenceParallel: true,
    ep: 1,
  });
});

test('what Megatron recomputes: whole blocks, attention alone, or what the model says', () => {
  const section = 'actor_rollout_ref.actor.megatron.override_transformer_config';
  const recomputes = (...keys: string[]) => {
    const config = ppo('critic.megatron.override_transformer_config.recompute_granularity=full', ...keys);
    return [actorSettings(config), criticSettings(config)].map(
      ({ gradientCheckpointing }) => gradientCheckpointing,
    );
  };
  const advice = (...keys: string[]) => actorSettings(ppo(...keys)).keys.gradientCheckpointing;
  const megatron = ['actor_rollout_ref.actor.strategy=megatron', 'critic.strategy=megatron'];
  const off = ['actor_rollout_ref.model', 'critic.model'].map(
    (model) => `${model}.enable_gradient_checkpointing=false`,
  );
  expect(recomputes(...megatron)).toEqual([true, true]);
  expect(recomputes(...megatron, ...off)).toEqual([false, true]);
  expect(recomputes(...megatron, `${section}.recompute_granularity=selective`)).toEqual([false, true]);
  expect(recomputes(...megatron, ...off, `${section}.recompute_granularity=full`)).toEqual([true, true]);
  const selective = `${section}.recompute_granularity=selective`;
  expect(advice(...megatron, selective)).toBe(`${section}.recompute_granularity=full`);
  const ofTheModel = 'actor_rollout_ref.model.enable_gradient_checkpointing=true';
  expect([advice(...megatron), advice(selective)]).toEqual([ofTheModel, ofTheModel]);
  expect(() => recomputes(...megatron, `${section}.recompute_granularity=partial`)).toThrow(
    /recompute_granularity.*full.*selective/,
  );
});

test('a pipeline in configurations', async () => {
  const section = 'actor_rollout_ref.actor.megatron';
  const config = ppo(
    'actor_rollout_ref.actor.strategy=megatron',
    `${section}.pipeline_model_parallel_size=2`,
    `${section}.virtual_pipeline_model_parallel_size=2`,
    `${section}.override_transformer_config.account_for_embedding_in_pipeline_split=true`,
    'critic.strategy=megatron',
    'critic.megatron.pipeline_model_parallel_size=2',
    'critic.megatron.expert_model_parallel_size=2',
    'critic.megatron.override_transformer_config.num_layers_in_last_pipeline_stage=1',
  );
  const of = (role: RoleSettings) => engineOptions(role, group, config).parallel;
  expect(of(actorSettings(config))).toMatchObject({ tp: 1, pp: 2, vpp: 2, countEmbedding: true });
  expect(of(referenceSettings(config) as RoleSettings)).toMatchObject({ pp: 2, vpp: 2 });
  expect(of(criticSettings(config))).toMatchObject({ pp: 2, vpp: 1, ep: 2, lastStageLayers: 1 });
  expect(() => roleSpec(criticSettings(config), { device: 'cpu', worldSize: 4 })).toThrow(
    /^critic\.megatron\.expert_model_parallel_size: the model in .* has no experts that 2 workers could share: expected 1/,
  );
  expect(() => roleSpec(actorSettings(config), { device: 'cpu', worldSize: 4 })).toThrow(
    /parallel\.pp 2 x parallel\.vpp 2: 2 layers do not make 4 parts/,
  );
});

test('a layout that the model does not allow is refused before a worker is started', async () => {
  const config = ppo(
    'actor_rollout_ref.actor.strategy=megatron',
    'actor_rollout_ref.actor.megatron.pipeline_model_parallel_size=4',
  );
  const launcher = {
    start: () => {
      throw new Error('a worker was started');
    },
  };
  const needs = {
    reference: false,
    critic: false,
    rewardModel: false,
    totalSteps: 1,
    device: 'cpu' as const,
  };
  await expect(createEngines(config, { ...needs, launcher })).rejects.toThrow(
    /actor\.megatron\] parallel\.pp 4 x parallel\.vpp 1: \d layers do not make 4 parts/,
  );
});

test.each([
  [
    ['actor_rollout_ref.actor.megatron.tensor_model_parallel_size=2'],
    /tensor_model_parallel_size: expected actor_rollout_ref\.actor\.strategy megatron beside 2, got fsdp/,
  ],
  [
    [
      'actor_rollout_ref.actor.strategy=megatron',
      'actor_rollout_ref.actor.megatron.tensor_model_parallel_size=3',
    ],
    /expected a divisor of the number of workers \(4, .*got 3/,
  ],
  [
    [
      'critic.strategy=megatron',
      'critic.megatron.tensor_model_parallel_size=2',
      'critic.ulysses_sequence_parallel_size=2',
    ],
    /expected 1 beside critic\.ulysses_sequence_parallel_size 2, got 2/,
  ],
  [
    ['critic.megatron.pipeline_model_parallel_size=2'],
    /pipeline_model_parallel_size: expected critic\.strategy megatron beside 2, got fsdp/,
  ],
  [
    [
      'critic.strategy=megatron',
      'critic.megatron.pipeline_model_parallel_size=4',
      'critic.megatron.tensor_model_parallel_size=2',
    ],
    /expected tensor_model_parallel_size \(2\) x pipeline_model_parallel_size \(4\) to divide the number of workers \(4,/,
  ],
  [
    ['critic.strategy=megatron', 'critic.megatron.virtual_pipeline_model_parallel_size=2'],
    /expected pipeline_model_parallel_size of at least 2 beside 2, got 1/,
  ],
  [
    [
      'critic.strategy=megatron',
      'critic.megatron.pipeline_model_parallel_size=2',
      'critic.megatron.override_transformer_config.num_layers_in_last_pipeline_stage=1',
      'critic.megatron.override_transformer_config.account_for_loss_in_pipeline_split=true',
    ],
    /account_for_loss_in_pipeline_split: expected false beside num_layers_in_last_pipeline_stage/,
  ],
  [
    ['critic.strategy=megatron', 'critic.model.fsdp_config.param_offload=true'],
    /critic\.model\.fsdp_config\.param_offload: not read beside strategy megatron: give critic\.megatron\.param_offload/,
  ],
  [
    ['critic.strategy=megatron', 'critic.model.fsdp_config.model_dtype=bf16'],
    /critic\.model\.fsdp_config\.model_dtype: not read beside strategy megatron, whose master weights are float32/,
  ],
  [
    ['actor_rollout_ref.actor.strategy=megatron', 'actor_rollout_ref.actor.fsdp_config.fsdp_size=2'],
    /actor\.fsdp_config\.fsdp_size: not read beside strategy megatron: .*use_distributed_optimizer/,
  ],
  [
    [
      'critic.strategy=megatron',
      'critic.megatron.tensor_model_parallel_size=2',
      'critic.megatron.expert_model_parallel_size=4',
    ],
    /expert_model_parallel_size: expected a divisor of the 2 workers that share the data \(4 \/ tensor_model_parallel_size 2/,
  ],
  [
    ['critic.megatron.context_parallel_size=2'],
    /context_parallel_size: expected critic\.strategy megatron beside 2, got fsdp/,
  ],
  [
    [
      'critic.strategy=megatron',
      'critic.megatron.tensor_model_parallel_size=2',
      'critic.megatron.context_parallel_size=4',
    ],
    /context_parallel_size: expected a divisor of the 2 workers that have the same part .*tensor_model_parallel_size 2.*, got 4/,
  ],
  [
    [
      'critic.strategy=megatron',
      'critic.megatron.context_parallel_size=2',
      'critic.ulysses_sequence_parallel_size=2',
    ],
    /context_parallel_size: expected 1 beside critic\.ulysses_sequence_parallel_size 2, got 2/,
  ],
  [
    ['critic.strategy=megatron', 'critic.megatron.dynamic_context_parallel=true'],
    /dynamic_context_parallel: .*changes from batch to batch/,
  ],
])('%s', (overrides, message) => {
  expect(() => ppo('algorithm.adv_estimator=gae', ...overrides)).toThrow(message);
});

test('context parallelism is a part of the layout, and a micro-batch has its ranks times as many tokens', () => {
  const key = 'actor_rollout_ref.actor';
  const config = ppo(
    `${key}.strategy=megatron`,
    `${key}.megatron.context_parallel_size=2`,
    `${key}.ppo_max_token_len_per_gpu=700`,
    'actor_rollout_ref.ref.log_prob_max_token_len_per_gpu=600',
  );
  const actor = engineOptions(actorSettings(config), group, config);
  expect(actor).toMatchObject({ parallel: { tp: 1, cp: 2 }, maxTokensPerMicroBatch: 1400 });
  const reference = engineOptions(referenceSettings(config) as RoleSettings, group, config);
  expect(reference).toMatchObject({ parallel: { cp: 2 }, maxTokensPerMicroBatch: 1200 });
  expect(engineOptions(criticSettings(config), group, config).parallel).not.toHaveProperty('cp');
});
