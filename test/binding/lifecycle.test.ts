import { spawn } from 'node:child_process';
import { once } from 'node:events';
import path from 'node:path';
import { text } from 'node:stream/consumers';

// Processes of their own: how they end is the point.

const deadlineMs = 30_000;

async function run(
  scenario: string,
): Promise<{ code: number | null; signal: string | null; output: string }> {
  const helpers = path.join(__dirname, '..', 'helpers');
  const child = spawn(
    process.execPath,
    [
      '--expose-gc',
      '-r',
      path.join(helpers, 'register_ts.js'),
      path.join(helpers, 'binding_lifecycle.ts'),
      scenario,
    ],
    { timeout: deadlineMs, killSignal: 'SIGKILL' },
  );
  const [[code, signal], out, err] = await Promise.all([
    once(child, 'close') as Promise<[number | null, string | null]>,
    text(child.stdout),
    text(child.stderr),
  ]);
  return { code, signal, output: out + err };
}

test.each([
  ['unclosed', 'an engine that nobody closes does not keep the process alive'],
  ['pending', 'a promise that nobody awaits is still settled before the process ends'],
  ['unused', 'loading the addon alone does not keep the process alive'],
  ['collected', 'an engine that became unreachable is freed'],
  ['thread', 'a worker thread with an open engine can end'],
  ['terminated', 'a worker thread can be terminated while its engine works'],
])('%s: %s', async (scenario) => {
  expect(await run(scenario)).toMatchObject({ code: 0, signal: null, output: `${scenario} done\n` });
});

test('process.exit while an engine works ends with the given code', async () => {
  expect(await run('exit')).toMatchObject({ code: 5, signal: null, output: 'exit done\n' });
});
