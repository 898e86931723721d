import { TroupeError, WorkerDiedError } from '../../../ts/errors';
import { RestartPolicy } from '../../../ts/run/restart_policy';

const death = new WorkerDiedError('worker rank 1 died', {
  rank: 1,
  phase: 'p',
  exitCode: null,
  signal: 'SIGKILL',
});
const policy = (maxRestarts: number): RestartPolicy => new RestartPolicy({ maxRestarts, windowMs: 1000 });

test('as many restarts within the window as are allowed', () => {
  const judged = policy(2);
  expect([1, 2, 3].map((step) => judged.judge({ error: death, step, at: 10 * step }))).toEqual([
    null,
    null,
    '2 restarts within 1 s (trainer.fault_tolerance.max_restarts)',
  ]);
  expect(judged.judge({ error: death, step: 4, at: 1015 })).toBeNull();
  expect(judged.restarts).toBe(3);
});

test('three restarts without progress are the last, however many are allowed; a step further begins anew', () => {
  const judged = policy(100);
  const judge = (step: number): boolean => judged.judge({ error: death, step, at: 0 }) === null;
  expect([5, 5, 5, 6, 6, 6, 6].map(judge)).toEqual([true, true, true, true, true, true, false]);
  expect(judged.judge({ error: death, step: 6, at: 0 })).toBe('3 restarts without progress beyond step 6');
});

test.each([
  ['NON_FINITE', false],
  ['INVALID_CONFIG', false],
  ['INTERNAL', false],
  ['COMM', true],
  ['NO_SPACE', true],
] as const)('%s: worth a restart: %s', (code, worth) => {
  const why = policy(1).judge({ error: new TroupeError(code, 'x'), step: 0, at: 0 });
  expect(why).toBe(worth ? null : 'an error that every start would run into');
});
