import path from 'node:path';
import { Actor } from '../../../ts/actor/actor';
import { resolveEngineOptions } from '../../../ts/engine/engine_options';
import { tensorProblem } from '../../../ts/model/tensor_parts';

// Layouts of tensor parallelism, before any worker is started.
const model = path.join(__dirname, '../../fixtures/conformance/models/llama_gqa/actor');
const resolve = (worldSize: number, parallel: object, strategy?: 'fsdp' | 'megatron') =>
  resolveEngineOptions({ model, worldSize, parallel, ...(strategy ? { strategy } : {}) }, 'actor', 1e-6);

test('ranks of a tensor-parallel group are no ranks of data parallelism', () => {
  expect(resolve(8, { tp: 2, fsdpSize: 2 })).toMatchObject({
    parallel: { tp: 2, sequenceParallel: false },
    sharding: 'full_shard',
    shardSize: 2,
  });
  expect(resolve(8, { tp: 2, fsdpSize: 4 }).shardSize).toBe(0);
  expect(() => resolve(8, { tp: 2, fsdpSize: 3 })).toThrow(/8 \/ 2 = 4, or more than it/);
});

test('sequence parallelism is nothing for a worker alone', () => {
  expect(resolve(2, { tp: 2, sequenceParallel: true }).parallel.sequenceParallel).toBe(true);
  expect(resolve(2, { sequenceParallel: true }).parallel.sequenceParallel).toBe(false);
});

test('megatron shards what its distributed optimiser does, unless it is told otherwise', () => {
  expect(resolve(4, { tp: 2 }, 'megatron').sharding).toBe('shard_grad_op');
  expect(resolve(4, { tp: 2, fsdpSize: 1 }, 'megatron').sharding).toBe('no_shard');
  expect(resolve(4, { tp: 2, sharding: 'full_shard' }, 'megatron').sharding).toBe('full_shard');
});

test('impossible layouts are refused with the numbers', async () => {
  expect(() => resolve(6, { tp: 4 })).toThrow(/parallel\.tp 4: expected tp\(4\) x dp = worldSize\(6\)/);
  expect(() => resolve(4, { tp: 2, ulysses: 2 })).toThrow(/parallel\.ulysses 2, parallel\.tp 2: both share/);
  expect(() => resolve(4, { tp: 0 })).toThrow(/parallel\.tp/);
  // Before workers are started: the launcher is not asked.
  const launcher = {
    start: () => {
      throw new Error('a worker was started');
    },
  };
  await expect(
    Actor.create({ model, worldSize: 3, device: 'cpu', parallel: { tp: 3 }, launcher }),
  ).rejects.toThrow(/parallel\.tp 3: expected a divisor of the \d+ attention heads of the model in/);
});

test('ranks of a context are neighbours that share the state, and whose numbers come out', () => {
  expect(resolve(8, { tp: 2, cp: 2 })).toMatchObject({ parallel: { tp: 2, cp: 2 }, shardSize: 0 });
  expect(resolve(8, { cp: 2, fsdpSize: 4 })).toMatchObject({ shardSize: 4 }); // of all ranks, those of a context among them
  expect(() => resolve(8, { tp: 2, cp: 3 })).toThrow(
    /parallel\.cp 3: expected a divisor of worldSize \/ parallel\.tp = 8 \/ 2 = 4/,
  );
  expect(() => resolve(8, { pp: 4, cp: 4 })).toThrow(/parallel\.cp 4: expected a divisor of .*8 \/ 4 = 2/);
  expect(() => resolve(4, { cp: 2, ulysses: 2 })).toThrow(/parallel\.ulysses 2, parallel\.cp 2: both share/);
  expect(() => resolve(4, { cp: 0 })).toThrow(/parallel\.cp/);
});

test('experts are shared by ranks of data parallelism', async () => {
  expect(resolve(8, { tp: 2, ep: 4 })).toMatchObject({ parallel: { tp: 2, ep: 4 }, shardSize: 0 });
  expect(() => resolve(8, { tp: 2, ep: 3 })).toThrow(/parallel\.ep 3: expected a divisor of .*8 \/ 2 = 4/);
  expect(() => resolve(8, { ep: 2, fsdpSize: 4 })).toThrow(
    /fsdpSize 4: expected -1 or 1 beside parallel\.ep 2/,
  );
  const launcher = {
    start: () => {
      throw new Error('a worker was started');
    },
  };
  const create = (dir: string, ep: number) =>
    Actor.create({ model: dir, worldSize: ep, device: 'cpu', parallel: { ep }, launcher });
  await expect(create(model, 2)).rejects.toThrow(/parallel\.ep 2: expected a divisor of the 0 experts/);
  const mixture = path.join(__dirname, '../../fixtures/conformance/models/qwen3_moe/actor');
  await expect(create(mixture, 4)).rejects.toThrow(/parallel\.ep 4: expected a divisor of the 6 experts/);
});

test('heads must come out even', () => {
  expect(tensorProblem(4, { numHeads: 14, numKvHeads: 2 })).toBe(
    'expected a divisor of the 14 attention heads',
  );
  expect(tensorProblem(2, { numHeads: 6, numKvHeads: 3 })).toBe(
    'expected a divisor or a multiple of the 3 key heads',
  );
  expect(tensorProblem(8, { numHeads: 8, numKvHeads: 2 })).toBeNull();
  expect(tensorProblem(2, { numHeads: 8, numKvHeads: 4 })).toBeNull();
});
