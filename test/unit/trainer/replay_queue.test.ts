import { Mt19937 } from '../../../ts/base/mt19937';
import { type QueuedGroup, type QueueOptions, ReplayQueue } from '../../../ts/trainer/replay_queue';

type Queued = QueuedGroup<string, number>;

const queueOf = (options: Partial<QueueOptions> = {}): ReplayQueue<string, number> =>
  new ReplayQueue({ wanted: 2, ahead: 1, maxSpan: 2, strategy: 'drop', lastStep: 4, ...options });

test('no more begin than a step takes and what may be ahead of it; in the end no more than the run takes', () => {
  const queue = queueOf();
  expect([1, 2, 3, 4].map((step) => queue.room(step))).toEqual([3, 3, 3, 2]);
  const first = queue.begin('a', 1);
  for (const name of ['b', 'c']) queue.begin(name, 1);
  expect([queue.room(1), queue.room(4)]).toEqual([0, -1]);
  expect(queue.running).toBe(3);
  queue.leaveOut(first);
  expect([queue.room(1), queue.running]).toEqual([1, 2]);
});

test('a step takes the oldest that are done, in the order in which they began', () => {
  const queue = queueOf();
  const groups = ['a', 'b', 'c'].map((name) => queue.begin(name, 1));
  queue.finish(groups[2] as Queued, 3);
  expect(queue.ready(1)).toBe(false);
  queue.finish(groups[0] as Queued, 1);
  expect(queue.ready(1)).toBe(true);
  expect(queue.take()).toEqual([
    { prompt: 'a', step: 1, result: 1 },
    { prompt: 'c', step: 1, result: 3 },
  ]);
  expect([queue.running, queue.room(2)]).toEqual([1, 2]);
  // A result is whatever it is, also nothing much.
  queue.finish(groups[1] as Queued, 0);
  queue.finish(queue.begin('d', 2), 0);
  expect(queue.take().map(({ prompt }) => prompt)).toEqual(['b', 'd']);
});

test('drop: what is older than it may be is left out, done or not', () => {
  const queue = queueOf();
  const [a, b] = [queue.begin('a', 1), queue.begin('b', 1)];
  queue.finish(a, 1);
  expect(queue.dropStale(2)).toEqual([]);
  expect(queue.dropStale(3)).toEqual([a, b]);
  expect([a.result, b.result]).toEqual([1, null]);
  expect(queue.running).toBe(0);
  expect(queue.room(3)).toBe(3);
});

test('wait: nothing is left out, and no step begins while one that is at its limit is worked on', () => {
  const queue = queueOf({ strategy: 'wait' });
  const old = queue.begin('a', 1);
  for (const name of ['b', 'c']) queue.finish(queue.begin(name, 2), 1);
  expect(queue.ready(1)).toBe(true);
  expect(queue.ready(2)).toBe(false);
  queue.finish(old, 1);
  expect([queue.ready(2), queue.dropStale(9)]).toEqual([true, []]);
  expect(queue.take().map(({ prompt }) => prompt)).toEqual(['a', 'b']);
});

test('drop: a step does not wait for one that is at its limit', () => {
  const queue = queueOf();
  queue.begin('a', 1);
  for (const name of ['b', 'c']) queue.finish(queue.begin(name, 2), 1);
  expect(queue.ready(2)).toBe(true);
});

/** Steps of a run whose groups are done in any order; how many steps each that was taken had seen, and how many it might. */
function randomRun(seed: number, strategy: QueueOptions['strategy']): { spans: number[]; most: number } {
  const random = new Mt19937(seed);
  const draw = (below: number): number => random.nextBelow(below);
  const wanted = 1 + draw(4);
  const ahead = draw(1 + 4 * wanted);
  const maxSpan = 1 + Math.ceil(ahead / wanted) + draw(3);
  const lastStep = 12;
  const queue = queueOf({ wanted, ahead, maxSpan, strategy, lastStep });
  const spans: number[] = [];
  /** Being worked on. */
  let open: Queued[] = [];
  let begun = 0;
  for (let step = 1; step <= lastStep; step++) {
    // What is done while the policy learns, and how eager the engine is to take the newest first.
    const end = (): void => {
      const at = draw(2) === 0 ? open.length - 1 : draw(open.length);
      for (const group of open.splice(at, 1)) queue.finish(group, 1);
    };
    for (let i = draw(1 + open.length); i > 0; i--) end();
    const stale = new Set<object>(queue.dropStale(step));
    open = open.filter((group) => !stale.has(group));
    for (;;) {
      while (queue.room(step) > 0) open.push(queue.begin(String(begun++), step));
      expect(queue.dropStale(step)).toEqual([]);
      if (queue.ready(step)) break;
      if (open.length === 0) throw new Error(`step ${step} of run ${seed} waits for nothing`);
      end();
    }
    const taken = queue.take();
    expect(taken).toHaveLength(wanted);
    expect(queue.running).toBe(open.length);
    for (const group of taken) spans.push(step - group.step + 1);
  }
  return { spans, most: maxSpan };
}

test.each(['drop', 'wait'] as const)(
  '%s: in whatever order groups are done, none is taken too late, and no step waits for ever',
  (strategy) => {
    for (let seed = 0; seed < 500; seed++) {
      const { spans, most } = randomRun(seed, strategy);
      expect([seed, Math.max(...spans) <= most]).toEqual([seed, true]);
    }
  },
);
