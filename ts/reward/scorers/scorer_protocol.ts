import type { RewardKwargs } from '../contract/types';

// What scorer processes (scorer_main.ts, and python/reward_worker.py) and those who start them (scorer_pool.ts, reward_process.ts) tell each other.

/** The user's module and function. */
export interface UserModule {
  path: string;
  name: string;
  /** Runs a module in Python (.py). python3 */
  python?: string;
  /** In Python: the function takes lists, as verl's manager `batch` calls it. false */
  batch?: boolean;
  /** In Python: what the manager adds to extra_info. nothing */
  extraInfo?: Readonly<Record<string, unknown>>;
}

/**
 * What a process does, told once. `function`: the user's function, or with `module` null the registered ones; `libraries`
 * are loaded first, because they may register some.
 */
export type ScorerSetup =
  | {
      kind: 'function';
      module: UserModule | null;
      libraries: readonly string[];
      kwargs: RewardKwargs;
    }
  | { kind: 'symbolic' };

/** Two LaTeX expressions that a `symbolic` process compares. */
export interface Comparison {
  answer: string;
  truth: string;
}

/** The setup first, then jobs. Every one has a number, and is answered by one `reply` with it; `ask` by `here`, at once. */
export type ScorerRequest =
  | { type: 'ask' }
  | { type: 'setup'; id: number; setup: ScorerSetup }
  | { type: 'job'; id: number; job: unknown };

/**
 * here: also of Python, as soon as it runs. begin: the function is called now. waiting: it has given a promise, `bounded` when it bounds its time itself. reply: the result (null
 * for the setup), or an error, which with `configuration` concerns the whole run. stray: an error that nothing awaited; the
 * process ends.
 */
export type ScorerMessage =
  | { type: 'here' }
  | { type: 'begin'; id: number }
  | { type: 'waiting'; id: number; bounded: boolean }
  | { type: 'reply'; id: number; ok: true; result: unknown }
  | { type: 'reply'; id: number; ok: false; error: string; configuration: boolean }
  | { type: 'stray'; error: string };

export type ScorerReply = Extract<ScorerMessage, { type: 'reply' }>;

/** Set in the processes of the manager prime, each of which does one job at a time and is killed when that is late. */
export const SCORER_VARIABLE = 'TROUPE_SCORER';

/** Characters of an error that the trainer is told. */
export const MAX_REASON = 2000;
