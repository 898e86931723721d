import { type ChildProcess, spawn } from 'node:child_process';
import { existsSync, readdirSync, readFileSync, watch } from 'node:fs';
import { resolve } from 'node:path';
import { endWithEnvironment, marked, unlisted } from './left_over';

export const CLI = resolve(__dirname, '../../dist/cli.js');

export interface Exit {
  code: number | null;
  signal: NodeJS.Signals | null;
  stdout: string;
  stderr: string;
}

export interface CommandOptions {
  env?: Record<string, string>;
  /** A program for Node.js in place of `troupe`. */
  program?: string;
  /** A program that starts the command, such as a shell that sets a limit first. */
  prefix?: readonly string[];
  /** After which it is killed, and says so in its stderr; default five minutes. */
  limitMs?: number;
  /** The file ends it in its afterAll; else it ends with the test, or the file, that starts it. */
  endedByFile?: boolean;
}

const LIMIT_MS = 300_000;
/** How long one thing that a test waits for may take. */
const WAIT_MS = 120_000;
/** Of the output that is shown of a command which a test has left. */
const MOST_SHOWN = 4_000;

/** One `troupe` command as a process of its own, in a process group of its own; it ends with the test that starts it. */
export class Command {
  /** Settles within the limit. */
  readonly exited: Promise<Exit>;
  private readonly child: ChildProcess;
  private output = { stdout: '', stderr: '' };
  private ended = false;

  constructor(args: readonly string[], options: CommandOptions = {}) {
    const mark = options.endedByFile ? unlisted() : marked(() => (this.ended ? null : this.describe(args)));
    const [program, ...rest] = [
      ...(options.prefix ?? []),
      process.execPath,
      options.program ?? CLI,
      ...args,
    ] as [string, ...string[]];
    this.child = spawn(program, rest, {
      env: { ...process.env, ...mark, ...options.env },
      detached: true,
      stdio: ['ignore', 'pipe', 'pipe'],
    });
    for (const name of ['stdout', 'stderr'] as const) {
      this.child[name]?.setEncoding('utf8').on('data', (text: string) => {
        this.output[name] += text;
      });
    }
    const limitMs = options.limitMs ?? LIMIT_MS;
    const timer = setTimeout(() => {
      this.output.stderr += `\nended by the test after ${limitMs / 1000} s\n`;
      for (const [name, value] of Object.entries(mark)) endWithEnvironment(`${name}=${value}`);
    }, limitMs);
    this.exited = new Promise((done, fail) => {
      this.child.once('error', fail);
      this.child.once('close', (code, signal) => {
        this.ended = true;
        clearTimeout(timer);
        done({ code, signal, ...this.output });
      });
    });
  }

  get pid(): number {
    return this.child.pid as number;
  }

  /** What it has said so far. */
  get stderr(): string {
    return this.output.stderr;
  }

  /** Whether its output so far matches. */
  said(pattern: RegExp): boolean {
    return pattern.test(this.output.stdout) || pattern.test(this.output.stderr);
  }

  /** Process ids of its workers. */
  workers(): number[] {
    return workersOf(this.pid);
  }

  kill(signal: NodeJS.Signals): void {
    this.child.kill(signal);
  }

  /** As Ctrl-C does: to the command and to all that it has started. */
  killGroup(signal: NodeJS.Signals): void {
    process.kill(-this.pid, signal);
  }

  /** Waits until `condition` holds; an error with all output when the command ends first, or nothing comes of it within `ms`. */
  async until(what: string, condition: () => boolean, ms = WAIT_MS): Promise<void> {
    const end = Date.now() + ms;
    while (!condition()) {
      const { stdout, stderr } = this.output;
      if (this.ended) throw new Error(`the command ended before ${what}:\n${stdout}\n${stderr}`);
      if (Date.now() > end)
        throw new Error(`${what} has not come within ${ms / 1000} s:\n${stdout}\n${stderr}`);
      await sleep(2);
    }
  }

  private describe(args: readonly string[]): string {
    const { stdout, stderr } = this.output;
    return `troupe ${args.join(' ')}\n${stdout.slice(-MOST_SHOWN)}\n${stderr.slice(-MOST_SHOWN)}`;
  }
}

export function runCommand(args: readonly string[], options: CommandOptions = {}): Promise<Exit> {
  return new Command(args, options).exited;
}

export const sleep = (ms: number): Promise<void> => new Promise((done) => setTimeout(done, ms));

/** State letter and parent of a process, from /proc; null when there is no such process. */
function stat(pid: number | string): { state: string; parent: number } | null {
  try {
    const text = readFileSync(`/proc/${pid}/stat`, 'utf8');
    const [state, parent] = text.slice(text.lastIndexOf(')') + 2).split(' ') as [string, string];
    return { state, parent: Number(parent) };
  } catch {
    return null;
  }
}

/** Arguments, or the title that a process has given itself. */
function commandLine(pid: number): string {
  try {
    return readFileSync(`/proc/${pid}/cmdline`, 'utf8');
  } catch {
    return '';
  }
}

/** Whether it was started to be something else than a worker of a run. */
function isPlanner(pid: number): boolean {
  try {
    return readFileSync(`/proc/${pid}/environ`, 'utf8').includes('TROUPE_TITLE=troupe planner');
  } catch {
    return false;
  }
}

/** Process ids of the workers that a process has started. */
export function workersOf(pid: number): number[] {
  return readdirSync('/proc')
    .filter((name) => /^\d+$/.test(name) && stat(name)?.parent === pid)
    .map(Number)
    .filter((child) => /\bworker\b/.test(commandLine(child)) && !isPlanner(child));
}

/** Also of a process that is not our child; one that has ended but was not reaped does not count. */
export function isAlive(pid: number): boolean {
  const found = stat(pid);
  return found !== null && found.state !== 'Z' && found.state !== 'X';
}

/** Resolves with true when all processes have ended, with false when one still runs after `ms`. */
export async function allGone(pids: readonly number[], ms: number): Promise<boolean> {
  const end = Date.now() + ms;
  while (pids.some(isAlive)) {
    if (Date.now() > end) return false;
    await sleep(20);
  }
  return true;
}

/** Calls `act` once, in the instant in which an entry that matches `name` appears, changes or goes in `directory`. */
export function onEntry(directory: string, name: string | RegExp, act: () => void): void {
  const watcher = watch(directory, (_, entry) => {
    if (entry === null || !(typeof name === 'string' ? entry === name : name.test(entry))) return;
    watcher.close();
    act();
  });
}

/** Paths of all files and directories below `directory`, sorted; empty when it does not exist. */
export function listTree(directory: string): string[] {
  if (!existsSync(directory)) return [];
  return readdirSync(directory, { recursive: true, encoding: 'utf8' }).sort();
}
