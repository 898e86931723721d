import { TroupeError } from '../errors';
import { reasonOf } from '../text';
import { isBounded } from './bounded';
import type { RewardFunction, RewardOutcome, RewardSample } from './types';

export interface RewardManagerOptions {
  /** Longest wait for one response of an async reward function, milliseconds. 300000 */
  timeoutMs?: number;
  /** A reward function that throws, times out or returns no finite number: stop the run, or score 0. 'fail' */
  onError?: 'fail' | 'zero';
  /** Async reward functions in flight at once. 64 */
  concurrency?: number;
}

/** Rewards of B responses. */
export interface Rewards {
  /** [B] */
  scores: Float64Array;
  /** [B] per key that the reward function returned besides `score`; `acc` for plain numbers. undefined: not for this row. */
  extras: Record<string, unknown[]>;
  /** Responses that were scored 0 because the reward function failed. */
  failures: number;
}

const EXCERPT = 300;

const excerpt = (text: string): string =>
  JSON.stringify(text.length <= EXCERPT ? text : `${text.slice(0, EXCERPT)}… (${text.length} characters)`);

function failure(sample: RewardSample, index: number, what: string, cause?: unknown): TroupeError {
  return new TroupeError(
    'REWARD_FAILED',
    `[reward] ${what} for response ${index} of the batch: data_source ${JSON.stringify(sample.dataSource)}, ` +
      `ground truth ${excerpt(JSON.stringify(sample.groundTruth) ?? 'undefined')}, response ${excerpt(sample.response)}. ` +
      'Correct the reward function, or set reward.on_error=zero to score such responses 0',
    { cause },
  );
}

/** Also promises of another realm or library. */
const isPromise = (value: unknown): value is Promise<RewardOutcome> =>
  typeof value === 'object' && value !== null && 'then' in value && typeof value.then === 'function';

async function withTimeout(work: Promise<RewardOutcome>, timeoutMs: number): Promise<RewardOutcome> {
  let timer: NodeJS.Timeout | undefined;
  const expired = new Promise<never>((_, reject) => {
    timer = setTimeout(() => reject(new Error(`no answer within ${timeoutMs / 1000} s`)), timeoutMs);
  });
  try {
    return await Promise.race([work, expired]);
  } finally {
    clearTimeout(timer);
  }
}

interface Scored {
  score: number;
  extra: Record<string, unknown>;
}

function readOutcome(outcome: RewardOutcome): Scored {
  if (typeof outcome === 'number' || typeof outcome === 'boolean') {
    return { score: Number(outcome), extra: { acc: Number(outcome) } };
  }
  if (typeof outcome === 'object' && outcome !== null) {
    const { score, ...extra } = outcome;
    return { score: typeof score === 'boolean' ? Number(score) : score, extra };
  }
  return { score: Number.NaN, extra: {} };
}

async function scoreOne(
  fn: RewardFunction,
  sample: RewardSample,
  index: number,
  timeoutMs: number,
): Promise<Scored> {
  let outcome: RewardOutcome;
  try {
    const result = fn(sample);
    outcome = isPromise(result) && !isBounded(result) ? await withTimeout(result, timeoutMs) : await result;
  } catch (error) {
    // A function missing from the registry concerns the configuration, not the sample.
    if (error instanceof TroupeError && error.code === 'INVALID_CONFIG') throw error;
    const reason = reasonOf(error);
    throw failure(sample, index, `the reward function failed (${reason})`, error);
  }
  const scored = readOutcome(outcome);
  if (!Number.isFinite(scored.score)) {
    const got = typeof outcome === 'object' ? `{ score: ${String(scored.score)} }` : String(outcome);
    throw failure(sample, index, `expected a finite number from the reward function but got ${got}`);
  }
  return scored;
}

/**
 * verl's naive reward manager: every response is scored on its own, in order of the batch whatever the order in
 * which async functions answer. A synchronous function cannot be interrupted: the time-out is for async ones.
 * @throws TroupeError REWARD_FAILED naming the first sample that failed, unless `onError` is 'zero'.
 */
export async function computeRewards(
  fn: RewardFunction,
  samples: readonly RewardSample[],
  options: RewardManagerOptions = {},
): Promise<Rewards> {
  const { timeoutMs = 300_000, onError = 'fail', concurrency = 64 } = options;
  const scored: Scored[] = new Array(samples.length);
  let failures = 0;
  let next = 0;
  let stopped = false;
  const lane = async (): Promise<void> => {
    while (next < samples.length && !stopped) {
      const index = next++;
      try {
        scored[index] = await scoreOne(fn, samples[index] as RewardSample, index, timeoutMs);
      } catch (error) {
        const recoverable = error instanceof TroupeError && error.code === 'REWARD_FAILED';
        if (onError === 'fail' || !recoverable) {
          stopped = true;
          throw error;
        }
        failures++;
        scored[index] = { score: 0, extra: {} };
      }
    }
  };
  await Promise.all(Array.from({ length: Math.min(concurrency, samples.length) }, lane));

  const scores = Float64Array.from(scored, ({ score }) => score);
  const extras: Record<string, unknown[]> = {};
  scored.forEach(({ extra }, i) => {
    for (const [key, value] of Object.entries(extra)) {
      extras[key] ??= new Array(samples.length).fill(undefined);
      (extras[key] as unknown[])[i] = value;
    }
  });
  return { scores, extras, failures };
}
