// A worker on a host, as its controller sees it through the agent there.
import type { WorkerExit, WorkerProcess } from '../controller/launcher';

const TAIL_LINES = 20;

export class RemoteWorker implements WorkerProcess {
  readonly exited: Promise<WorkerExit>;
  readonly host: string;
  readonly address: string;
  pid: number | null = null;
  /** Whether somebody has stopped it (SIGSTOP), as its agent said last. */
  isStopped = false;
  readonly #signal: (signal: NodeJS.Signals) => void;
  readonly #tail: string[] = [];
  readonly #listeners: ((text: string, isError: boolean) => void)[] = [];
  #resolve!: (exit: WorkerExit) => void;

  constructor(host: string, address: string, signal: (signal: NodeJS.Signals) => void) {
    this.host = host;
    this.address = address;
    this.#signal = signal;
    this.exited = new Promise((resolve) => {
      this.#resolve = resolve;
    });
  }

  listen(line: (text: string, isError: boolean) => void): void {
    this.#listeners.push(line);
  }

  stderrTail(): string {
    return this.#tail.join('\n');
  }

  kill(): void {
    this.#signal('SIGKILL');
  }

  stopped(): boolean {
    return this.isStopped;
  }

  /** A line that it has written. */
  said(line: string, isError: boolean): void {
    for (const listener of this.#listeners) listener(line, isError);
    if (!isError) return;
    this.#tail.push(line);
    if (this.#tail.length > TAIL_LINES) this.#tail.shift();
  }

  end(exit: WorkerExit): void {
    this.#resolve(exit);
  }
}
