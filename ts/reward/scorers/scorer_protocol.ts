import type { RewardKwargs } from '../contract/types';

// What a scorer pool (scorer_pool.ts) and its processes (scorer_main.ts) tell each other.

/**
 * What a process does, told once. `function`: the user's function, or with `module` null the registered ones; `libraries`
 * are loaded first, because they may register some.
 */
export type ScorerSetup =
  | {
      kind: 'function';
      module: { path: string; name: string } | null;
      libraries: readonly string[];
      kwargs: RewardKwargs;
    }
  | { kind: 'symbolic' };

/** Two LaTeX expressions that a `symbolic` process compares. */
export interface Comparison {
  answer: string;
  truth: string;
}

/** The first message; then one job at a time, each answered by one reply. */
export type ScorerRequest = { type: 'setup'; setup: ScorerSetup } | { type: 'job'; job: unknown };

/** `configuration`: the error concerns the whole run. The setup is answered with null. */
export type ScorerReply =
  | { ok: true; result: unknown }
  | { ok: false; error: string; configuration: boolean };

/** Set in scorer processes. */
export const SCORER_VARIABLE = 'TROUPE_SCORER';
