import { mkdtempSync, readFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { TroupeError } from '../../../ts/errors';
import type { FitResult } from '../../../ts/trainer/fit_loop';
import { ResilientRun, type SessionPlace } from '../../../ts/trainer/resilient_run';

// Sessions that are made up: what is made of their ends.

const done = { step: 3, interrupted: false } as FitResult;
const lost = (): TroupeError => new TroupeError('COMM', 'a peer is gone');

/** Sessions one after another: the steps that each does, whether it saves after them, and how it ends. */
function runOf(
  sessions: { steps: number[]; saves?: boolean; end?: unknown }[],
  maxRestarts = 5,
  regroup: () => Promise<void> = async () => undefined,
) {
  const directory = mkdtempSync(join(tmpdir(), 'resilient-'));
  const log: string[] = [];
  const places: Omit<SessionPlace, 'onStep' | 'onSaved' | 'runMetrics'>[] = [];
  const stops: string[] = [];
  const logged: Record<string, number>[] = [];
  const regroupedAfter: number[] = [];
  let settled = 0;
  const run = new ResilientRun({
    maxRestarts,
    windowMs: 60_000,
    runDirectory: directory,
    say: (line) => log.push(line),
    session({ onStep, onSaved, runMetrics, ...place }) {
      const session = sessions[places.push(place) - 1];
      return {
        requestStop: (reason) => stops.push(reason) > 0,
        settled: async () => void settled++,
        async fit() {
          for (const step of session?.steps ?? []) {
            logged.push({ step, ...runMetrics(step, 0.001) });
            onStep(step);
          }
          if (session?.saves) onSaved();
          await new Promise((resolve) => setImmediate(resolve));
          if (session?.end !== undefined) throw session.end;
          return done;
        },
      };
    },
    regroup: () => {
      regroupedAfter.push(places.length);
      return regroup();
    },
    savedStep: (saved) => (saved ? 7 : 0),
  });
  const faults = (): Record<string, unknown>[] =>
    readFileSync(join(directory, 'faults.jsonl'), 'utf8')
      .trim()
      .split('\n')
      .map((line) => JSON.parse(line) as Record<string, unknown>);
  return { run, log, logged, places, regroupedAfter, stops, faults, settled: () => settled };
}

test('goes on with the run directory, on hosts that are ready again, and writes down what happened', async () => {
  const { run, places, regroupedAfter, faults, log, logged, settled } = runOf([
    { steps: [1], end: lost() },
    { steps: [1, 2], saves: true, end: lost() },
    { steps: [2, 3] },
  ]);
  expect(run.saved).toBe(false);
  expect(await run.fit()).toBe(done);
  expect(run.saved).toBe(true);
  // What is there before a session of it has saved is of another run.
  expect(places).toEqual([{ again: false }, { again: false }, { again: true }]);
  expect(regroupedAfter).toEqual([1, 2]);
  expect(settled()).toBe(2);
  expect(faults()).toMatchObject([
    { event: 'fault', start: 0, step: 1, code: 'COMM', restart: true },
    { event: 'recovered', start: 1, step: 2, restarts: 1 },
    { event: 'fault', start: 1, step: 2, restart: true },
    { event: 'recovered', start: 2, step: 3, restarts: 2 },
  ]);
  expect(log.at(-1)).toMatch(/^2 restarts; goodput \d+\.\d %/);
  expect(logged.map(({ 'perf/goodput': _, ...rest }) => rest)).toEqual([
    { step: 1, 'fault/restarts': 0, 'fault/lost_steps': 0 },
    { step: 1, 'fault/restarts': 1, 'fault/lost_steps': 1 },
    { step: 2, 'fault/restarts': 1, 'fault/lost_steps': 1 },
    { step: 2, 'fault/restarts': 2, 'fault/lost_steps': 2 },
    { step: 3, 'fault/restarts': 2, 'fault/lost_steps': 2 },
  ]);
  // Three milliseconds of all the time.
  expect(
    logged.every(({ 'perf/goodput': goodput }) => (goodput as number) > 0 && (goodput as number) <= 1),
  ).toBe(true);
});

test('an error that would come again, and failures without progress, end it with a code of their own', async () => {
  const bad = new TroupeError('NON_FINITE', 'the loss is NaN');
  await expect(runOf([{ steps: [1], end: bad }]).run.fit()).rejects.toMatchObject({
    code: 'GAVE_UP',
    message: 'the loss is NaN\nThe run is not started again: an error that every start would run into.',
    cause: bad,
  });
  const stuck = runOf(
    Array.from({ length: 9 }, () => ({ steps: [1], end: lost() })),
    50,
  );
  await expect(stuck.run.fit()).rejects.toThrow(/3 restarts without progress beyond step 1/);
  expect(stuck.places).toHaveLength(4);
}, 20_000);

test('without restarts the error is that of the session', async () => {
  await expect(runOf([{ steps: [], end: lost() }], 0).run.fit()).rejects.toMatchObject({ code: 'COMM' });
});

test('a run that was asked to stop is not started again', async () => {
  const { run, places, stops } = runOf([{ steps: [1], end: lost() }]);
  // Of its session.
  expect(run.requestStop('SIGTERM')).toBe(false);
  const fit = run.fit();
  expect(run.requestStop('SIGINT')).toBe(true);
  await expect(fit).rejects.toThrow(/the run was to stop \(SIGTERM\)/);
  expect([places.length, stops]).toEqual([1, ['SIGTERM', 'SIGINT']]);
});

test('a run that is to stop while it waits for its hosts does so at once: the same command goes on', async () => {
  let waits: () => void = () => undefined;
  const waiting = new Promise<void>((resolve) => {
    waits = resolve;
  });
  const never = (): Promise<void> => {
    waits();
    return new Promise(() => undefined);
  };
  const { run, places, stops } = runOf([{ steps: [1, 2], saves: true, end: lost() }], 5, never);
  const fit = run.fit();
  await waiting;
  // There is nothing that could be saved yet.
  expect(run.requestStop('SIGUSR2')).toBe(false);
  expect(await fit).toMatchObject({ step: 7, interrupted: true, stopReason: 'SIGUSR2', finalModel: null });
  expect([places.length, stops]).toEqual([1, []]);
});
