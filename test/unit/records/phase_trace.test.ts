import { phaseTrace } from '../../../ts/records/phase_trace';

interface Event {
  ph: string;
  name: string;
  tid: number;
  ts: number;
  dur: number;
}

const events = (phases: [string, number, number][], zero: number): Event[] => {
  const text = phaseTrace(
    phases.map(([name, start, end]) => ({ name, start, end })),
    zero,
  );
  const { traceEvents } = JSON.parse(text) as { traceEvents: Event[] };
  return traceEvents.filter(({ ph }) => ph === 'X');
};

it('times are microseconds of the wall clock after the given time', () => {
  const now = performance.now();
  const zero = Date.now() - 5_000;
  const [event] = events([['gen', now, now + 1.5]], zero);
  expect(event).toMatchObject({ name: 'gen', dur: 1500 });
  expect(Math.abs((event as Event).ts - 5_000_000)).toBeLessThan(50_000);
});

it('names the time that its times count from, to the nanosecond', () => {
  expect(phaseTrace([], 1_790_857_026_000)).toContain('"baseTimeNanoseconds":1790857026000000000,');
});

it('what lies within another phase is in its lane, what overlaps it is not', () => {
  const lanes = events(
    [
      ['gen', 10, 60],
      ['step', 0, 100],
      ['reward', 40, 70],
      ['adv', 60, 65],
      ['update', 70, 100],
      ['next', 100, 120],
    ],
    0,
  ).map(({ name, tid }) => [name, tid]);
  expect(lanes).toEqual([
    ['step', 0],
    ['gen', 0],
    ['reward', 1],
    ['adv', 0],
    ['update', 0],
    ['next', 0],
  ]);
});

it('of phases that begin together the one that ends last holds the others', () => {
  const lanes = events(
    [
      ['gen', 0, 60],
      ['step', 0, 100],
      ['wait', 0, 10],
    ],
    0,
  ).map(({ name, tid }) => [name, tid]);
  expect(lanes).toEqual([
    ['step', 0],
    ['gen', 0],
    ['wait', 0],
  ]);
});
