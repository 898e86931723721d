import { type ChildProcess, spawn } from 'node:child_process';
import { readFileSync } from 'node:fs';
import path from 'node:path';
import { createInterface } from 'node:readline';
import { diesWithParent } from '../base/dies_with_parent';
import { TroupeError } from '../errors';
import { packageRoot } from '../install/package_root';
import { locateAddon } from '../native/loader';
import type { Launcher, LauncherOptions, StackKind, WorkerExit, WorkerProcess, WorkerSpec } from './launcher';
import { nativeStacks } from './native_stacks';
import { INSPECTABLE, scriptStack } from './script_stack';

const tailLines = 20;
/** Output may trail the exit, and a grandchild may hold the pipes open for good. */
const drainMs = 250;

/** Arguments of node that start a worker, and the variables its libraries need. */
export interface WorkerProgram {
  args: string[];
  env: Record<string, string>;
}

/** dist/worker/main.js, with the LibTorch that the addon needs on the library path before node starts. */
function builtWorkerProgram(): WorkerProgram {
  const { libtorch } = locateAddon();
  const variable = process.platform === 'darwin' ? 'DYLD_LIBRARY_PATH' : 'LD_LIBRARY_PATH';
  const inherited = process.env[variable];
  return {
    args: [path.join(packageRoot, 'dist', 'worker', 'main.js')],
    env: {
      TROUPE_LIBTORCH: libtorch.dir,
      [variable]: inherited ? `${libtorch.libDir}${path.delimiter}${inherited}` : libtorch.libDir,
    },
  };
}

/** Receives what a worker writes, a line at a time. */
export type WorkerOutput = (spec: WorkerSpec, line: string, isError: boolean) => void;

/** "[worker 3]", with the pool where there are several. */
export const workerPrefix = ({ rank, pool }: Pick<WorkerSpec, 'rank' | 'pool'>): string =>
  pool === null ? `[worker ${rank}]` : `[${pool} worker ${rank}]`;

const toStderr: WorkerOutput = (spec, line) => process.stderr.write(`${workerPrefix(spec)} ${line}\n`);

export interface LocalLauncher extends Launcher {
  start(spec: WorkerSpec): LocalProcess;
}

/** Workers as child processes of this one. Throws NATIVE_UNAVAILABLE when there is no addon to run. */
export function createLocalLauncher(
  options: LauncherOptions = {},
  program: WorkerProgram = builtWorkerProgram(),
  output: WorkerOutput = toStderr,
): LocalLauncher {
  const [command = process.execPath, ...args] = [
    ...diesWithParent({ ...process.env, ...options.env }),
    process.execPath,
    ...INSPECTABLE,
    ...program.args,
  ];
  return {
    start(spec) {
      const child = spawn(command, args, {
        env: {
          ...process.env,
          ...program.env,
          ...computeEnvironment(spec),
          ...options.env,
          ...deviceEnvironment(spec, options.env),
          ...spec.env,
        },
        stdio: ['ignore', 'pipe', 'pipe'],
        // A Ctrl-C goes to the whole process group of the terminal; ours must end in order, not with its workers shot.
        detached: true,
      });
      return new LocalProcess(child, spec, output);
    },
  };
}

/**
 * How often an idle OpenMP thread looks for work before it sleeps: about a millisecond. libgomp's default is tens of
 * milliseconds, which on a shared machine takes the core from the thread that everybody waits for.
 */
const SPIN_COUNT = '20000';

function computeEnvironment(spec: WorkerSpec): Record<string, string> {
  const env: Record<string, string> = { TROUPE_PARENT_PID: String(process.pid) };
  if (!process.env['OMP_WAIT_POLICY'] && !process.env['GOMP_SPINCOUNT']) env['GOMP_SPINCOUNT'] = SPIN_COUNT;
  // c10d warns with a stack trace of every connection that a dead peer has left; the error that follows says it.
  if (!process.env['TORCH_CPP_LOG_LEVEL']) env['TORCH_CPP_LOG_LEVEL'] = 'ERROR';
  if (spec.numThreads !== null) env['OMP_NUM_THREADS'] = String(spec.numThreads);
  return env;
}

/** The one device of a worker: of those this process (or `given`) may use, the one with its local rank. */
function deviceEnvironment(
  spec: WorkerSpec,
  given: Record<string, string> | undefined,
): Record<string, string> {
  if (spec.device !== 'cuda') return {};
  const visible = given?.['CUDA_VISIBLE_DEVICES'] ?? process.env['CUDA_VISIBLE_DEVICES'];
  return { CUDA_VISIBLE_DEVICES: visibleDevice(spec, visible) };
}

function visibleDevice(spec: WorkerSpec, visible: string | undefined): string {
  if (visible === undefined) return String(spec.localRank);
  const device = visible.split(',')[spec.localRank];
  if (device) return device;
  throw new TroupeError(
    'INVALID_ARGUMENT',
    `expected a device for each of ${spec.localWorldSize} workers, but CUDA_VISIBLE_DEVICES is '${visible}'`,
  );
}

export class LocalProcess implements WorkerProcess {
  readonly exited: Promise<WorkerExit>;
  readonly #child: ChildProcess;
  readonly #tail: string[] = [];
  readonly #listeners: ((text: string, isError: boolean) => void)[] = [];

  constructor(child: ChildProcess, spec: WorkerSpec, output: WorkerOutput) {
    this.#child = child;
    this.exited = new Promise((resolve) => {
      child.once('error', (error) => {
        this.#remember(`cannot start ${process.execPath}: ${error.message}`);
        resolve({ exitCode: null, signal: null });
      });
      child.once('close', (exitCode, signal) => resolve({ exitCode, signal }));
      child.once('exit', (exitCode, signal) => setTimeout(resolve, drainMs, { exitCode, signal }).unref());
    });
    for (const [stream, isError] of [
      [child.stdout, false],
      [child.stderr, true],
    ] as const) {
      if (stream === null) continue;
      createInterface({ input: stream }).on('line', (line) => {
        if (isError) this.#remember(line);
        for (const listener of this.#listeners) listener(line, isError);
        output(spec, line, isError);
      });
    }
  }

  get pid(): number | null {
    return this.#child.pid ?? null;
  }

  listen(line: (text: string, isError: boolean) => void): void {
    this.#listeners.push(line);
  }

  stderrTail(): string {
    return this.#tail.join('\n');
  }

  kill(): void {
    this.signal('SIGKILL');
  }

  signal(signal: NodeJS.Signals): void {
    this.#child.kill(signal);
  }

  async stacks(kind: StackKind): Promise<string> {
    if (this.pid === null) return '';
    return await (kind === 'native' ? nativeStacks(this.pid) : scriptStack(this));
  }

  stopped(): boolean {
    try {
      // "pid (name) state ...", where a name may hold parentheses of its own
      const stat = readFileSync(`/proc/${this.#child.pid}/stat`, 'utf8');
      return stat[stat.lastIndexOf(')') + 2] === 'T';
    } catch {
      return false; // it has gone, or there is no /proc
    }
  }

  #remember(line: string): void {
    this.#tail.push(line);
    if (this.#tail.length > tailLines) this.#tail.shift();
  }
}
