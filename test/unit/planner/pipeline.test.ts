import { bubbleFraction, type PipelineShape, pipelineTimeline } from '../../../ts/planner/pipeline_timeline';
import { renderPipeline } from '../../../ts/planner/render_pipeline';

const shape = (o: Partial<PipelineShape>): PipelineShape => ({
  stages: 2,
  microBatches: 4,
  chunks: 1,
  order: '1f1b',
  backwardCost: 2,
  ...o,
});

const endOf = (s: PipelineShape): number =>
  Math.max(
    ...pipelineTimeline(s)
      .flat()
      .map(({ start, backward }) => start + (backward ? s.backwardCost : 1)),
  );

test('idle time is that of the formula, and each micro-batch passes each chunk once in either way', () => {
  for (const stages of [1, 2, 3, 4, 8]) {
    for (const chunks of stages === 1 ? [1] : [1, 2, 4]) {
      for (const microBatches of [stages, 2 * stages, 4 * stages]) {
        for (const backwardCost of [1, 2]) {
          const s = shape({ stages, chunks, microBatches, backwardCost });
          const work = microBatches * chunks * (1 + backwardCost);
          expect(endOf(s) / work - 1).toBeCloseTo(bubbleFraction(s), 10);
        }
      }
    }
  }
  for (const s of [shape({ stages: 4, microBatches: 5, chunks: 3 }), shape({ order: 'gpipe' })]) {
    for (const tasks of pipelineTimeline(s)) {
      const all = tasks.map(({ backward, chunk, micro }) => `${backward} ${chunk} ${micro}`);
      expect(new Set(all).size).toBe(2 * s.chunks * s.microBatches);
      expect(all).toHaveLength(2 * s.chunks * s.microBatches);
    }
  }
});

// Megatron's: (p - 1 - stage) forwards, with v chunks twice as many and (v - 1) p more, and then one before each backward.
test('how many forwards a stage computes before its first backward', () => {
  for (const stages of [2, 4]) {
    for (const chunks of [1, 2, 3]) {
      const s = shape({ stages, chunks, microBatches: 4 * stages });
      for (const [stage, tasks] of pipelineTimeline(s).entries()) {
        const after = stages - 1 - stage;
        const warmup = chunks === 1 ? after : 2 * after + (chunks - 1) * stages;
        expect(tasks.findIndex(({ backward }) => backward)).toBe(warmup + 1);
      }
    }
  }
  const [first] = pipelineTimeline(shape({ order: 'gpipe' }));
  expect(first?.findIndex(({ backward }) => backward)).toBe(4);
});

test('a drawing of two stages', () => {
  expect(renderPipeline('actor', shape({}))).toEqual([
    'pipeline of the actor: 2 stages, 1f1b, 4 micro-batches in an update',
    '  forwards are numbers, backwards in brackets take 2 forwards, · is idle',
    '  stage 0  1  2 ······[1   ] 3 [2   ] 4 [3   ]···[4   ]',
    '  stage 1 ··· 1 [1   ] 2 [2   ] 3 [3   ] 4 [4   ]',
    '  idle: 25.0 % of the work of a stage; (p - 1) / (v m) = 25.0 %',
  ]);
});

test('more tasks than a call has arguments', () => {
  const lines = renderPipeline('actor', shape({ microBatches: 40_000 }));
  expect(lines[1]).toMatch(/of 120003 units$/);
});

test('several chunks on one stage are refused', () => {
  expect(() => pipelineTimeline(shape({ stages: 1, chunks: 2 }))).toThrow(
    'expected at least 2 stages with 2 chunks each, got 1',
  );
});
