import { existsSync, mkdtempSync, readdirSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { Actor } from '../../ts/actor/actor';
import type { WorkerProcess } from '../../ts/controller/launcher';
import type { WorkerGroup } from '../../ts/controller/worker_group';
import type { EngineOptions } from '../../ts/engine/engine_options';
import { WorkerDiedError } from '../../ts/errors';
import { waitForExit } from '../helpers/fake_group';
import { observedGroup } from '../helpers/observed_group';
import { raggedBatch, SHARDED_MODEL, smallEngine } from '../helpers/sharded';

// A group of workers that loses one, in whatever it does: one error, in time, and nothing left. Which collective of which phase
// is lost when is test/native/fsdp_faults_test.cc's.

const DEAD_TIMEOUT_MS = 2000;
const batch = raggedBatch(9, 3);
const prompts = Array.from({ length: batch.size }, (_, i) => batch.prompt(i));

let group: WorkerGroup;
let processes: WorkerProcess[];
let dir: string;
beforeEach(async () => {
  dir = mkdtempSync(path.join(tmpdir(), 'troupe-faults-'));
  const o = { worldSize: 3, device: 'cpu' as const, deadTimeoutMs: DEAD_TIMEOUT_MS };
  ({ group, processes } = await observedGroup(o));
});
afterEach(async () => {
  await group.close();
  rmSync(dir, { recursive: true });
});

const createActor = (o: Partial<EngineOptions> = {}): Promise<Actor> =>
  Actor.create({ ...smallEngine, model: SHARDED_MODEL, group, ...o });

async function failureOf(call: Promise<unknown>): Promise<Error> {
  const error = await call.then(
    () => null,
    (reason: unknown) => reason,
  );
  expect(error).toBeInstanceOf(Error);
  return error as Error;
}

async function forever(body: (round: number) => Promise<unknown>): Promise<void> {
  for (let round = 0; ; round++) await body(round);
}

/** The phase that the trainer would be in, and work that does not end by itself. */
const work: Record<string, (actor: Actor) => Promise<unknown>> = {
  old_log_prob: (actor) => forever(() => actor.computeLogProb(batch)),
  update_actor: (actor) => actor.updatePolicy(batch, { ppoEpochs: 100_000 }),
  gen: (actor) =>
    forever(() => actor.generate(prompts, { maxNewTokens: 40, n: 8, seed: 1, stopTokenIds: [] })),
  save_checkpoint: (actor) => forever((round) => actor.saveCheckpoint(path.join(dir, `step_${round}`))),
};

test.each([
  ['update_actor', 'SIGKILL', 1],
  ['update_actor', 'SIGSTOP', 1],
  ['update_actor', 'SIGKILL', 0], // the rank that all others met at
  ['old_log_prob', 'SIGSTOP', 0],
  ['gen', 'SIGKILL', 2],
  ['gen', 'SIGSTOP', 2],
  ['save_checkpoint', 'SIGKILL', 1],
  ['save_checkpoint', 'SIGKILL', 0], // the one that writes
] as const)('%s: %s of rank %d', async (phase, signal, victim) => {
  const actor = await createActor();
  group.setPhase(phase);
  const call = (work[phase] as (actor: Actor) => Promise<unknown>)(actor);
  let struck = 0;
  setTimeout(() => {
    struck = performance.now();
    process.kill(processes[victim]?.pid as number, signal);
  }, 300);
  const error = await failureOf(call);
  expect(performance.now() - struck).toBeLessThan(DEAD_TIMEOUT_MS + 6000);
  expect(error).toBeInstanceOf(WorkerDiedError);
  expect(error).toMatchObject({ rank: victim, phase, signal: signal === 'SIGKILL' ? 'SIGKILL' : null });
  if (phase === 'update_actor')
    expect(error.message).toMatch(
      /Its peers were in a collective: rank \d: \w+ #\d+ of [\w. -]+ \((start|forward|backward|optimizer)\)/,
    );
  // c10d's own account of a peer that has gone, with its stack, would bury the message.
  for (const worker of processes) expect(worker.stderrTail()).not.toMatch(/frame #\d|c10d/);
  // The first cause is what every later call hears.
  expect(await failureOf(actor.computeLogProb(batch))).toBe(error);
  for (const worker of processes) await waitForExit(worker.pid as number, 3000);
  // What was being saved is not there, not even in part.
  for (const entry of readdirSync(dir)) {
    expect(entry).toMatch(/^step_\d+$/);
    expect(existsSync(path.join(dir, entry, 'optimizer'))).toBe(true);
  }
});

test.each(['SIGKILL', 'SIGSTOP'] as const)(
  'blocks are gathered ahead and state lies on the host: %s of rank 1',
  async (signal) => {
    const actor = await createActor({
      parallel: { prefetch: true, reduce: 'mini_batch' },
      offload: { params: true, grads: true, optimizer: true },
    });
    group.setPhase('update_actor');
    const call = actor.updatePolicy(batch, { ppoEpochs: 100_000 });
    let struck = 0;
    setTimeout(() => {
      struck = performance.now();
      process.kill(processes[1]?.pid as number, signal);
    }, 300);
    const error = await failureOf(call);
    expect(performance.now() - struck).toBeLessThan(DEAD_TIMEOUT_MS + 6000);
    expect(error).toBeInstanceOf(WorkerDiedError);
    expect(error).toMatchObject({ rank: 1, phase: 'update_actor' });
    expect(error.message).toMatch(
      /Its peers were in a collective: rank \d: \w+ #\d+ of [\w. -]+ \((start|forward|backward|optimizer)\)/,
    );
    await expect(actor.offload()).rejects.toBe(error);
    for (const worker of processes) await waitForExit(worker.pid as number, 3000);
  },
);

test('a rank that throws alone in a collective call ends the group with its own error', async () => {
  const actor = await createActor();
  group.setPhase('save');
  // Its process refuses that before the engine, which would tell the others, hears of it.
  const call = group.callAll(actor.name, 'getTensor', (rank) => [
    (rank === 2 ? 'nothing' : 'param') as 'param',
    'embed.weight',
  ]);
  const error = await failureOf(call);
  expect(error).toMatchObject({ code: 'INVALID_ARGUMENT' });
  expect(error.message).toMatch(
    /rank 2 failed in phase save \(getTensor of 'actor'\): .*nothing[\s\S]*Its peers were in a collective: rank 0: \w+ #\d+ of weights \(start\)/,
  );
  for (const worker of processes) await waitForExit(worker.pid as number, 3000);
});

test('a parameter that one rank lacks is its own error, nobody waits, and the group goes on', async () => {
  const actor = await createActor();
  group.setPhase('save');
  const call = (missing: number | null) =>
    group.callAll(actor.name, 'getTensor', (rank) => [
      'param',
      rank === missing ? 'nothing' : 'embed.weight',
    ]);
  const error = await failureOf(call(2));
  expect(error).toMatchObject({ code: 'INVALID_ARGUMENT' });
  expect(error.message).toMatch(/rank 2 failed in phase save \(getTensor of 'actor'\): .*'nothing'$/);
  expect(await call(null)).toHaveLength(3);
});

test('arguments that one rank refuses are its own error, nobody waits, and the group goes on', async () => {
  const actor = await createActor();
  group.setPhase('old_log_prob');
  const tokens = {
    tokens: Int32Array.of(1, 2),
    seqOffsets: Int32Array.of(0, 2),
    promptLens: Int32Array.of(1),
    routedExperts: null,
    images: null,
  };
  const bad = { ...tokens, tokens: Int32Array.of(1, 100_000) };
  const call = (refusing: number | null) =>
    group.callAll(actor.name, 'computeLogProb', (rank) => [
      rank === refusing ? bad : tokens,
      1,
      false,
      false,
      false,
      false,
      0,
    ]);
  const error = await failureOf(call(2));
  expect(error).toMatchObject({ code: 'INVALID_ARGUMENT' });
  expect(error.message).toMatch(
    /rank 2 failed in phase old_log_prob \(computeLogProb of 'actor'\): .*100000/,
  );
  expect(await call(null)).toHaveLength(3);
});

test('what fails on every rank is thrown, and the group goes on', async () => {
  const actor = await createActor();
  await expect(
    actor.engine.group.callAll(actor.name, 'getTensor', () => ['param', 'nothing']),
  ).rejects.toThrow(/no parameter 'nothing'/);
  await expect(actor.saveCheckpoint(path.join(__filename, 'no', 'directory'))).rejects.toMatchObject({
    code: 'IO',
  });
  expect((await actor.computeLogProb(batch)).logProbs).toHaveLength(batch.numResponseTokens);
});
