import { type ChildProcess, spawn } from 'node:child_process';
import type { Duplex } from 'node:stream';
import { CONTROL_FD, FILTER_FD, type SandboxCommand } from './command';

/**
 * finished: exit code 0. error: another exit code, or killed by a limit (memory, processor time). timeout: wall time.
 * output_limit: it printed more than it may.
 */
export type RunStatus = 'finished' | 'error' | 'timeout' | 'output_limit';

export interface ChildOptions {
  cwd: string;
  /** Of the command that makes the sandbox, not of the program in it. */
  env: Record<string, string>;
  stdin: string;
  /** What the files that the command expects contain, one after the other. */
  files: readonly string[];
  /** Seccomp filter for a command that reads one; null: it reads none. */
  filter: Uint8Array | null;
  timeoutMs: number;
  maxOutputBytes: number;
  /** Longest wait for the sandbox itself to stand, milliseconds. */
  setupMs: number;
  /** Called when the command runs; what it gives is called when it has ended. `exceeded` ends the run for a reason to show. */
  onStart?: (pid: number, exceeded: (reason: string) => void) => () => void;
  /** Called when the command has ended, before its pipes are given up, and waited for. */
  onExit?: () => Promise<void>;
}

/** How a run ended. */
export interface ChildResult {
  /** False: the sandbox could not be set up, the program never ran, and `stderr` says why. */
  started: boolean;
  status: RunStatus;
  /** null: a signal ended it. */
  exitCode: number | null;
  stdout: string;
  stderr: string;
}

const STDERR_TAIL = 4096;
/** Pipes of a process that is gone are given so long to run dry. */
const DRAIN_MS = 1000;

/**
 * Runs a sandboxed program to its end, or to the end of its time or output, and kills its whole process group whichever
 * came first. Resolves when nothing more can come from it; rejects only when the command itself cannot be started.
 */
export function runChild(command: SandboxCommand, options: ChildOptions): Promise<ChildResult> {
  return new ChildRun(command, options).result;
}

class ChildRun {
  readonly result: Promise<ChildResult>;
  private readonly child: ChildProcess;
  private readonly stdout: Buffer[] = [];
  private stderr = Buffer.alloc(0);
  private bytes = 0;
  private started = false;
  private stopped: RunStatus | null = null;
  private timer: NodeJS.Timeout;
  private cleanup: Promise<void> = Promise.resolve();

  constructor(
    { program, args }: SandboxCommand,
    private readonly options: ChildOptions,
  ) {
    const { cwd, env, filter, stdin, files } = options;
    const extra = filter === null ? (['pipe'] as const) : (['pipe', 'pipe'] as const);
    this.child = spawn(program, args, {
      cwd,
      env,
      detached: true,
      stdio: ['pipe', 'pipe', 'pipe', ...extra],
    });
    this.timer = setTimeout(() => this.stop('timeout'), options.setupMs);
    const watched =
      this.child.pid === undefined
        ? undefined
        : options.onStart?.(this.child.pid, (reason) => {
            this.stop('error');
            this.stderr = Buffer.concat([this.stderr, Buffer.from(`${reason}\n`)]).subarray(-STDERR_TAIL);
          });
    this.result = new Promise((resolve, reject) => {
      this.child.once('error', (error) => {
        clearTimeout(this.timer);
        watched?.();
        reject(error);
      });
      this.child.once('exit', () => {
        watched?.();
        this.exited();
      });
      this.child.once('close', (code) => {
        clearTimeout(this.timer);
        this.cleanup.then(() => resolve(this.outcome(code)), reject);
      });
    });
    this.child.stdout?.on('data', (chunk: Buffer) => {
      if (this.count(chunk)) this.stdout.push(chunk);
    });
    this.child.stderr?.on('data', (chunk: Buffer) => {
      if (this.count(chunk)) this.stderr = Buffer.concat([this.stderr, chunk]).subarray(-STDERR_TAIL);
    });
    const control = this.child.stdio[CONTROL_FD] as Duplex;
    const filterPipe = filter === null ? null : (this.child.stdio[FILTER_FD] as Duplex);
    control.once('data', () => {
      this.started = true;
      control.end('go\n');
      clearTimeout(this.timer);
      this.timer = setTimeout(() => this.stop('timeout'), options.timeoutMs);
    });
    // A program that does not read what it is given, or ends before: not our error.
    for (const stream of [control, filterPipe, this.child.stdin]) stream?.on('error', () => undefined);
    filterPipe?.end(filter);
    control.write(files.join(''));
    this.child.stdin?.end(stdin);
  }

  private count(chunk: Buffer): boolean {
    this.bytes += chunk.length;
    if (this.bytes > this.options.maxOutputBytes) this.stop('output_limit');
    return this.stopped === null;
  }

  private stop(why: RunStatus): void {
    if (this.stopped !== null) return;
    this.stopped = why;
    this.kill();
  }

  private kill(): void {
    try {
      if (this.child.pid !== undefined) process.kill(-this.child.pid, 'SIGKILL');
    } catch {
      // The group is gone already.
    }
  }

  private exited(): void {
    clearTimeout(this.timer);
    this.kill();
    // Handled where the pipes close; a refusal before that is not yet an error that nobody waits for.
    this.cleanup = this.options.onExit?.() ?? this.cleanup;
    this.cleanup.catch(() => undefined);
    this.timer = setTimeout(() => {
      for (const stream of this.child.stdio) stream?.destroy();
    }, DRAIN_MS);
  }

  private outcome(code: number | null): ChildResult {
    return {
      started: this.started,
      status: this.stopped ?? (code === 0 ? 'finished' : 'error'),
      exitCode: code,
      stdout: Buffer.concat(this.stdout).toString('utf8'),
      stderr: this.stderr.toString('utf8'),
    };
  }
}
