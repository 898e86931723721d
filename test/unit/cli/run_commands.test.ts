import { existsSync, mkdtempSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { ignoresHangups } from '../../../ts/base/nohup';
import { run } from '../../../ts/cli/run_commands';
import type { FitResult } from '../../../ts/trainer/fit_loop';

jest.mock('../../../ts/base/nohup', () => ({ ignoresHangups: jest.fn(() => false) }));

const RESULT: FitResult = {
  step: 3,
  interrupted: false,
  stopReason: null,
  metrics: {},
  validation: {},
  runDirectory: '/runs/a',
  finalModel: '/runs/a/final_model',
};

/** A trainer that works until it is asked to stop, or until `finish`. */
function fakeTrainer(end: (reason: string | null) => FitResult, atSteps = true) {
  let finish: (reason: string | null) => void = () => {};
  const requestStop = jest.fn((reason: string) => {
    finish(reason);
    return atSteps;
  });
  const fit = (): Promise<FitResult> =>
    new Promise((resolve) => {
      finish = (reason) => resolve(end(reason));
    });
  return { fit, requestStop, finish: () => finish(null) };
}

let written: string[];
let others: Set<unknown>;

beforeEach(() => {
  written = [];
  const write = (text: unknown): boolean => {
    written.push(String(text).trim());
    return true;
  };
  jest.spyOn(process.stdout, 'write').mockImplementation(write);
  jest.spyOn(process.stderr, 'write').mockImplementation(write);
  jest.spyOn(process, 'exit').mockImplementation((code) => {
    throw new Error(`exit ${code}`);
  });
  others = new Set(['SIGINT', 'SIGTERM', 'SIGHUP'].flatMap((name) => process.listeners(name as 'SIGINT')));
});

afterEach(() => {
  jest.restoreAllMocks();
});

/** Delivers a signal to the handlers of the run alone: Jest has its own. */
function signal(name: NodeJS.Signals): void {
  for (const handler of process.listeners(name)) if (!others.has(handler)) handler(name);
}

test('a run that ends by itself: 0, and no signal handler stays', async () => {
  const before = process.listenerCount('SIGINT');
  const trainer = fakeTrainer(() => RESULT);
  const code = run(trainer, 'auto');
  expect(process.listenerCount('SIGINT')).toBe(before + 1);
  trainer.finish();
  expect(await code).toBe(0);
  expect(written).toEqual(['done: 3 steps, model in /runs/a/final_model']);
  expect(process.listenerCount('SIGINT')).toBe(before);
});

test('control characters in the name of a directory do not reach the terminal', async () => {
  const trainer = fakeTrainer(() => ({ ...RESULT, finalModel: '/runs/\u001b[2J' }));
  const code = run(trainer, 'auto');
  trainer.finish();
  expect(await code).toBe(0);
  expect(written).toEqual(['done: 3 steps, model in /runs/\\x1b[2J']);
});

test.each(['SIGINT', 'SIGTERM'] as const)('%s: asks the trainer to stop, says so, 130', async (name) => {
  const trainer = fakeTrainer((stopReason) => ({
    ...RESULT,
    interrupted: true,
    stopReason,
    finalModel: null,
  }));
  const code = run(trainer, 'auto');
  signal(name);
  expect(await code).toBe(130);
  expect(trainer.requestStop).toHaveBeenCalledWith(name);
  expect(written[0]).toContain(`${name}: saving a checkpoint`);
  expect(written[1]).toContain(`stopped by ${name} after step 3, which is saved`);
});

test('a signal before the first step: there is nothing to save', async () => {
  const trainer = fakeTrainer(
    (stopReason) => ({ ...RESULT, step: 0, interrupted: true, stopReason, finalModel: null }),
    false,
  );
  const code = run(trainer, 'auto');
  signal('SIGINT');
  expect(await code).toBe(130);
  expect(written).toEqual([
    'troupe: SIGINT: stopping as soon as the running phase ends, there is nothing to save; once more leaves at once',
    'stopped by SIGINT before the first step was done: there is nothing to save',
  ]);
});

test.each([
  ['auto', 'the same command goes on from there'],
  ['disable', 'the same command with trainer.resume_mode=auto goes on from there'],
  [
    'resume_path',
    'the same command with trainer.resume_mode=auto trainer.resume_from_path=null goes on from there',
  ],
] as const)('what goes on with a run that was stopped, with %s', async (mode, line) => {
  const trainer = fakeTrainer((stopReason) => ({
    ...RESULT,
    interrupted: true,
    stopReason,
    finalModel: null,
  }));
  const code = run(trainer, mode);
  signal('SIGTERM');
  expect(await code).toBe(130);
  expect(written[1]).toBe(`stopped by SIGTERM after step 3, which is saved; ${line}`);
});

test('a run that was stopped before it saved anything goes on from where it began: by the same command', async () => {
  const trainer = fakeTrainer((stopReason) => ({
    ...RESULT,
    interrupted: true,
    stopReason,
    finalModel: null,
  }));
  const code = run({ ...trainer, saved: false }, 'resume_path');
  signal('SIGTERM');
  expect(await code).toBe(130);
  expect(written[1]).toMatch(/which is saved; the same command goes on from there$/);
});

test('a job goes back to the queue only where its run goes on then', async () => {
  const directory = mkdtempSync(join(tmpdir(), 'run-commands-'));
  const asked = join(directory, 'asked');
  writeFileSync(join(directory, 'scontrol'), `#!/bin/sh\necho "$@" >> ${asked}\n`, { mode: 0o755 });
  const { PATH } = process.env;
  Object.assign(process.env, { SLURM_JOB_ID: '7', TROUPE_REQUEUE: '1', PATH: `${directory}:${PATH}` });
  try {
    for (const mode of ['disable', 'resume_path', 'auto'] as const) {
      const trainer = fakeTrainer((stopReason) => ({
        ...RESULT,
        interrupted: true,
        stopReason,
        finalModel: null,
      }));
      const code = run(trainer, mode);
      trainer.requestStop('SIGUSR2');
      expect(await code).toBe(130);
      expect(existsSync(asked)).toBe(mode === 'auto');
    }
  } finally {
    process.env['PATH'] = PATH;
    delete process.env['SLURM_JOB_ID'];
    delete process.env['TROUPE_REQUEUE'];
  }
});

test('a signal in the last step stops nothing: 0', async () => {
  const trainer = fakeTrainer((stopReason) => ({ ...RESULT, interrupted: true, stopReason }));
  const code = run(trainer, 'auto');
  signal('SIGINT');
  expect(await code).toBe(0);
});

test('a second signal leaves at once, unless it is the echo of the first', async () => {
  const trainer = fakeTrainer(() => RESULT);
  trainer.requestStop.mockImplementation(() => true);
  const clock = jest.spyOn(performance, 'now');
  const code = run(trainer, 'auto');
  clock.mockReturnValue(1000);
  signal('SIGINT');
  clock.mockReturnValue(1010); // npm passes it on
  signal('SIGINT');
  expect(trainer.requestStop).toHaveBeenCalledTimes(1);
  clock.mockReturnValue(1500);
  expect(() => signal('SIGINT')).toThrow('exit 130');
  trainer.finish();
  await code;
});

test.each([
  ['a terminal that closes asks once, and insists by nothing', false, 1],
  ['under nohup it asks nothing', true, 0],
])('SIGHUP: %s', async (_, ignored, asked) => {
  jest.mocked(ignoresHangups).mockReturnValueOnce(ignored);
  const trainer = fakeTrainer(() => RESULT);
  trainer.requestStop.mockImplementation(() => true);
  const clock = jest.spyOn(performance, 'now');
  const code = run(trainer, 'auto');
  for (const now of [1000, 2000]) {
    clock.mockReturnValue(now);
    signal('SIGHUP');
  }
  expect(trainer.requestStop).toHaveBeenCalledTimes(asked);
  clock.mockReturnValue(3000);
  signal('SIGTERM');
  expect(trainer.requestStop).toHaveBeenLastCalledWith('SIGTERM');
  trainer.finish();
  await code;
});

test('a failure passes through', async () => {
  const failure = new Error('worker died');
  const trainer = { fit: () => Promise.reject(failure), requestStop: () => false };
  await expect(run(trainer, 'auto')).rejects.toBe(failure);
});
