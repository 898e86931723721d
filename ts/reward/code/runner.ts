import type { RunStatus } from '../../sandbox/child_run';

export type { RunStatus } from '../../sandbox/child_run';

/** A Python program and what it reads. */
export interface RunRequest {
  /** Source text. */
  code: string;
  stdin: string;
}

export interface RunResult {
  status: RunStatus;
  /** What it printed; cut at the limit. */
  stdout: string;
  /** The end of what it wrote to stderr. */
  stderr: string;
}

/** Runs programs that nobody has read: in a sandbox here, or on a server. */
export interface CodeRunner {
  /** @throws TroupeError when the program could not be run at all; a program that fails is a result */
  run(request: RunRequest): Promise<RunResult>;
}

/** Lets at most `limit` pieces of work run at once, first come first served. */
export class Limiter {
  private running = 0;
  private readonly waiting: (() => void)[] = [];

  constructor(private readonly limit: number) {}

  async run<T>(work: () => Promise<T>): Promise<T> {
    if (this.running >= this.limit) await new Promise<void>((go) => this.waiting.push(go));
    else this.running++;
    try {
      return await work();
    } finally {
      // The place goes straight to the next in line, so that nobody can slip in between.
      const next = this.waiting.shift();
      if (next) next();
      else this.running--;
    }
  }
}

/** Makes a runner when it is first asked for, and then gives the same one. */
export function once(create: () => Promise<CodeRunner>): () => Promise<CodeRunner> {
  let made: Promise<CodeRunner> | null = null;
  return () => {
    made ??= create();
    return made;
  };
}
