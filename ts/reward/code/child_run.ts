import { type ChildProcess, spawn } from 'node:child_process';
import type { Duplex } from 'node:stream';
import type { RunRequest, RunStatus } from './runner';
import type { SandboxCommand } from './sandbox_command';

export interface ChildLimits {
  timeoutMs: number;
  maxOutputBytes: number;
  /** Longest wait for the sandbox itself to stand, milliseconds. */
  setupMs: number;
}

/** How a run ended. */
export interface ChildResult {
  /** False: the sandbox could not be set up, the program never ran, and `stderr` says why. */
  started: boolean;
  status: RunStatus;
  stdout: string;
  stderr: string;
}

const STDERR_TAIL = 4096;
/** Pipes of a process that is gone are given so long to run dry. */
const DRAIN_MS = 1000;

/**
 * Runs a sandboxed program to its end, or to the end of its time or output, and kills its whole process group whichever
 * came first. Resolves when nothing more can come from it; rejects only when the command itself cannot be started.
 * `onExit`: called when the command has ended, before its pipes are given up, and waited for.
 */
export function runChild(
  { program, args }: SandboxCommand,
  request: RunRequest,
  options: { cwd: string; env: Record<string, string>; limits: ChildLimits; onExit?: () => Promise<void> },
): Promise<ChildResult> {
  return new ChildRun(program, args, request, options).result;
}

class ChildRun {
  readonly result: Promise<ChildResult>;
  private readonly child: ChildProcess;
  private readonly stdout: Buffer[] = [];
  private stderr = Buffer.alloc(0);
  private bytes = 0;
  private started = false;
  private stopped: 'timeout' | 'output_limit' | null = null;
  private timer: NodeJS.Timeout;
  private cleanup: Promise<void> = Promise.resolve();

  constructor(
    program: string,
    args: string[],
    request: RunRequest,
    private readonly options: Parameters<typeof runChild>[2],
  ) {
    const { cwd, env, limits } = options;
    this.child = spawn(program, args, { cwd, env, detached: true, stdio: ['pipe', 'pipe', 'pipe', 'pipe'] });
    this.timer = setTimeout(() => this.stop('timeout'), limits.setupMs);
    this.result = new Promise((resolve, reject) => {
      this.child.once('error', (error) => {
        clearTimeout(this.timer);
        reject(error);
      });
      this.child.once('exit', () => this.exited());
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
    const control = this.child.stdio[3] as Duplex;
    control.once('data', () => {
      this.started = true;
      clearTimeout(this.timer);
      this.timer = setTimeout(() => this.stop('timeout'), limits.timeoutMs);
    });
    // A program that does not read what it is given, or ends before: not our error.
    for (const stream of [control, this.child.stdin]) stream?.on('error', () => undefined);
    control.end(request.code);
    this.child.stdin?.end(request.stdin);
  }

  private count(chunk: Buffer): boolean {
    this.bytes += chunk.length;
    if (this.bytes > this.options.limits.maxOutputBytes) this.stop('output_limit');
    return this.stopped === null;
  }

  private stop(why: 'timeout' | 'output_limit'): void {
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
      stdout: Buffer.concat(this.stdout).toString('utf8'),
      stderr: this.stderr.toString('utf8'),
    };
  }
}
