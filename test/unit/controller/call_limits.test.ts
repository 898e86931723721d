import { CallLimits } from '../../../ts/controller/call_limits';
import { workOf } from '../../../ts/controller/call_work';
import type { NewRequest } from '../../../ts/controller/worker_requests';

const LIMITS = { fixedMs: null, factor: 10, floorMs: 2_000 };
const UPDATE = "updatePolicy of 'actor'";
const work = (tokens: number, longest = 10) => ({ tokens, longest });

test('ten times the slowest call so far, but no less than the floor', () => {
  const limits = new CallLimits(LIMITS, 2);
  expect(limits.of(UPDATE, work(100))).toBeNull();
  limits.measured(UPDATE, work(100), 300);
  limits.measured(UPDATE, work(100), 400);
  expect(limits.of(UPDATE, work(100))?.ms).toBe(4_000);
  expect(limits.of("updateCritic of 'critic'", work(100))).toBeNull();
  for (let i = 0; i < 100; i++) limits.measured(UPDATE, work(100), 20);
  expect(limits.of(UPDATE, work(100))?.ms).toBe(4_000);
  const fast = new CallLimits(LIMITS, 2);
  fast.measured(UPDATE, work(100), 20);
  expect(fast.of(UPDATE, work(100))).toMatchObject({
    ms: 2_000,
    why: expect.stringMatching(/^trainer\.worker_timeouts\.call_floor; the slowest .* took 0\.020 s/),
  });
});

test('turns that decode do not make one that takes up a long prompt look like a hang', () => {
  const limits = new CallLimits(LIMITS, 1);
  const turn = "rolloutTurn of 'actor'";
  limits.measured(turn, work(0, 0), 3_000);
  for (let i = 0; i < 1_000; i++) limits.measured(turn, work(0, 0), 20 + (i % 7));
  expect(limits.of(turn, work(0, 0))?.ms).toBe(30_000);
});

test('more work has more time, less work no less', () => {
  const limits = new CallLimits(LIMITS, 1);
  limits.measured(UPDATE, work(1_000, 100), 1_000);
  expect(limits.of(UPDATE, work(1_000, 100))?.ms).toBe(10_000);
  expect(limits.of(UPDATE, work(10, 10))?.ms).toBe(10_000);
  expect(limits.of(UPDATE, work(8_000, 100))?.ms).toBe(80_000);
  expect(limits.of(UPDATE, work(8_000, 400))?.ms).toBe(320_000);
});

test('a limit that is given holds for every call, none where there is to be none; files have no limit', () => {
  const fixed = new CallLimits({ ...LIMITS, fixedMs: 5_000 }, 1);
  expect(fixed.of(UPDATE, work(1))).toEqual({ ms: 5_000, why: 'trainer.worker_timeouts.call' });
  fixed.measured(UPDATE, work(1), 4_000);
  expect(fixed.of(UPDATE, work(1_000))?.ms).toBe(5_000);
  expect(fixed.of("exportTensors of 'actor'", work(1))).toBeNull();
  expect(fixed.of("createEngine 'actor'", work(1))).toBeNull();
  const none = new CallLimits({ ...LIMITS, factor: 0 }, 1);
  none.measured(UPDATE, work(1), 10);
  expect(none.of(UPDATE, work(1))).toBeNull();
});

test('the work of a call is its tokens, over all epochs, and the longest of its sequences', () => {
  const call = (args: unknown[]): NewRequest => ({
    type: 'callEngine',
    engine: 'actor',
    method: 'any',
    args,
  });
  const batch = {
    tokens: new Int32Array(9),
    seqOffsets: Int32Array.of(0, 2, 7, 9),
    promptLens: new Int32Array(3),
  };
  expect(workOf(call([batch, 1, true]))).toEqual({ tokens: 9, longest: 5 });
  expect(workOf(call([{ tokens: batch }, {}, { offsets: [], epochs: 4 }]))).toEqual({
    tokens: 36,
    longest: 5,
  });
  expect(workOf(call([{ tokens: new Int32Array(4) }, null, 'x']))).toEqual({ tokens: 0, longest: 0 });
  expect(workOf({ type: 'callBinding', method: 'memoryInfo', args: [] })).toEqual({ tokens: 0, longest: 0 });
});

test('the answers of all ranks to one call are one: the slowest, of which the one with the least work counts', () => {
  const limits = new CallLimits(LIMITS, 2);
  limits.measured(UPDATE, work(100), 1_000);
  limits.measured(UPDATE, work(50), 500);
  // Of a later call with much more work.
  limits.measured(UPDATE, work(10_000), 9_000);
  limits.measured(UPDATE, work(10_000), 8_000);
  expect(limits.of(UPDATE, work(50))?.ms).toBe(90_000);
  // 200 times as much as in the first one.
  expect(limits.of(UPDATE, work(10_000))?.ms).toBe(2_000_000);
  expect(limits.of(UPDATE, work(20_000))?.ms).toBe(4_000_000);
});

test('of many calls the slowest ones are remembered', () => {
  const limits = new CallLimits(LIMITS, 1);
  limits.measured(UPDATE, work(1), 1_000);
  for (let i = 0; i < 16; i++) limits.measured(UPDATE, work(1_000), 2_000);
  // The one of little work was the fastest: it would have had a thousand times as long.
  expect(limits.of(UPDATE, work(1_000))?.ms).toBe(20_000);
});
