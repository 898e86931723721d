import { type QueueOptions, ReplayQueue } from '../../ts/trainer/replay_queue';

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
  (groups[2] as { result: number }).result = 3;
  expect(queue.ready(1)).toBe(false);
  (groups[0] as { result: number }).result = 1;
  expect(queue.ready(1)).toBe(true);
  expect(queue.take()).toEqual([
    { prompt: 'a', step: 1, result: 1 },
    { prompt: 'c', step: 1, result: 3 },
  ]);
  expect([queue.running, queue.room(2)]).toEqual([1, 2]);
  // A result is whatever it is, also nothing much.
  (groups[1] as { result: number }).result = 0;
  queue.begin('d', 2).result = 0;
  expect(queue.take().map(({ prompt }) => prompt)).toEqual(['b', 'd']);
});

test('drop: what is done and older than it may be is left out; what is being worked on is not', () => {
  const queue = queueOf();
  const [a, b] = [queue.begin('a', 1), queue.begin('b', 1)];
  a.result = 1;
  expect(queue.dropStale(2)).toEqual([]);
  expect(queue.dropStale(3)).toEqual([{ prompt: 'a', step: 1, result: 1 }]);
  expect(queue.running).toBe(1);
  b.result = 2;
  expect(queue.dropStale(3).map(({ prompt }) => prompt)).toEqual(['b']);
  expect(queue.room(3)).toBe(3);
});

test('wait: nothing is left out, and no step begins while one that is at its limit is worked on', () => {
  const queue = queueOf({ strategy: 'wait' });
  const old = queue.begin('a', 1);
  for (const name of ['b', 'c']) queue.begin(name, 2).result = 1;
  expect(queue.ready(1)).toBe(true);
  expect(queue.ready(2)).toBe(false);
  old.result = 1;
  expect([queue.ready(2), queue.dropStale(9)]).toEqual([true, []]);
  expect(queue.take().map(({ prompt }) => prompt)).toEqual(['a', 'b']);
});
