import { configNotes } from '../../../ts/config/config';
import { rolloutOptions } from '../../../ts/roles/settings';
import { ppo } from './role_configs';

test('a note says that no step is kept where none is named', () => {
  const notes = (...keys: string[]) => configNotes(ppo(...keys)).map(({ path }) => path);
  expect(notes('skip.rollout.enable=true')).toContain('skip.rollout.enable');
  expect(notes('skip.rollout.enable=true', 'skip.rollout.steps=[1]')).not.toContain('skip.rollout.enable');
  expect(notes('skip.rollout.steps=[]')).not.toContain('skip.rollout.enable');
});

test('ranks decode together under FSDP; under Megatron, and where servers generate, a note says why the key does not count', () => {
  const key = 'actor_rollout_ref.rollout.tensor_model_parallel_size';
  const decoding = (...keys: string[]) => {
    const config = ppo('trainer.n_gpus_per_node=4', ...keys);
    const notes = configNotes(config).filter(({ path }) => path === key);
    return [rolloutOptions(config).tensorParallel, ...notes.map(({ reason }) => reason)];
  };
  const megatron = [
    'actor_rollout_ref.actor.strategy=megatron',
    'actor_rollout_ref.actor.megatron.tensor_model_parallel_size=4',
  ];
  const server = ['actor_rollout_ref.rollout.name=vllm', 'actor_rollout_ref.rollout.mode=server'];
  expect(decoding()).toEqual([1]);
  expect(decoding(`${key}=4`, 'trainer.nnodes=2')).toEqual([4]);
  expect(decoding(`${key}=3`, 'trainer.nnodes=3')).toEqual([
    3,
    expect.stringMatching(/of 3 neighbouring workers some are on two machines \(4 on each\)/),
  ]);
  expect(decoding(`${key}=2`)).toEqual([2]);
  expect(decoding(`${key}=4`, ...megatron)).toEqual([1]);
  expect(decoding(`${key}=2`, ...megatron)).toEqual([
    1,
    'under strategy megatron generation is laid out as training (4)',
  ]);
  expect(decoding(`${key}=8`, ...server, 'actor_rollout_ref.rollout.server.addresses=[http://a:1]')).toEqual([
    1,
    'the servers were started by somebody else',
  ]);
});
