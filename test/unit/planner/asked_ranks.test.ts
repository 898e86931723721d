import { askedRanks } from '../../../ts/planner/asked_ranks';

const pools = (rollout: object, machine = {}) => ({
  trainer: { nnodes: 2, ...machine },
  actor_rollout_ref: { rollout },
});

test('all ranks of a configuration, on one machine', () => {
  expect(askedRanks(pools({ nnodes: 3, n_gpus_per_node: 4 }, { n_gpus_per_node: 8 }), null)).toEqual({
    policy: 16,
    rollout: 12,
    reward: 0,
    overrides: [
      'trainer.nnodes=1',
      'trainer.n_gpus_per_node=16',
      'actor_rollout_ref.rollout.nnodes=1',
      'actor_rollout_ref.rollout.n_gpus_per_node=12',
    ],
  });
});

// Its key has the trainer's value where it is not given, which is another one here.
test('a pool of one rank has one where the policy gets more', () => {
  expect(askedRanks(pools({ nnodes: 1 }), 4)).toMatchObject({
    policy: 3,
    rollout: 1,
    overrides: expect.arrayContaining(['actor_rollout_ref.rollout.n_gpus_per_node=1']),
  });
});

test('the reward model has as many ranks as a machine of verl unless it says how many', () => {
  const tree = (keys: object) => ({
    trainer: { n_gpus_per_node: 2 },
    reward: { reward_model: { enable: true, enable_resource_pool: true, ...keys } },
  });
  expect(askedRanks(tree({ nnodes: 2 }), null)).toMatchObject({ policy: 2, reward: 16 });
  expect(askedRanks(tree({ nnodes: 1, n_gpus_per_node: 1 }), 3)).toEqual({
    policy: 2,
    rollout: 0,
    reward: 1,
    overrides: [
      'trainer.nnodes=1',
      'trainer.n_gpus_per_node=2',
      'reward.reward_model.nnodes=1',
      'reward.reward_model.n_gpus_per_node=1',
    ],
  });
});

test('GPUs of which the pools beside the policy leave none are refused', () => {
  const taken = pools({ nnodes: 1, n_gpus_per_node: 2 });
  expect(askedRanks(taken, 3).policy).toBe(1);
  for (const gpus of [1, 2]) expect(() => askedRanks(taken, gpus)).toThrow(`--gpus ${gpus}: expected more`);
});
