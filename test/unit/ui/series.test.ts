// Curves: what is thinned out keeps its peaks, axes add up, smoothing is TensorBoard's.
import { csvPieces } from '../../../ts/ui/csv';
import { Extremes, lowHigh } from '../../../ts/ui/extremes';
import { type SeriesRequest, SeriesStore } from '../../../ts/ui/series_store';
import { lowerBound, smoothed, thinned } from '../../../ts/ui/thinning';

const ASKED: SeriesRequest = { x: 'step', from: null, to: null, points: 100, smoothing: 0 };

describe('thinned', () => {
  const values = Float64Array.from({ length: 100_000 }, (_, i) => Math.sin(i / 1000));

  test('few enough points, in order, with both ends', () => {
    const chosen = thinned(values, 0, values.length, 500);
    expect(chosen.length).toBeLessThanOrEqual(500);
    expect(chosen.length).toBeGreaterThan(400);
    expect([chosen[0], chosen.at(-1)]).toEqual([0, 99_999]);
    expect(chosen).toEqual([...new Set(chosen)].sort((a, b) => a - b));
  });

  test('no peak is lost, wherever it is', () => {
    for (const at of [1, 777, 49_999, 99_998]) {
      const peaked = values.slice();
      peaked[at] = 50;
      peaked[at + 1] = -50;
      const chosen = thinned(peaked, 0, peaked.length, 100);
      expect([at, chosen.includes(at), chosen.includes(at + 1)]).toEqual([at, true, true]);
    }
  });

  test('all points where there are few; a part that has no finite value stays a gap', () => {
    expect(thinned(values, 10, 14, 100)).toEqual([10, 11, 12, 13]);
    const holes = new Float64Array(1000).fill(Number.NaN);
    holes[0] = 1;
    const chosen = thinned(holes, 0, 1000, 20);
    expect(chosen.filter((i) => Number.isNaN(holes[i] as number)).length).toBeGreaterThan(5);
  });
});

test('extremes of blocks are those of a look at every value, also after values were taken away and others added', () => {
  let seed = 1;
  const random = (below: number): number => {
    seed = (seed * 48_271) % 2_147_483_647;
    return seed % below;
  };
  const values = Float64Array.from({ length: 5000 }, () => (random(9) === 0 ? Number.NaN : random(50)));
  values.fill(Number.NaN, 1000, 1400);
  const extremes = new Extremes();
  for (let i = 0; i < 600; i++) {
    const [start, end] = [random(5000), random(5001)].sort((a, b) => a - b) as [number, number];
    expect([start, end, ...extremes.find(values, start, end)]).toEqual([
      start,
      end,
      ...lowHigh(values, start, end),
    ]);
    if (i % 100 !== 99) continue;
    const length = random(5000);
    extremes.truncate(length);
    for (let k = length; k < 5000; k++) values[k] = random(1000) - 500;
  }
});

test('lowerBound', () => {
  expect([0, 1, 2, 9].map((x) => lowerBound([1, 2, 2, 5], 4, x))).toEqual([0, 0, 1, 4]);
});

test('smoothing: the mean of equal values is that value, and what is not finite is left out', () => {
  expect([...smoothed([3, 3, 3], 3, 0.9)]).toEqual([3, 3, 3].map((x) => expect.closeTo(x, 12)));
  // (0.5·0.5·1 + 0.5·2) / (1 − 0.25), by hand.
  expect(smoothed([1, Number.NaN, 2], 3, 0.5)[2]).toBeCloseTo(1.25 / 0.75, 12);
});

describe('SeriesStore', () => {
  test('steps come again after the run has gone back', () => {
    const store = new SeriesStore();
    for (const step of [1, 2, 3, 4, 2, 3]) store.add({ step, a: step === 3 ? 30 : step });
    expect(store.series('a', ASKED)).toMatchObject({ x: [1, 2, 3], y: [1, 2, 30] });
  });

  test('what a run has taken back leaves nothing: gaps, extremes, smoothed values', () => {
    const [store, plain] = [new SeriesStore(), new SeriesStore()];
    const asked = { ...ASKED, points: 8, smoothing: 0.9 };
    for (let step = 0; step < 1000; step++)
      store.add({ step, a: step === 600 ? 'NaN' : step === 700 ? 1e6 : 1 });
    expect(store.series('a', asked)).toMatchObject({ bad: [600] });
    for (let step = 0; step < 1000; step++) {
      const line = { step, a: step === 400 ? 'Infinity' : step % 7 };
      if (step >= 300) store.add(line);
      plain.add(step < 300 ? { step, a: 1 } : line);
    }
    expect(store.series('a', asked)).toEqual(plain.series('a', asked));
    expect(store.series('a', asked)).toMatchObject({ bad: [400] });
  });

  test('what JSON has no number for is a gap, and named', () => {
    const store = new SeriesStore();
    for (const [step, a] of [1, 'NaN', '-Infinity', 4].entries()) store.add({ step, a });
    store.add({ step: 9, a: 'text', b: null, c: { d: 1 } });
    store.add({ a: 1 });
    store.add({ step: 'x', a: 1 });
    expect(store.series('a', ASKED)).toMatchObject({ y: [1, null, null, 4], bad: [1, 2] });
    expect(store.metrics().map(({ name }) => name)).toEqual(['a']);
  });

  test('time adds up steps, validations and checkpoints; tokens those of the batches', () => {
    const store = new SeriesStore();
    store.add({ step: 1, 'timing_s/step': 2, 'perf/total_num_tokens': 100 });
    store.add({ step: 1, 'timing_s/save_checkpoint': 3 });
    store.add({ step: 2, 'timing_s/step': 2, 'timing_s/testing': 1, 'perf/total_num_tokens': 50 });
    for (const step of [0, 1, 2]) store.add({ step, a: step });
    expect(store.series('a', { ...ASKED, x: 'time' })?.x).toEqual([0, 5, 8]);
    expect(store.series('a', { ...ASKED, x: 'tokens' })?.x).toEqual([0, 100, 150]);
  });

  test('a range has one more point on either side', () => {
    const store = new SeriesStore();
    for (let step = 0; step < 100; step++) store.add({ step, a: step });
    expect(store.series('a', { ...ASKED, from: 10.5, to: 13 })?.x).toEqual([10, 11, 12, 13]);
    expect(store.series('b', ASKED)).toBeNull();
  });

  test('a million points', () => {
    const store = new SeriesStore();
    for (let step = 0; step < 1_000_000; step++) store.add({ step, a: step === 654_321 ? 9 : 0 });
    const { x, y, total } = store.series('a', { ...ASKED, points: 800, smoothing: 0.9 })!;
    expect([total, y.includes(9), x[y.indexOf(9)]]).toEqual([1_000_000, true, 654_321]);
  });
});

test('a file of a million values: all of them, in pieces; a name that a spreadsheet would run is text', () => {
  const store = new SeriesStore();
  for (let step = 1; step <= 1_000_000; step++) store.add({ step, x: step === 7 ? 'NaN' : step / 3 });
  const range = { x: 'step', from: null, to: null, smoothing: 0 } as const;
  const pieces = [...csvPieces('step', [{ run: '=cmd|"a",b', rows: store.rows('x', range) }])];
  expect(Math.max(...pieces.map(({ length }) => length))).toBeLessThan(100_000);
  const lines = pieces.join('').trimEnd().split('\r\n');
  expect(lines).toHaveLength(1_000_001);
  expect(lines[7]).toBe('"\'=cmd|""a"",b",7,NaN,');
  expect(Number(lines[1_000_000]?.split(',').at(-2))).toBe(1_000_000 / 3);
  expect([...store.rows('none', range)]).toEqual([]);
  expect([...store.rows('x', { ...range, from: 2.5, to: 4 })].map(([step]) => step)).toEqual([3, 4]);
});
