import type { RolloutHandle } from '../../../ts/rollout/engine';
import type { NativeRollout } from '../../../ts/rollout/native/native_rollout';
import { rolloutOverRanks } from '../../helpers/fake_ranks';

// When turns are made, with which weights and for whom: what test/dist/rollout*.test.ts cannot bring about at will.

const submit = (rollout: NativeRollout, maxNewTokens: number, promptIds = [1]): RolloutHandle =>
  rollout.submit({ promptIds, sampling: { maxNewTokens } });

/** Until the first token has come. */
const begun = async (handle: RolloutHandle): Promise<void> => {
  for await (const _ of handle) return;
};

const turnOfTheLoop = (): Promise<void> => new Promise((resolve) => setImmediate(resolve));

async function until(condition: () => boolean): Promise<void> {
  for (let i = 0; !condition(); i++) {
    if (i === 10_000) throw new Error(`it does not come: ${condition}`);
    await turnOfTheLoop();
  }
}

test('a rank that has its new weights before another makes no token under the old number', async () => {
  const { ranks, rollout } = rolloutOverRanks(2);
  const running = submit(rollout, 10_000);
  await begun(running);
  const slow = ranks[1]?.hold('importTensors');
  const updated = rollout.updateWeights({ kind: 'directory', path: 'weights' }, 1);
  await slow?.reached;
  await until(() => ranks[0]?.weights === 1);
  for (let i = 0; i < 50; i++) await turnOfTheLoop();
  slow?.open();
  await updated;
  await submit(rollout, 3).result;
  running.abort();
  await running.result;
  const made = ranks.flatMap((rank) => rank.made);
  expect(made.filter(({ version, weights }) => version !== weights)).toEqual([]);
  expect(new Set(made.map(({ version }) => version))).toEqual(new Set([0, 1]));
});

test('of the memory of a host its own ranks take a share each', async () => {
  const { ranks, rollout } = rolloutOverRanks(6, { gpuMemoryUtilization: 0.6 }, 3);
  await submit(rollout, 1).result;
  expect(ranks[0]?.opened?.memoryShare).toBe(0.3);
});

test('weights that change while an engine begins are begun with again', async () => {
  const { ranks, rollout } = rolloutOverRanks(1, { freeCacheEngine: false });
  const begin = ranks[0]?.hold('beginRollout');
  const running = submit(rollout, 5);
  await begin?.reached;
  await rollout.updateWeights({ kind: 'in-place' }, 7);
  begin?.open();
  expect((await running.result).versions).toEqual([{ version: 7, start: 0, end: 5 }]);
});

test('nothing begins while weights are replaced piece by piece, also where that has begun while the engine opened', async () => {
  const { ranks, engine, rollout } = rolloutOverRanks(1);
  const opening = ranks[0]?.hold('openRollout');
  const { result } = submit(rollout, 5);
  await opening?.reached;
  let end = (): void => {};
  engine.replacement = new Promise((resolve) => {
    end = resolve;
  });
  opening?.open();
  for (let i = 0; i < 50; i++) await turnOfTheLoop();
  expect(ranks[0]?.made).toEqual([]);
  engine.replacement = null;
  end();
  expect((await result).tokens).toHaveLength(5);
});

const stalled = new Promise<void>(() => {});

test.each<[string, (rollout: NativeRollout) => Promise<void>]>([
  ['a pause', (rollout) => rollout.pause('abort')],
  ['the end of the rollout', (rollout) => rollout.close()],
])('%s gives up what waits for weights that never come', async (_, give) => {
  const { ranks, engine, rollout } = rolloutOverRanks(2);
  const running = [submit(rollout, 10_000), submit(rollout, 10_000)];
  for (const handle of running) await begun(handle);
  // The first piece has come.
  engine.replacement = stalled;
  for (const rank of ranks) await rank.call('importTensors', [1]);
  for (let i = 0; i < 50; i++) await turnOfTheLoop();
  await give(rollout);
  const results = await Promise.all(running.map(({ result }) => result));
  expect(results.map(({ finishReason }) => finishReason)).toEqual(['abort', 'abort']);
  const taken = results.reduce((sum, { tokens }) => sum + tokens.length, 0);
  expect(taken).toBe(ranks.reduce((sum, { made }) => sum + made.length, 0));
  expect(ranks.map(({ live }) => live.size)).toEqual([0, 0]);
});

test('what no engine has heard of yet is given up, too', async () => {
  const { ranks, engine, rollout } = rolloutOverRanks(1);
  engine.replacement = stalled;
  const { result } = submit(rollout, 5);
  await turnOfTheLoop();
  await rollout.pause('abort');
  expect((await result).finishReason).toBe('abort');
  expect(ranks[0]?.made).toEqual([]);
});

test('pause wait: who was there before is served, who comes later after the pause', async () => {
  const { ranks, rollout } = rolloutOverRanks(1);
  const [running, submitted] = [submit(rollout, 200), submit(rollout, 5)];
  await begun(running);
  const late: RolloutHandle[] = [];
  const paused = rollout.pause('wait');
  let over = false;
  void paused.then(() => {
    over = true;
  });
  while (!over && late.length < 1_000) {
    late.push(submit(rollout, 200));
    await turnOfTheLoop();
  }
  expect(over).toBe(true);
  expect((await running.result).tokens).toHaveLength(200);
  expect((await submitted.result).tokens).toHaveLength(5);
  expect(ranks[0]?.made).toHaveLength(205);
  expect(await rollout.stats()).toMatchObject({ running: 0, waiting: late.length });
  await rollout.pause('wait');
  await rollout.resume();
  for (const { result } of late) expect((await result).tokens).toHaveLength(200);
});

test('pause abort comes to its end though clients submit again at once', async () => {
  const { ranks, rollout } = rolloutOverRanks(2);
  const reasons: string[] = [];
  const client = async (promptIds: number[]): Promise<void> => {
    for (let i = 0; i < 3; i++) reasons.push((await submit(rollout, 2_000, promptIds).result).finishReason);
  };
  const clients = [client([1]), client([2])];
  await until(() => ranks.every(({ made }) => made.length > 0));
  const slow = ranks[1]?.hold('rolloutTurn');
  const paused = rollout.pause('abort');
  await until(() => reasons.length > 0);
  // The client of the other rank is back before this one has heard of the pause.
  for (let i = 0; i < 20; i++) await turnOfTheLoop();
  slow?.open();
  await paused;
  expect(reasons).toEqual(['abort', 'abort']);
  expect(await rollout.stats()).toMatchObject({ running: 0, waiting: 2 });
  await rollout.resume();
  await Promise.all(clients);
  expect(reasons.slice(2)).toEqual(Array(4).fill('length'));
});

test('a pause that waits is over when somebody resumes', async () => {
  const { rollout } = rolloutOverRanks(1);
  const running = submit(rollout, 20_000);
  await begun(running);
  const paused = rollout.pause('wait');
  await rollout.resume();
  await paused;
  expect((await submit(rollout, 3).result).tokens).toHaveLength(3);
  running.abort();
});

test('after a turn that has failed the engine below keeps nothing of what was given up', async () => {
  const { ranks, rollout } = rolloutOverRanks(1, { freeCacheEngine: false });
  const [rank] = ranks;
  const running = submit(rollout, 10_000);
  await begun(running);
  if (rank !== undefined) rank.failure = new Error('out of memory');
  await expect(running.result).rejects.toThrow('out of memory');
  expect((await submit(rollout, 3).result).tokens).toHaveLength(3);
  expect(rank?.live.size).toBe(0);
  expect(rank?.turns.flatMap(({ abort }) => abort)).toHaveLength(1);
});

test('an engine that has come to lack the form of its weights begins with it again', async () => {
  const { ranks, rollout } = rolloutOverRanks(1);
  const [rank] = ranks;
  const running = submit(rollout, 50);
  await begun(running);
  if (rank !== undefined) rank.decoding = false;
  expect((await running.result).tokens).toHaveLength(50);
});

test('where one rank cannot begin, the others give back what they hold for it', async () => {
  const { ranks, rollout } = rolloutOverRanks(3);
  const [first, second] = ranks as [(typeof ranks)[0], (typeof ranks)[0]];
  second.cannotBegin = new Error('out of memory');
  await expect(submit(rollout, 3).result).rejects.toThrow('out of memory');
  await until(() => ranks.every(({ decoding }) => !decoding));
  expect(first.made).toEqual([]);
  second.cannotBegin = null;
  expect((await submit(rollout, 3).result).tokens).toHaveLength(3);
});

test('what is no mode, no weights or no version is refused, and changes nothing', async () => {
  const { rollout } = rolloutOverRanks(1);
  const given = (value: unknown): never => value as never;
  const refused = (message: RegExp): object => ({
    code: 'INVALID_ARGUMENT',
    message: expect.stringMatching(message),
  });
  for (const mode of ['Wait', 'abrot', undefined, null])
    await expect(rollout.pause(given(mode))).rejects.toMatchObject(
      refused(/pause: expected one of keep, preempt, abort, wait/),
    );
  for (const source of [undefined, 'weights', {}, { kind: 'file' }])
    await expect(rollout.updateWeights(given(source), 1)).rejects.toMatchObject(
      refused(/expected weights of the kind in-place, directory, buckets but got/),
    );
  await expect(rollout.updateWeights(given({ kind: 'directory' }), 1)).rejects.toMatchObject(
    refused(/expected the path of a model directory but got undefined/),
  );
  for (const version of [-1, 1.5, '1', undefined])
    await expect(rollout.updateWeights({ kind: 'in-place' }, given(version))).rejects.toMatchObject(
      refused(/version: expected an integer >= 0/),
    );
  expect(rollout.version).toBe(0);
  expect((await submit(rollout, 2).result).tokens).toHaveLength(2);
});

test.each(['keep', 'preempt'] as const)(
  'pause %s is over where somebody has resumed before it was there',
  async (mode) => {
    const { ranks, rollout } = rolloutOverRanks(1);
    const running = submit(rollout, 10_000);
    await begun(running);
    const slow = ranks[0]?.hold('rolloutTurn');
    await slow?.reached;
    const paused = rollout.pause(mode);
    await rollout.resume();
    slow?.open();
    await paused;
    expect(ranks[0]?.live.size).toBe(1);
    running.abort();
    await running.result;
  },
);
