// From what reward functions return, or fail to return, to the rewards of a batch.

import { notFinite } from '../../base/not_finite';
import { printable } from '../../base/printable';
import { reasonOf, show, toJson } from '../../base/text';
import { thrownAt } from '../../base/thrown_at';
import { timerMs } from '../../base/timers';
import { TroupeError } from '../../errors';
import { isBounded } from './bounded';
import type { RewardOutcome, RewardSample, Rewards } from './types';

const EXCERPT = 300;

export interface Scored {
  score: number;
  extra: Record<string, unknown>;
}

const cut = (text: string): string =>
  text.length <= EXCERPT ? text : `${text.slice(0, EXCERPT)}… (${text.length} characters)`;

/** Without what a terminal would obey: a text between quotes, all else as JSON. */
const excerpt = (value: unknown): string => {
  const text = typeof value === 'string' ? JSON.stringify(cut(value)) : cut(toJson(value) ?? 'undefined');
  return printable(text, { max: Number.POSITIVE_INFINITY });
};

/** What a function threw, as messages show it. */
export const thrownText = (error: unknown): string =>
  printable(`${reasonOf(error)}${error instanceof TroupeError ? '' : thrownAt(error, __filename)}`, {
    max: 1000,
  });

/** REWARD_FAILED for one response, with what there is to know about it. */
function failure(sample: RewardSample, index: number, what: string, cause?: unknown): TroupeError {
  return new TroupeError(
    'REWARD_FAILED',
    `[reward] ${what} for response ${index} of the batch: data_source ${excerpt(sample.dataSource)}, ` +
      `ground truth ${excerpt(sample.groundTruth)}, response ${excerpt(sample.response)}. ` +
      'Correct the reward function, or set reward.on_error=zero to score such responses 0',
    { cause },
  );
}

/** Also promises of another realm or library. */
export const isPromise = <T>(value: T | Promise<T>): value is Promise<T> =>
  typeof value === 'object' && value !== null && 'then' in value && typeof value.then === 'function';

async function withTimeout<T>(work: Promise<T>, timeoutMs: number): Promise<T> {
  let timer: NodeJS.Timeout | undefined;
  const expired = new Promise<never>((_, reject) => {
    const late = (): void => reject(new Error(`no answer within ${timeoutMs / 1000} s`));
    timer = setTimeout(late, timerMs(timeoutMs));
  });
  try {
    return await Promise.race([work, expired]);
  } finally {
    clearTimeout(timer);
  }
}

/** What `call` gives, waiting for it when it is async. Code that does not return cannot be interrupted here. */
export async function settle<T>(call: () => T | Promise<T>, timeoutMs: number): Promise<T> {
  const result = call();
  return isPromise(result) && !isBounded(result) ? await withTimeout(result, timeoutMs) : await result;
}

/** A missing function or setting concerns the whole run, not one sample. */
export const concernsRun = (error: unknown): boolean =>
  error instanceof TroupeError && error.code === 'INVALID_CONFIG';

/** The error for whatever a reward function threw on a sample. */
function failed(sample: RewardSample, index: number, error: unknown): unknown {
  if (concernsRun(error)) return error;
  return failure(sample, index, `the reward function failed (${thrownText(error)})`, error);
}

/** Text between quotes, so that "1" is not taken for 1, and 1n as that. */
const shown = (value: unknown): string => {
  if (typeof value === 'bigint') return `${value}n`;
  return typeof value === 'object' || typeof value === 'string' ? printable(show(value)) : String(value);
};

function readOutcome(outcome: RewardOutcome): Scored {
  if (typeof outcome === 'number' || typeof outcome === 'boolean') {
    return { score: Number(outcome), extra: { acc: Number(outcome) } };
  }
  if (typeof outcome === 'object' && outcome !== null) {
    const score = typeof outcome.score === 'boolean' ? Number(outcome.score) : outcome.score;
    return { score, extra: { ...outcome, score } };
  }
  return { score: Number.NaN, extra: {} };
}

/** A dump keeps it all, and a step has thousands of responses. */
const MAX_OUTCOME = 64 * 1024;

/**
 * The size of what a function returned, as JSON; for `batch`, of each element.
 * @throws Error when it is more than a run can keep of every response
 */
export function checkSize(outcome: unknown): void {
  for (const one of Array.isArray(outcome) ? outcome : [outcome]) {
    const size = sizeOf(one);
    if (size <= MAX_OUTCOME) continue;
    throw new Error(
      `it returned ${size} characters of JSON for one response, and ${MAX_OUTCOME} are the most that is kept`,
    );
  }
}

/** 0 for what JSON cannot hold, which is refused elsewhere. */
function sizeOf(outcome: unknown): number {
  try {
    return toJson(outcome)?.length ?? 0;
  } catch {
    return 0;
  }
}

/** In words, an outcome without a finite score. */
function withoutScore(outcome: unknown, score: unknown): string {
  if (typeof outcome !== 'object' || outcome === null || Array.isArray(outcome)) return shown(outcome);
  if (score !== undefined) return `{ score: ${shown(score)} }`;
  return `an object without score: ${shown(outcome)}`;
}

/** @throws TroupeError REWARD_FAILED when there is no finite score, or something beside it that JSON cannot hold, or too much of it */
export function checkedOutcome(outcome: RewardOutcome, sample: RewardSample, index: number): Scored {
  let scored: Scored;
  try {
    scored = readOutcome(outcome);
    toJson(scored);
  } catch (error) {
    const what = `expected JSON values beside the score from the reward function, but got some that are none (${thrownText(error)})`;
    throw failure(sample, index, what, error);
  }
  try {
    checkSize([outcome]);
  } catch (error) {
    throw failed(sample, index, error);
  }
  if (!Number.isFinite(scored.score)) {
    const got = withoutScore(outcome, scored.score);
    throw failure(sample, index, `expected a finite number from the reward function but got ${got}`);
  }
  const found = notFinite(scored.extra);
  if (found !== null) {
    const got = `${printable(found.at, { max: 100 })} = ${found.number}`;
    throw failure(
      sample,
      index,
      `expected finite numbers beside the score from the reward function but got ${got}`,
    );
  }
  return scored;
}

/**
 * Scores every sample, at most `concurrency` at once. A sample that fails ends it, or scores 0 with 'zero'; a mistake
 * of the configuration ends it in either case.
 */
export async function scoreEach(
  samples: readonly RewardSample[],
  score: (sample: RewardSample) => Promise<RewardOutcome>,
  options: { concurrency: number; onError: 'fail' | 'zero' },
): Promise<Rewards> {
  const scored: Scored[] = new Array(samples.length);
  let failures = 0;
  let next = 0;
  let stopped = false;
  const one = async (sample: RewardSample, index: number): Promise<Scored> => {
    let outcome: RewardOutcome;
    try {
      outcome = await score(sample);
    } catch (error) {
      throw failed(sample, index, error);
    }
    return checkedOutcome(outcome, sample, index);
  };
  const lane = async (): Promise<void> => {
    while (next < samples.length && !stopped) {
      const index = next++;
      try {
        scored[index] = await one(samples[index] as RewardSample, index);
      } catch (error) {
        if (options.onError === 'fail' || concernsRun(error)) {
          stopped = true;
          throw error;
        }
        failures++;
        scored[index] = { score: 0, extra: {} };
      }
    }
  };
  await Promise.all(Array.from({ length: Math.min(options.concurrency, samples.length) }, lane));
  return gather(scored, failures);
}

/** One column per key of the extras, whatever the keys are: models may have written them. */
export function gather(scored: readonly Scored[], failures: number): Rewards {
  const columns = new Map<string, unknown[]>();
  scored.forEach(({ extra }, i) => {
    for (const [key, value] of Object.entries(extra)) {
      const column = columns.get(key) ?? new Array<unknown>(scored.length).fill(undefined);
      columns.set(key, column);
      column[i] = value;
    }
  });
  const scores = Float64Array.from(scored, ({ score }) => score);
  return { scores, extras: Object.fromEntries(columns), failures };
}
