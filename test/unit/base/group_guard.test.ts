// What is started in a group of its own does not outlive the process that has started it, whenever that is killed.

import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { existsSync, mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join, resolve } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { GroupGuard } from '../../../ts/base/group_guard';
import { marked, withEnvironment } from '../../helpers/left_over';

const directory = mkdtempSync(join(tmpdir(), 'troupe-guard-'));
afterAll(() => rmSync(directory, { recursive: true }));

// Stops for a while when it has started a program and before it has said so to anybody, and is killed there.
const KILLED_BETWEEN = `
const [dist, line] = process.argv.slice(1);
const processes = require('node:child_process');
const { spawn } = processes;
processes.spawn = (program, args, options) => {
  const child = spawn(program, args, options);
  if (args.includes(line)) {
    Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, 500);
    process.kill(process.pid, 'SIGKILL');
  }
  return child;
};
const { GroupGuard } = require(dist + '/base/group_guard.js');
new GroupGuard().spawn('/bin/sh', ['-c', line], { env: process.env, stdio: ['ignore', 'ignore', 'inherit'] });
`;

test('a program does not begin before its group is held', async () => {
  const variables = marked();
  const [mark] = Object.entries(variables).map(([name, value]) => `${name}=${value}`) as [string];
  const file = join(directory, 'begun');
  const parent = spawn(
    process.execPath,
    ['-e', KILLED_BETWEEN, resolve(__dirname, '../../../dist'), `touch ${file}; sleep 1000; true`],
    { env: { ...process.env, ...variables }, stdio: ['ignore', 'ignore', 'inherit'] },
  );
  expect(await once(parent, 'exit')).toEqual([null, 'SIGKILL']);
  for (const end = Date.now() + 30_000; withEnvironment(mark).length > 0 && Date.now() < end; )
    await sleep(5);
  expect(withEnvironment(mark)).toEqual([]);
  expect(existsSync(file)).toBe(false);
});

test('a program has its arguments, its streams and not the file that held it back, and its status is its own', async () => {
  const guard = new GroupGuard();
  const program = guard.spawn(
    '/bin/sh',
    ['-c', 'cat; (: <&3) 2>/dev/null || echo closed; echo "$1"; exit 7', 'sh', 'a "b" $c'],
    {
      env: process.env,
      stdio: ['pipe', 'pipe', 'inherit'],
    },
  );
  let said = '';
  program.stdout?.setEncoding('utf8').on('data', (text: string) => {
    said += text;
  });
  program.stdin?.end('in\n');
  expect(await once(program, 'close')).toEqual([7, null]);
  guard.drop(program.pid);
  expect(said).toBe('in\nclosed\na "b" $c\n');
});
