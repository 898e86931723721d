// What a caller of batches may ask of a generation, and the random numbers of its samples.
import { hash } from 'node:crypto';
import {
  badOption,
  checkOptionNames,
  countOption,
  numberOption,
  temperatureOption,
} from '../base/check_options';
import { RUN_LIMITS } from '../base/limits';
import { show } from '../base/text';
import { Batch, type Seqs } from '../batch/batch';
import type { PromptImage } from '../batch/prompt_image';
import type { SamplingParams } from './request';
import { SampledColumns } from './sampled_columns';

export interface SamplingOptions {
  maxNewTokens: number;
  /** Samples per prompt, 1; results are grouped by prompt. */
  n?: number;
  /** 1; 0 is greedy. */
  temperature?: number;
  /** Sample among the k most likely tokens; off by default, and with 0 or -1. */
  topK?: number;
  /** Sample among the most likely tokens that together reach this probability; off by default, and with 1. */
  topP?: number;
  /** Sample among the tokens that are at least this fraction as likely as the most likely one; off by default, and with 0. */
  minP?: number;
  /** Divides the logits of tokens that are in the prompt or the response; off by default, and with 1. */
  repetitionPenalty?: number;
  /** Ids that end a response and are its last token. Default: the engine's eos ids; []: never stop early. */
  stopTokenIds?: number[];
  /** Default 0: calls with the same prompts and seed give the same samples. */
  seed?: number;
  /** Prompt and response together: a response that reaches it ends. Default: a prompt that leaves no room for `maxNewTokens` is refused. */
  maxTokens?: number;
}

const KEYS = [
  'maxNewTokens',
  'n',
  'temperature',
  'topK',
  'topP',
  'minP',
  'repetitionPenalty',
  'stopTokenIds',
  'seed',
  'maxTokens',
];

export interface ResolvedSampling {
  /** Of every request; without its seed. */
  sampling: SamplingParams;
  n: number;
  seed: number;
  /** Prompt and response together; Infinity: as the engine has it. */
  maxTokens: number;
}

export function resolveSampling(where: string, o: SamplingOptions): ResolvedSampling {
  checkOptionNames(where, o, KEYS);
  const topK = numberOption(where, 'topK', o.topK, 0, { integer: true, min: -1 });
  const { stopTokenIds } = o;
  if (
    stopTokenIds !== undefined &&
    !(Array.isArray(stopTokenIds) && stopTokenIds.every((id) => Number.isInteger(id) && id >= 0))
  ) {
    throw badOption(where, `stopTokenIds: expected an array of token ids but got ${show(stopTokenIds)}`);
  }
  return {
    sampling: {
      maxNewTokens: countOption(where, 'maxNewTokens', o.maxNewTokens, RUN_LIMITS.tokens),
      temperature: temperatureOption(where, o.temperature, true),
      topK: Math.max(topK, 0),
      topP: numberOption(where, 'topP', o.topP, 1, { above: 0, max: 1 }),
      minP: numberOption(where, 'minP', o.minP, 0, { min: 0, max: 1 }),
      repetitionPenalty: numberOption(where, 'repetitionPenalty', o.repetitionPenalty, 1, {
        above: 0,
        max: 100,
      }),
      ...(stopTokenIds === undefined ? {} : { stopTokenIds: [...stopTokenIds] }),
    },
    n: countOption(where, 'n', o.n, RUN_LIMITS.samples, 1),
    seed: numberOption(where, 'seed', o.seed, 0, { integer: true, min: 0 }),
    maxTokens: numberOption(where, 'maxTokens', o.maxTokens, Number.POSITIVE_INFINITY, {
      integer: true,
      min: 2,
    }),
  };
}

/** Prompts as a batch without responses: the form in which they are checked and cut over ranks. */
export function promptsBatch(
  where: string,
  prompts: Seqs,
  n: number,
  images: readonly (readonly PromptImage[])[] | null = null,
): Batch {
  if (typeof prompts !== 'object' || prompts === null || !Number.isInteger(prompts.length))
    throw badOption(where, `prompts: expected an array of token ids per prompt but got ${show(prompts)}`);
  if (prompts.length * n > RUN_LIMITS.sequences) {
    throw badOption(
      where,
      `n: expected at most ${RUN_LIMITS.sequences} sequences in all but got ${prompts.length} prompts x ${n}: call it in parts`,
    );
  }
  return Batch.fromSequences(
    prompts,
    Array.from({ length: prompts.length }, () => new Int32Array(0)),
    images === null ? {} : { images },
  );
}

/**
 * One seed per sample, from (seed, tokens of the prompt, how many samples of that same prompt came before). A sample thus
 * depends neither on the other prompts nor on their order. SHA-256, first 64 bits.
 */
export function sampleSeeds(prompts: Batch, n: number, seed: number): BigUint64Array {
  const seeds = new BigUint64Array(prompts.size * n);
  const seen = new Map<string, number>();
  for (let i = 0; i < prompts.size; i++) {
    const digest = hash('sha256', prompts.prompt(i), 'hex');
    const occurrence = seen.get(digest) ?? 0;
    seen.set(digest, occurrence + 1);
    for (let k = 0; k < n; k++) seeds[i * n + k] = sampleSeed(seed, digest, occurrence * n + k);
  }
  return seeds;
}

/** Of prompt `index` of `prompts`, what {@link sampleSeeds} gives. [n] */
export function promptSeeds(
  prompts: readonly ArrayLike<number>[],
  index: number,
  n: number,
  seed: number,
): BigUint64Array {
  const ids = Int32Array.from(prompts[index] as ArrayLike<number>);
  const same = (other: ArrayLike<number>): boolean =>
    other.length === ids.length && ids.every((id, t) => id === other[t]);
  const before = prompts.slice(0, index).filter(same).length;
  const digest = hash('sha256', ids, 'hex');
  return BigUint64Array.from({ length: n }, (_, k) => sampleSeed(seed, digest, before * n + k));
}

const sampleSeed = (seed: number, digest: string, sample: number): bigint =>
  hash('sha256', `${seed}:${digest}:${sample}`, 'buffer').readBigUInt64LE(0);

/** A prompt's sample: its tokens and their log-probabilities. */
export interface SampledTokens {
  tokens: Int32Array;
  logProbs: Float32Array;
  routedExperts?: Uint8Array;
}

/** Prompts and what was sampled after them: n sequences per prompt, with rolloutLogProbs, a response mask of ones, and routedExperts where all samples have them. */
export function sampledBatch(prompts: Batch, n: number, samples: readonly SampledTokens[]): Batch {
  const columns = new SampledColumns(
    prompts,
    n,
    Int32Array.from(samples, ({ tokens }) => tokens.length),
  );
  for (const [j, { tokens, logProbs }] of samples.entries()) {
    columns.response(j).set(tokens);
    columns.logProbs(j, j + 1).set(logProbs);
  }
  const experts = samples.flatMap(({ routedExperts }) =>
    routedExperts === undefined ? [] : [routedExperts],
  );
  return columns.batch(columns.size > 0 && experts.length === columns.size ? experts : null);
}
