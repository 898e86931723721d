import { RefusedError } from '../../../ts/logging/http_client';
import { type Receiver, type Sendable, Sender, type SenderLimits } from '../../../ts/logging/sender';

interface Item extends Sendable {
  id: number;
}

const limits: SenderLimits = { capacity: 100, batch: 2, timeout: 5, flush: 5, pause: 0.001, maxPause: 0.002 };
const item = (id: number, points = 1): Item => ({ id, points });

/** Resolves when `signal` aborts, with an error: a server that never answers. */
const never = (signal: AbortSignal): Promise<void> =>
  new Promise((_, reject) => signal.addEventListener('abort', () => reject(signal.reason as Error)));

function receiver(
  overrides: Partial<Receiver<Item>> = {},
): Receiver<Item> & { sent: number[][]; ends: string[] } {
  const sent: number[][] = [];
  const ends: string[] = [];
  return {
    sent,
    ends,
    start: async () => {},
    send: async (items) => void sent.push(items.map(({ id }) => id)),
    finish: async (outcome) => void ends.push(outcome),
    ...overrides,
  };
}

test('sends everything in order, in batches, and ends the run', async () => {
  const far = receiver();
  const warnings: string[] = [];
  const sender = new Sender('far', far, limits, (line) => warnings.push(line));
  for (let id = 1; id <= 5; id++) sender.push(item(id));
  await sender.close('interrupted');
  expect(far.sent).toEqual([[1, 2], [3, 4], [5]]);
  expect(far.ends).toEqual(['interrupted']);
  expect(warnings).toEqual([]);
  sender.push(item(6));
  expect(sender.idle).toBe(true);
});

test('an error is tried again with the same items, and warned of once', async () => {
  let failures = 0;
  const far = receiver();
  const warnings: string[] = [];
  const send = far.send;
  far.send = async (items, signal) => {
    if (failures++ < 3) throw new Error('503');
    await send(items, signal);
  };
  const sender = new Sender('far', far, limits, (line) => warnings.push(line));
  for (let id = 1; id <= 3; id++) sender.push(item(id));
  await sender.close('finished');
  expect(far.sent).toEqual([[1, 2], [3]]);
  expect(warnings).toEqual([expect.stringMatching(/^far failed, the run goes on \(trying again.*: 503$/)]);
});

test('items that are refused are left out, the others go on', async () => {
  const far = receiver();
  const warnings: string[] = [];
  const send = far.send;
  far.send = async (items, signal) => {
    if (items[0]?.id === 1) throw new RefusedError(400, 'no such metric');
    await send(items, signal);
  };
  const sender = new Sender('far', far, limits, (line) => warnings.push(line));
  for (let id = 1; id <= 3; id++) sender.push(item(id, 10));
  await sender.close('finished');
  expect(far.sent).toEqual([[3]]);
  expect(warnings).toEqual([
    expect.stringContaining('no such metric'),
    expect.stringContaining('far: 20 of 30 points were not sent'),
  ]);
});

test('a start that is refused costs all points, without another try', async () => {
  let starts = 0;
  const far = receiver({
    start: async () => {
      starts += 1;
      throw new RefusedError(401, 'wrong key');
    },
  });
  const warnings: string[] = [];
  const sender = new Sender('far', far, limits, (line) => warnings.push(line));
  sender.push(item(1));
  await new Promise(setImmediate);
  sender.push(item(2));
  await sender.close('finished');
  expect(starts).toBe(1);
  expect(far.sent).toEqual([]);
  expect(far.ends).toEqual([]);
  expect(warnings).toEqual([
    expect.stringContaining('wrong key'),
    expect.stringContaining('2 of 2 points were not sent'),
  ]);
});

test('a call without an answer is given up and repeated', async () => {
  let calls = 0;
  const far = receiver();
  const send = far.send;
  far.send = (items, signal) => (calls++ === 0 ? never(signal) : send(items, signal));
  const warnings: string[] = [];
  const sender = new Sender('far', far, { ...limits, timeout: 0.01 }, (line) => warnings.push(line));
  sender.push(item(1));
  await sender.close('finished');
  expect(far.sent).toEqual([[1]]);
  expect(warnings).toEqual([expect.stringContaining('no answer within 0.01 s')]);
});

test('closing is bounded: what hangs is given up and counted', async () => {
  const far = receiver({ send: (_, signal) => never(signal) });
  const warnings: string[] = [];
  const sender = new Sender('far', far, { ...limits, timeout: 1e6, flush: 0.02 }, (line) =>
    warnings.push(line),
  );
  for (let id = 1; id <= 5; id++) sender.push(item(id, 2));
  await sender.close('finished');
  expect(far.ends).toEqual([]);
  expect(warnings.at(-1)).toContain('10 of 10 points were not sent');
});

test('closing does not wait for a long pause', async () => {
  let failed = false;
  const far = receiver();
  const send = far.send;
  far.send = async (items, signal) => {
    if (!failed) {
      failed = true;
      throw new Error('once');
    }
    await send(items, signal);
  };
  const sender = new Sender('far', far, { ...limits, pause: 1e6, maxPause: 1e6 }, () => {});
  sender.push(item(1));
  while (!failed) await new Promise(setImmediate);
  await sender.close('finished');
  expect(far.sent).toEqual([[1]]);
});

test('the queue is bounded: the oldest give way', async () => {
  let open = (): void => {};
  const gate = new Promise<void>((resolve) => {
    open = resolve;
  });
  const far = receiver({ start: () => gate });
  const warnings: string[] = [];
  const sender = new Sender('far', far, { ...limits, capacity: 3 }, (line) => warnings.push(line));
  for (let id = 1; id <= 6; id++) sender.push(item(id));
  open();
  await sender.close('finished');
  expect(far.sent).toEqual([[4, 5], [6]]);
  expect(warnings).toEqual([expect.stringContaining('3 of 6 points were not sent')]);
});

test('one item of more points than may wait is sent all the same', async () => {
  const far = receiver();
  const sender = new Sender('far', far, { ...limits, capacity: 3 }, () => {});
  sender.push(item(1, 2));
  sender.push(item(2, 10));
  await sender.close('finished');
  expect(far.sent).toEqual([[2]]);
});

test('pauses between attempts double up to the longest', async () => {
  jest.useFakeTimers();
  try {
    const times: number[] = [];
    const begun = Date.now();
    const far = receiver({
      send: async () => {
        times.push((Date.now() - begun) / 1000);
        if (times.length < 6) throw new Error('503');
      },
    });
    const sender = new Sender('far', far, { ...limits, pause: 1, maxPause: 5 }, () => undefined);
    sender.push(item(1));
    await jest.advanceTimersByTimeAsync(60_000);
    expect(times).toEqual([0, 1, 3, 7, 12, 17]);
    // The next items begin with the shortest one again.
    times.length = 0;
    sender.push(item(2));
    await jest.advanceTimersByTimeAsync(1500);
    expect(times).toEqual([60, 61]);
  } finally {
    jest.useRealTimers();
  }
});
