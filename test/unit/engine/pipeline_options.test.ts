import { resolveEngineOptions } from '../../../ts/engine/engine_options';

// Layouts of pipelines, before any worker is started.
const resolve = (worldSize: number, parallel: object) =>
  resolveEngineOptions({ model: 'somewhere', worldSize, parallel }, 'actor', 1e-6);

test('stages and tensor-parallel ranks are no ranks of data parallelism', () => {
  expect(resolve(16, { pp: 2, tp: 2, fsdpSize: 2 })).toMatchObject({
    parallel: { tp: 2 },
    pipeline: { stages: 2, chunks: 1, order: '1f1b' },
    shardSize: 2,
  });
  expect(() => resolve(16, { pp: 2, tp: 2, fsdpSize: 3 })).toThrow(/16 \/ \(2 x 2\) = 4, or more than it/);
});

test('layouts that do not come out are refused with the numbers', () => {
  expect(() => resolve(4, { pp: 2, tp: 4 })).toThrow(
    /parallel\.tp 4, parallel\.pp 2: expected tp\(4\) x pp\(2\) x dp = worldSize\(4\)/,
  );
  expect(() => resolve(4, { vpp: 2 })).toThrow(
    /parallel\.vpp 2: expected parallel\.pp >= 2 beside it, got 1/,
  );
  expect(() => resolve(4, { firstStageLayers: 2 })).toThrow(/expected parallel\.pp >= 2 beside them, got 1/);
  expect(() => resolve(4, { pp: 2, lastStageLayers: 1, countHead: true })).toThrow(
    /cannot be counted as layers/,
  );
  expect(() => resolve(4, { pp: 2, schedule: 'zero' })).toThrow(/parallel\.schedule/);
});
