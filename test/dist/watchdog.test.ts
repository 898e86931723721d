import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';

const INTERRUPT = join(__dirname, '..', '..', 'dist', 'cli', 'interrupt.js');
const started: ChildProcess[] = [];
afterEach(() => {
  for (const { pid, exitCode, signalCode } of started.splice(0))
    if (pid !== undefined && exitCode === null && signalCode === null) process.kill(-pid, 'SIGKILL');
});

/** A program in a process group of its own, as a terminal has them. */
function start(program: string): ChildProcess {
  const script = `const { onInterrupt } = require(${JSON.stringify(INTERRUPT)}); ${program}`;
  const child = spawn(process.execPath, ['-e', script], {
    detached: true,
    stdio: ['ignore', 'pipe', 'pipe'],
  });
  started.push(child);
  return child;
}

const status = (pid: number | string): string => {
  try {
    return readFileSync(`/proc/${pid}/status`, 'latin1');
  } catch {
    return '';
  }
};
const field = (text: string, name: string): string =>
  new RegExp(`^${name}:\\s+(\\S+)`, 'm').exec(text)?.[1] ?? '';
const isGone = (pid: number): boolean => /^$|Z|X/.test(field(status(pid), 'State'));

async function until<T>(what: string, look: () => T | undefined): Promise<T> {
  for (const end = Date.now() + 30_000; Date.now() < end; await sleep(20)) {
    const found = look();
    if (found !== undefined) return found;
  }
  throw new Error(`waited in vain for ${what}`);
}

/** The child of a program that has its name, and with it its signal handlers. */
const watchdogOf = (parent: number): Promise<number> =>
  until('the watchdog', () => {
    const pid = readdirSync('/proc').find((name) => {
      if (!/^\d+$/.test(name) || field(status(name), 'PPid') !== String(parent)) return false;
      try {
        return readFileSync(`/proc/${name}/cmdline`, 'latin1').startsWith('troupe watchdog');
      } catch {
        return false; // it has gone
      }
    });
    return pid === undefined ? undefined : Number(pid);
  });

test('a second Ctrl-C ends a program that is in a loop, and nothing of it stays', async () => {
  const child = start("onInterrupt(() => {}); console.log('looping'); for (;;);");
  const pid = child.pid as number;
  let said = '';
  child.stderr?.on('data', (text) => {
    said += text;
  });
  const ended = once(child, 'close');
  const watchdog = await watchdogOf(pid);
  process.kill(-pid, 'SIGINT');
  await sleep(300); // sooner, it would count as the same request
  process.kill(-pid, 'SIGINT');
  expect(await ended).toEqual([null, 'SIGKILL']);
  expect(said).toContain('it does not answer: killed');
  await until('the end of the watchdog', () => isGone(watchdog) || undefined);
});

test('one Ctrl-C, or what npm makes of it, ends nothing', async () => {
  const child = start("onInterrupt(() => console.log('asked')); setInterval(() => {}, 1000);");
  const pid = child.pid as number;
  const watchdog = await watchdogOf(pid);
  process.kill(-pid, 'SIGINT');
  process.kill(-pid, 'SIGINT');
  await once(child.stdout as NodeJS.ReadableStream, 'data');
  await sleep(2_500);
  expect([isGone(pid), isGone(watchdog)]).toEqual([false, false]);
  process.kill(pid, 'SIGKILL');
  await until('the end of the watchdog', () => isGone(watchdog) || undefined);
});

test('does not keep a program alive, and ends with what it watches over', async () => {
  const child = start('const end = onInterrupt(() => {}); setTimeout(end, 1000);');
  const watchdog = await watchdogOf(child.pid as number);
  expect(await once(child, 'close')).toEqual([0, null]);
  await until('the end of the watchdog', () => isGone(watchdog) || undefined);
});
