// What every engine refuses at once: requests that make no sense, or that it can never serve.
import { types } from 'node:util';
import {
  badOption,
  checkOptionNames,
  flagOption,
  listLength,
  numberOption,
  temperatureOption,
} from '../base/check_options';
import { isWellFormed, show } from '../base/text';
import { requireImages } from '../batch/prompt_image';
import type { RolloutRequest, SamplingParams } from './request';

const REQUEST_KEYS = [
  'promptIds',
  'images',
  'sampling',
  'priority',
  'deadlineMs',
  'cacheSalt',
  'grammar',
  'session',
];
const SAMPLING_KEYS = [
  'maxNewTokens',
  'temperature',
  'topK',
  'topP',
  'minP',
  'repetitionPenalty',
  'presencePenalty',
  'frequencyPenalty',
  'stopTokenIds',
  'stop',
  'badWords',
  'logitBias',
  'constraint',
  'topLogProbs',
  'promptLogProbs',
  'seed',
];

/** What requests that differ in prompt and seed alone have in common, complete: every option has a value. */
export type SharedSampling = Required<Omit<SamplingParams, 'constraint' | 'seed' | 'stop'>> &
  Pick<SamplingParams, 'constraint'> & { stop: readonly string[] };

/** What is asked for, complete. */
export type CompleteSampling = SharedSampling & Pick<SamplingParams, 'seed'>;

const MAX_TOP_LOG_PROBS = 1024;

/** What a model can serve. */
export interface ModelBounds {
  vocabSize: number;
  /** Prompt and response together. */
  maxTokens: number;
  eosTokenIds: readonly number[];
}

/** Checks requests. Those of a batch differ in prompt and seed alone: their sampling is checked once and is one object. */
export class RequestChecks {
  private last: { of: SamplingParams; complete: SharedSampling } | null = null;

  /** What comes after is looked at anew, also where it looks the same. */
  forget(): void {
    this.last = null;
  }

  /**
   * The sampling of a request, complete. INVALID_ARGUMENT for unknown options, values out of range, ids outside the vocabulary, an empty
   * prompt, and a prompt and response longer than `maxTokens` together.
   */
  check(request: RolloutRequest, model: ModelBounds): SharedSampling {
    const where = 'rollout';
    checkOptionNames(where, request, REQUEST_KEYS);
    const { promptIds, sampling } = request;
    refuseUnless(isArrayLike(promptIds), 'promptIds', 'an array of token ids', promptIds);
    let complete: SharedSampling;
    if (this.last !== null && sameButSeed(this.last.of, sampling)) {
      complete = this.last.complete;
    } else {
      complete = completeSampling(where, sampling, model.eosTokenIds);
      checkSampling(where, complete, model.vocabSize, sampling.stopTokenIds === undefined);
      // A copy: a caller may change its own for the next request.
      this.last = { of: { ...sampling }, complete };
    }
    numberOption(where, 'priority', request.priority, 0, {});
    numberOption(where, 'deadlineMs', request.deadlineMs, 1, { above: 0 });
    const { seed = 0n } = sampling;
    refuseUnless(isSeed(seed), 'seed', 'a bigint from 0 to 2^64 - 1', seed);
    const { cacheSalt, session, grammar, images } = request;
    if (images !== undefined) requireImages('rollout images', images);
    refuseUnless(isTextOrAbsent(cacheSalt), 'cacheSalt', 'a text', cacheSalt);
    refuseUnless(isTextOrAbsent(session), 'session', 'a text', session);
    refuseUnless(grammar === undefined || isGrammar(grammar), 'grammar', GRAMMARS, grammar);
    refuseOutside(where, 'promptIds', promptIds, model.vocabSize);
    if (promptIds.length === 0) throw badOption(where, 'promptIds: expected at least one token');
    const total = promptIds.length + complete.maxNewTokens;
    if (total > model.maxTokens) {
      throw badOption(
        where,
        `the prompt has ${promptIds.length} tokens and maxNewTokens is ${complete.maxNewTokens}: together ${total}, more than the ` +
          `${model.maxTokens} that the engine can hold`,
      );
    }
    return complete;
  }
}

/** The sampling of one request, complete, its seed included; errors as with {@link RequestChecks.check}. */
export function checkRequest(request: RolloutRequest, model: ModelBounds): CompleteSampling {
  const sampling = new RequestChecks().check(request, model);
  const { seed } = request.sampling;
  return seed === undefined ? sampling : { ...sampling, seed };
}

/** The request as it is now, without its lists of numbers: what its caller changes for the next one is of that alone. */
export const asSubmitted = (request: RolloutRequest): RolloutRequest => ({
  ...request,
  sampling: { ...request.sampling },
  ...(request.images === undefined ? {} : { images: [...request.images] }),
});

const refuseUnless = (fits: boolean, name: string, expected: string, given: unknown): void => {
  if (!fits) throw badOption('rollout', `${name}: expected ${expected} but got ${show(given)}`);
};

/** What ends a response that says nothing of it. */
const OWN_ENDS =
  'end tokens of the model (eos_token_id of its generation_config.json, else of config.json, and eos_token of the tokenizer)';

const GRAMMARS =
  "{kind: 'json-schema', schema} or {kind: 'structural-tag', tag}, schema and tag as JSON texts,";

const isArrayLike = (value: unknown): value is ArrayLike<unknown> => listLength(value) !== null;
const isSeed = (value: unknown): boolean => typeof value === 'bigint' && value === BigInt.asUintN(64, value);
const isTextOrAbsent = (value: unknown): boolean => value === undefined || typeof value === 'string';
const isGrammar = (value: unknown): boolean => {
  const { kind, schema, tag } = (value ?? {}) as Record<string, unknown>;
  return typeof (kind === 'json-schema' ? schema : kind === 'structural-tag' ? tag : null) === 'string';
};

/** Of options that are no numbers: callers in JavaScript give anything. */
function checkKinds({ stopTokenIds, stop, badWords, logitBias, constraint }: SamplingParams): void {
  refuseUnless(isArrayLike(stopTokenIds ?? []), 'stopTokenIds', 'an array of token ids', stopTokenIds);
  refuseUnless(Array.isArray(stop ?? []), 'stop', 'an array of texts', stop);
  const words: unknown = badWords ?? [];
  refuseUnless(
    Array.isArray(words) && Array.from(words).every(isArrayLike),
    'badWords',
    'an array of arrays of token ids',
    badWords,
  );
  refuseUnless(types.isMap(logitBias ?? new Map()), 'logitBias', 'a Map of token ids and numbers', logitBias);
  refuseUnless(
    typeof (constraint ?? { next: show }).next === 'function',
    'constraint',
    'an object with the method next',
    constraint,
  );
}

/** Of lists it sees those of one batch, which are the same object. */
function sameButSeed(a: SamplingParams, b: SamplingParams): boolean {
  if (typeof b !== 'object' || b === null) return false;
  const keys = Object.keys(b) as (keyof SamplingParams)[];
  if (keys.length !== Object.keys(a).length) return false;
  return keys.every((key) => key === 'seed' || (Object.hasOwn(a, key) && Object.is(a[key], b[key])));
}

function completeSampling(where: string, s: SamplingParams, eosTokenIds: readonly number[]): SharedSampling {
  checkOptionNames(`${where} sampling`, s, SAMPLING_KEYS);
  checkKinds(s);
  const number = (
    name: keyof SamplingParams,
    fallback: number,
    rule: Parameters<typeof numberOption>[4],
  ): number => numberOption(where, name, s[name], fallback, rule);
  const complete: SharedSampling = {
    maxNewTokens: number('maxNewTokens', 0, { integer: true, min: 1 }),
    temperature: temperatureOption(where, s.temperature, true),
    topK: Math.max(0, number('topK', 0, { integer: true, min: -1 })),
    topP: number('topP', 1, { above: 0, max: 1 }),
    minP: number('minP', 0, { min: 0, max: 1 }),
    repetitionPenalty: number('repetitionPenalty', 1, { above: 0, max: 100 }),
    presencePenalty: number('presencePenalty', 0, { min: -100, max: 100 }),
    frequencyPenalty: number('frequencyPenalty', 0, { min: -100, max: 100 }),
    // Copies: it is read when it is sent, and what a caller does to its own lists in between was never looked at.
    stopTokenIds: Array.from(s.stopTokenIds ?? eosTokenIds),
    stop: [...(s.stop ?? [])],
    badWords: (s.badWords ?? []).map((word) => Array.from(word)),
    logitBias: new Map(s.logitBias ?? []),
    topLogProbs: number('topLogProbs', 0, { integer: true, min: 0, max: MAX_TOP_LOG_PROBS }),
    promptLogProbs: flagOption(where, 'promptLogProbs', s.promptLogProbs, false),
    constraint: s.constraint,
  };
  if (s.maxNewTokens === undefined)
    throw badOption(where, 'maxNewTokens: expected an integer >= 1, but it is not given');
  return complete;
}

export function refuseOutside(where: string, name: string, ids: ArrayLike<number>, vocabSize: number): void {
  for (let i = 0; i < ids.length; i++) {
    const id = ids[i] as number;
    if (Number.isInteger(id) && id >= 0 && id < vocabSize) continue;
    throw badOption(
      where,
      `${name}: ${show(id)} at position ${i} is outside the model's vocabulary (0 to ${vocabSize - 1})`,
    );
  }
}

/** `own`: what ends responses is what the model says. */
function checkSampling(where: string, s: SharedSampling, vocabSize: number, own: boolean): void {
  if (!s.stop.every((text) => typeof text === 'string' && text !== ''))
    throw badOption(where, `stop: expected texts that are not empty but got ${show(s.stop)}`);
  // Half a character would be found within others.
  if (!s.stop.every(isWellFormed))
    throw badOption(
      where,
      `stop: expected texts of whole characters, got half a surrogate pair in ${show(s.stop)}`,
    );
  refuseOutside(where, own ? OWN_ENDS : 'stopTokenIds', s.stopTokenIds, vocabSize);
  refuseOutside(where, 'logitBias', [...s.logitBias.keys()], vocabSize);
  for (const [i, word] of s.badWords.entries()) {
    if (word.length === 0) throw badOption(where, `badWords: entry ${i} is empty`);
    refuseOutside(where, `badWords, entry ${i}`, word, vocabSize);
  }
  for (const [id, bias] of s.logitBias) {
    if (!Number.isFinite(bias))
      throw badOption(where, `logitBias of ${id}: expected a number but got ${show(bias)}`);
  }
}
