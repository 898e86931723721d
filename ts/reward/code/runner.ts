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

/** Makes a runner when it is first asked for, and then gives the same one. */
export function once(create: () => Promise<CodeRunner>): () => Promise<CodeRunner> {
  let made: Promise<CodeRunner> | null = null;
  return () => {
    made ??= create();
    return made;
  };
}
