import { type ChildProcess, execFile, spawn } from 'node:child_process';
import {
  chmodSync,
  existsSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmSync,
  symlinkSync,
} from 'node:fs';
import { tmpdir } from 'node:os';
import { join, resolve } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { promisify } from 'node:util';
import { lookAt } from '../../ts/sandbox/strays';
import { endWithEnvironment } from '../helpers/left_over';

// What a caller that was killed has left of a sandbox without namespaces, and who removes it.

const DIST = resolve(__dirname, '../../dist/sandbox/sandbox.js');

let home: string;
beforeEach(() => {
  home = mkdtempSync(join(tmpdir(), 'troupe-abandoned-'));
  chmodSync(home, 0o755);
});
afterEach(() => {
  // All that a test starts has it as the directory of temporary files.
  endWithEnvironment(home);
  rmSync(home, { recursive: true });
});

/** Arguments for Node: makes a sandbox and runs this in it; null: only makes it. */
const program = (command: readonly string[] | null): string[] => {
  const run =
    command === null ? '' : `.run({ command: ${JSON.stringify(command)}, limits: { timeout: 600 } })`;
  const made = `require(${JSON.stringify(DIST)}).Sandbox.create({ isolation: 'process' })`;
  return ['-e', `${made}.then((sandbox) => sandbox${run}).then(({ status }) => console.log(status))`];
};
const env = (): NodeJS.ProcessEnv => ({ ...process.env, TMPDIR: home });
/** In a process of its own, to its end; gives the status of the run. */
const sandboxed = async (command: readonly string[] | null = null): Promise<string> =>
  (await promisify(execFile)(process.execPath, program(command), { env: env() })).stdout.trim();

const left = (): string[] => readdirSync(home).filter((name) => name.startsWith('troupe-sandbox-'));
const lives = (pid: number): boolean => lookAt(String(pid)) !== null;

interface Caller {
  child: ChildProcess;
  /** Of its run. */
  directory: string;
  /** What its program has started, outside of its process group. */
  stray: number;
}

async function caller(): Promise<Caller> {
  const starts = "mkdir -m 0 closed; setsid bash -c 'echo $$ >pid; sleep 600' & wait";
  const args = program(['bash', '-c', starts]);
  const child = spawn(process.execPath, args, { env: env(), stdio: ['ignore', 'ignore', 'inherit'] });
  for (let i = 0; i < 3000; i++, await sleep(10)) {
    for (const name of left()) {
      if (!name.includes(`-${child.pid}-`)) continue;
      const file = join(home, name, 'pid');
      const stray = existsSync(file) ? Number(readFileSync(file, 'utf8')) : 0;
      if (stray > 0) return { child, directory: join(home, name), stray };
    }
  }
  throw new Error('its program did not start within 30 s');
}

async function kill({ child }: Caller): Promise<void> {
  const gone = new Promise((done) => child.once('exit', done));
  child.kill('SIGKILL');
  await gone;
}

test('the next sandbox removes the directory and ends the programs of a caller that was killed, not of one that lives', async () => {
  const killed = await caller();
  await kill(killed);
  expect([existsSync(killed.directory), lives(killed.stray)]).toEqual([true, true]);

  const living = await caller();
  // That one has made a sandbox, too.
  expect([existsSync(killed.directory), lives(killed.stray)]).toEqual([false, false]);
  await sandboxed();
  expect([existsSync(living.directory), lives(living.stray)]).toEqual([true, true]);
});

test('what others may have stays', async () => {
  const killed = await caller();
  await kill(killed);
  const names = /troupe-sandbox-(\w+)-(\d+)-(\d+)-(.*)/.exec(killed.directory) as RegExpExecArray;
  const [, where = '', pid, start, value] = names;
  const own = lookAt(String(process.pid))?.start as number;
  const kept = [
    `troupe-sandbox-${[...where].reverse().join('')}-${pid}-${start}-${value}`,
    `troupe-sandbox-${where}-${process.pid}-${own}-${value}`,
    `troupe-sandbox-${where}-${pid}-${start}-mine`,
    'troupe-sandbox-abcdef',
  ];
  for (const name of kept) mkdirSync(join(home, name));
  const link = `troupe-sandbox-${where}-${pid}-${start}-${'0'.repeat(36)}`;
  mkdirSync(join(home, 'target'));
  symlinkSync(join(home, 'target'), join(home, link));
  // An id that another process has by now.
  mkdirSync(join(home, `troupe-sandbox-${where}-${process.pid}-${own - 1}-${value}`));
  await sandboxed();
  expect(left().sort()).toEqual([...kept, link].sort());
});

test('a directory deeper than paths may be long is removed with its run', async () => {
  const deep = 'for i in $(seq 60); do mkdir $0 && cd $0 || exit 1; done; mkdir -m 0 closed';
  expect(await sandboxed(['bash', '-c', deep, 'x'.repeat(100)])).toBe('finished');
  expect(left()).toEqual([]);
});
