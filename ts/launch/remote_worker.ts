// A worker on a host, as its controller sees it through the agent there.
import type { StackKind, WorkerExit, WorkerProcess } from '../controller/launcher';

const TAIL_LINES = 20;

/** What its agent can be asked for. */
export interface RemoteCalls {
  signal(signal: NodeJS.Signals): void;
  /** Answered by {@link RemoteWorker.stacksCame}. */
  askStacks(kind: StackKind): void;
}

export class RemoteWorker implements WorkerProcess {
  readonly exited: Promise<WorkerExit>;
  readonly host: string;
  readonly address: string;
  pid: number | null = null;
  /** Whether somebody has stopped it (SIGSTOP), as its agent said last. */
  isStopped = false;
  readonly #signal: (signal: NodeJS.Signals) => void;
  readonly #askStacks: (kind: StackKind) => void;
  /** Who waits for them. */
  readonly #stacks: Record<StackKind, ((text: string) => void)[]> = { native: [], script: [] };
  readonly #tail: string[] = [];
  readonly #listeners: ((text: string, isError: boolean) => void)[] = [];
  #resolve!: (exit: WorkerExit) => void;

  constructor(host: string, address: string, { signal, askStacks }: RemoteCalls) {
    this.host = host;
    this.address = address;
    this.#signal = signal;
    this.#askStacks = askStacks;
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

  stacks(kind: StackKind): Promise<string> {
    return new Promise((resolve) => {
      this.#stacks[kind].push(resolve);
      this.#askStacks(kind);
      void this.exited.then(() => resolve(''));
    });
  }

  /** What its agent has found. */
  stacksCame(kind: StackKind, text: string): void {
    for (const resolve of this.#stacks[kind].splice(0)) resolve(text);
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
