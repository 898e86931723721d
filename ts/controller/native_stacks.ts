// Where the threads of a process are, for the report of one that hangs.
import { execFile } from 'node:child_process';
import { readdirSync, readFileSync } from 'node:fs';

/** Symbols of LibTorch take a debugger seconds to read. */
const PATIENCE_MS = 20_000;
const FRAMES = 30;
/** Of all threads together. */
const MOST_CHARACTERS = 100_000;

/** Debuggers that print stacks, the quicker first. */
const DEBUGGERS: readonly [string, (pid: number) => string[]][] = [
  ['eu-stack', (pid) => ['-p', String(pid), '-n', String(FRAMES)]],
  ['gdb', (pid) => ['-p', String(pid), '-batch', '-nx', '-ex', `thread apply all bt ${FRAMES}`]],
];

/** By a debugger that is installed and allowed to, else from the kernel: what each thread waits in. Never rejects. */
export async function nativeStacks(pid: number): Promise<string> {
  const threads = namesOf(pid);
  for (const [program, args] of DEBUGGERS) {
    const text = await output(program, args(pid));
    if (/^#\d+ /m.test(text)) return withNames(text, threads).slice(0, MOST_CHARACTERS);
  }
  return [...threads].map(([thread, name]) => fromKernel(pid, thread, name)).join('\n');
}

/** The thread of `name` in what {@link nativeStacks} has found; null: it is not in it. */
export function stackOf(stacks: string, name: string): string | null {
  const thread = stacks.split(/^(?=Thread |TID )/m).find((text) => text.split('\n', 1)[0]?.includes(name));
  return thread?.trimEnd() ?? null;
}

function output(program: string, args: string[]): Promise<string> {
  return new Promise((resolve) => {
    const options = { timeout: PATIENCE_MS, killSignal: 'SIGKILL', maxBuffer: 64 << 20 } as const;
    execFile(program, args, options, (_, stdout) => resolve(stdout));
  });
}

/** Names of threads, which eu-stack leaves out. */
function withNames(text: string, names: ReadonlyMap<string, string>): string {
  const frames = text.slice(Math.max(0, text.search(/^(Thread|TID) /m))).replace(/^\[Inferior .*$/m, '');
  return frames
    .trimEnd()
    .replace(/^TID (\d+):/gm, (line, thread: string) => `${line} ${names.get(thread) ?? ''}`);
}

function namesOf(pid: number): Map<string, string> {
  const names = new Map<string, string>();
  try {
    for (const thread of readdirSync(`/proc/${pid}/task`))
      names.set(thread, read(`/proc/${pid}/task/${thread}/comm`));
  } catch {
    // It has gone, or there is no /proc.
  }
  return names;
}

/** The stack inside the kernel is for root alone; the name of what a thread waits in is for everybody. */
function fromKernel(pid: number, thread: string, name: string): string {
  const place = `/proc/${pid}/task/${thread}`;
  const state = /^State:\s+(.*)$/m.exec(read(`${place}/status`))?.[1] ?? 'gone';
  const stack = read(`${place}/stack`) || read(`${place}/wchan`);
  const frames = stack.split('\n').map((line) => `  ${line}`);
  return [`Thread ${thread} "${name}" ${state}, in the kernel:`, ...frames].join('\n');
}

function read(path: string): string {
  try {
    return readFileSync(path, 'utf8').trim();
  } catch {
    return '';
  }
}
