import { mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import type { WorkerGroup } from '../../../ts/controller/worker_group';
import { WorkerLogs } from '../../../ts/controller/worker_log';
import { WorkerDiedError } from '../../../ts/errors';
import type { NativeTokenBatch } from '../../../ts/native/bridge';
import { fakeEngineOptions, launchFakeGroup, waitForExit } from '../../helpers/fake_group';

// Workers that are alive and do not get on, over the real protocol, with debuggers where they are installed.

let group: WorkerGroup | null = null;
let directory: string;
beforeEach(() => {
  directory = mkdtempSync(path.join(tmpdir(), 'hang-'));
});
afterEach(async () => {
  await group?.close();
  rmSync(directory, { recursive: true });
});

const LIMITS = { fixedMs: null, factor: 4, floorMs: 1_000 };

async function launch(worldSize: number, callLimits = LIMITS) {
  const logs = new WorkerLogs(directory, { maxBytes: 1 << 20, starts: 1 });
  const launched = await launchFakeGroup({ worldSize, callLimits, logs });
  group = launched.group;
  await group.createEngine('actor', fakeEngineOptions);
  return launched;
}

const ask = (rank: number, command: string): Promise<unknown> =>
  (group as WorkerGroup).callRank(rank, 'actor', 'getTensor', ['param', command]);

test('a rank that hangs is found by the times of the calls before, and named, not those that wait for it', async () => {
  const { processes } = await launch(3);
  group?.setPhase('update_actor of step 2');
  for (let i = 0; i < 2; i++) await Promise.all([0, 1, 2].map((rank) => ask(rank, 'sleep 20')));
  const start = performance.now();
  const calls = [ask(0, 'sleep 600000'), ask(1, 'hang'), ask(2, 'sleep 600000')];
  const errors = await Promise.all(calls.map((call) => call.catch((e: unknown) => e)));
  // The floor, the debuggers and a second to answer: not the ten minutes of a collective.
  expect(performance.now() - start).toBeLessThan(60_000);
  expect(new Set(errors).size).toBe(1);
  const error = errors[0] as WorkerDiedError;
  expect(error).toBeInstanceOf(WorkerDiedError);
  expect(error).toMatchObject({ rank: 1, phase: 'update_actor of step 2', exitCode: null, signal: null });
  expect(error.message).toMatch(
    /^worker rank 1 died in phase update_actor of step 2 \(getTensor of 'actor'\): it hangs: getTensor of 'actor' has taken \d+\.\d s so far \(limit: trainer\.worker_timeouts\.call_floor; the slowest call so far took 0\.\d+ s for as much work\)/,
  );
  for (const { pid } of processes) await waitForExit(pid as number, 5_000);
  await group?.close();
  // All that its threads were at is in its log.
  const log = readFileSync(path.join(directory, 'start_0001', 'rank_1.log'), 'utf8');
  expect(log).toMatch(/ ------ Thread |^.* ------ TID /m);
}, 120_000);

test('a worker that does not come out of its JavaScript is named with the function that it is in', async () => {
  const logs = new WorkerLogs(directory, { maxBytes: 1 << 20, starts: 1 });
  group = (await launchFakeGroup({ worldSize: 2, deadTimeoutMs: 2_000, logs })).group;
  await group.createEngine('actor', fakeEngineOptions);
  const error = (await ask(1, 'spin').catch((e: unknown) => e)) as WorkerDiedError;
  expect(error).toMatchObject({ rank: 1, phase: "getTensor of 'actor'" });
  expect(error.message).toMatch(
    /it has sent nothing for 2 s, although its process exists\. Its JavaScript was\n {2}at obey \(\S*fake_binding\.ts:\d+\)\n/,
  );
}, 60_000);

test('a first call has no limit, and neither has one of more work than it takes', async () => {
  await launch(1, { fixedMs: null, factor: 4, floorMs: 100 });
  await ask(0, 'sleep 1500'); // nothing was measured before it
  const batch = (length: number): NativeTokenBatch => ({
    tokens: new Int32Array(length),
    seqOffsets: Int32Array.of(0, length),
    promptLens: Int32Array.of(1),
    routedExperts: null,
    images: null,
  });
  const values = (length: number) =>
    (group as WorkerGroup).callRank(0, 'actor', 'computeValues', [batch(length)]);
  await values(10);
  // 20 times as long takes 400 times as long here, 1.2 s, which is more than the floor and four times what was measured.
  expect(await values(200)).toHaveLength(200);
}, 30_000);

test('a group that is closed while it looks for the culprit is closed', async () => {
  await launch(2, { ...LIMITS, fixedMs: 300 } as never);
  const calls = [ask(0, 'hang'), ask(1, 'hang')].map((call) => call.catch((e: unknown) => e));
  await new Promise((resolve) => setTimeout(resolve, 900));
  await group?.close();
  for (const error of await Promise.all(calls)) expect(error).toMatchObject({ code: 'CLOSED' });
}, 60_000);
