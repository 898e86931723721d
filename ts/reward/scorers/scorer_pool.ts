import { GroupGuard } from '../../base/group_guard';
import { timerMs } from '../../base/timers';
import {
  endError,
  hold,
  isLostChannel,
  replyError,
  type ScorerChild,
  START_MS,
  startScorer,
  strayError,
} from './fork';
import {
  SCORER_VARIABLE,
  type ScorerMessage,
  type ScorerReply,
  type ScorerRequest,
  type ScorerSetup,
} from './scorer_protocol';

interface Job {
  message: unknown;
  timeoutMs: number;
  resolve(result: unknown): void;
  reject(error: Error): void;
}

/**
 * Child processes that score, one job at a time each. They are processes and not threads because code that hangs,
 * exhausts the memory or ends its process must take nothing with it; a thread that runs out of memory in one large
 * allocation takes its whole process. They start when there is work, and idle ones do not keep this process alive.
 */
export class ScorerPool {
  readonly #size: number;
  readonly #setup: ScorerSetup;
  readonly #memoryMb: number | null;
  readonly #idleMs: number | null;
  #idleTimer: NodeJS.Timeout | null = null;
  readonly #queue: Job[] = [];
  readonly #processes = new Set<ScorerProcess>();
  readonly #idle: ScorerProcess[] = [];
  readonly #guard = new GroupGuard();

  /**
   * `memoryMb`: JavaScript heap of each process, null: Node's default. `idleMs`: processes end when there was no work for so long;
   * null: they stay until `close`.
   */
  constructor(
    size: number,
    setup: ScorerSetup,
    memoryMb: number | null = null,
    idleMs: number | null = null,
  ) {
    this.#size = size;
    this.#setup = setup;
    this.#memoryMb = memoryMb;
    this.#idleMs = idleMs;
  }

  /** Processes that run. */
  get size(): number {
    return this.#processes.size;
  }

  /**
   * The reply to a job. Its process is killed when there is none `timeoutMs` after it got the job.
   * @throws ConfigError when the process cannot do any job; Error when it failed, was late or died
   */
  run(message: unknown, timeoutMs: number): Promise<unknown> {
    return new Promise((resolve, reject) => {
      this.#queue.push({ message, timeoutMs, resolve, reject });
      this.#pump();
    });
  }

  /** Kills all processes; jobs under way fail. New ones start processes again. */
  close(): void {
    if (this.#idleTimer) clearTimeout(this.#idleTimer);
    this.#idle.length = 0;
    for (const process of this.#processes) process.kill('the scorer pool was closed');
    for (const job of this.#queue.splice(0)) job.reject(new Error('the scorer pool was closed'));
  }

  #pump(): void {
    if (this.#idleTimer) clearTimeout(this.#idleTimer);
    while (this.#queue.length > 0) {
      const process = this.#idle.pop() ?? (this.#processes.size < this.#size ? this.#start() : null);
      if (process === null) return;
      void this.#serve(process, this.#queue.shift() as Job);
    }
    if (this.#idleMs !== null && this.#idle.length === this.#processes.size)
      this.#idleTimer = setTimeout(() => this.close(), this.#idleMs).unref();
  }

  #start(): ScorerProcess {
    const process = new ScorerProcess(this.#setup, this.#memoryMb, this.#guard, () => {
      this.#processes.delete(process);
      const index = this.#idle.indexOf(process);
      if (index >= 0) this.#idle.splice(index, 1);
      this.#pump();
    });
    this.#processes.add(process);
    return process;
  }

  async #serve(process: ScorerProcess, job: Job): Promise<void> {
    try {
      job.resolve(await process.run(job.message, job.timeoutMs));
    } catch (error) {
      job.reject(error as Error);
    }
    if (this.#processes.has(process) && process.alive) this.#idle.push(process);
    this.#pump();
  }
}

class ScorerProcess {
  readonly #child: ScorerChild;
  #ready: Promise<unknown> | null = null;
  #ended: Error | null = null;
  #settle: ((reply: ScorerReply | Error) => void) | null = null;

  constructor(
    readonly setup: ScorerSetup,
    memoryMb: number | null,
    guard: GroupGuard,
    onExit: () => void,
  ) {
    // Computer algebra that runs out of memory would write a stack trace for each hopeless answer.
    const output = setup.kind !== 'symbolic';
    this.#child = startScorer(setup, { memoryMb, output, env: { [SCORER_VARIABLE]: '1' } }, guard);
    this.#child.on('message', (message: ScorerMessage) => {
      if (message.type === 'reply') this.#settle?.(message);
      if (message.type === 'stray') this.#end(strayError(message.error));
    });
    this.#child.on('error', (error) => {
      this.#end(error);
      // One that never started does not end either.
      if (this.#child.pid === undefined) onExit();
    });
    this.#child.on('exit', (code, signal) => {
      this.#end(endError(code, signal));
      onExit();
    });
  }

  get alive(): boolean {
    return this.#ended === null;
  }

  async run(job: unknown, timeoutMs: number): Promise<unknown> {
    hold(this.#child, true);
    try {
      this.#ready ??= this.#request({ type: 'setup', id: 0, setup: this.setup }, START_MS);
      await this.#ready;
      return await this.#request({ type: 'job', id: 1, job }, timeoutMs);
    } finally {
      if (this.alive) hold(this.#child, false);
    }
  }

  kill(reason: string): void {
    this.#end(new Error(reason));
    this.#child.kill('SIGKILL');
  }

  #request(request: ScorerRequest, timeoutMs: number): Promise<unknown> {
    return new Promise((resolve, reject) => {
      if (this.#ended) return reject(this.#ended);
      const late = (): void => this.kill(`no answer within ${timeoutMs / 1000} s`);
      const timer = setTimeout(late, timerMs(timeoutMs));
      this.#settle = (reply) => {
        this.#settle = null;
        clearTimeout(timer);
        if (reply instanceof Error) reject(reply);
        else if (reply.ok) resolve(reply.result);
        else reject(replyError(reply));
      };
      try {
        this.#child.send(request, (error) => error && !isLostChannel(error) && this.#settle?.(error));
      } catch (error) {
        this.#settle(error as Error);
      }
    });
  }

  #end(error: Error): void {
    this.#ended ??= error;
    this.#settle?.(this.#ended);
  }
}
