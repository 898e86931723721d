import { failure, load } from './write_config';

const strategies = (overrides: string[]) => {
  const { actor_rollout_ref: roles, critic, reward } = load(overrides);
  return [roles.actor.strategy, critic.strategy, reward.reward_model.strategy];
};

it('model_engine=megatron is Megatron for actor and critic', () => {
  expect(strategies(['model_engine=megatron'])).toEqual(['megatron', 'megatron', 'fsdp']);
  expect(strategies(['model_engine=megatron', 'critic.strategy=null'])[1]).toBe('megatron');
  expect(strategies(['model_engine=dp'])).toEqual(['fsdp', 'fsdp', 'fsdp']);
});

it('a strategy that is given holds', () => {
  expect(strategies(['model_engine=megatron', 'critic.strategy=fsdp'])).toEqual(['megatron', 'fsdp', 'fsdp']);
});

it('the keys of Megatron are heeded beside it', () => {
  const { actor } = load([
    'model_engine=megatron',
    'trainer.n_gpus_per_node=2',
    'actor_rollout_ref.actor.megatron.tensor_model_parallel_size=2',
  ]).actor_rollout_ref;
  expect([actor.strategy, actor.megatron.tensor_model_parallel_size]).toEqual(['megatron', 2]);
});

it('other engines, and sections that are none, are refused as before', () => {
  expect(failure(['model_engine=veomni']).message).toMatch(/needs another engine than FSDP or Megatron/);
  expect(failure(['model_engine=megatron', 'critic=5']).message).toBe(
    'critic: expected a section with keys, got 5',
  );
});
