// What every engine refuses at once: requests that make no sense, or that it can never serve.
import { badOption, checkOptionNames, numberOption, temperatureOption } from '../base/check_options';
import { show } from '../base/text';
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
    if (typeof promptIds !== 'object' || promptIds === null || !Number.isInteger(promptIds.length))
      throw badOption(where, `promptIds: expected an array of token ids but got ${show(promptIds)}`);
    let complete: SharedSampling;
    if (this.last !== null && sameButSeed(this.last.of, sampling)) {
      complete = this.last.complete;
    } else {
      complete = completeSampling(where, sampling, model.eosTokenIds);
      checkSampling(where, complete, model.vocabSize);
      this.last = { of: sampling, complete };
    }
    numberOption(where, 'priority', request.priority, 0, {});
    numberOption(where, 'deadlineMs', request.deadlineMs, 1, { above: 0 });
    if (typeof (sampling.seed ?? 0n) !== 'bigint')
      throw badOption(where, `seed: expected a bigint from 0 to 2^64 - 1 but got ${show(sampling.seed)}`);
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

/** Of lists it sees those of one batch, which are the same object. */
function sameButSeed(a: SamplingParams, b: SamplingParams): boolean {
  if (typeof b !== 'object' || b === null) return false;
  const keys = Object.keys(b) as (keyof SamplingParams)[];
  if (keys.length !== Object.keys(a).length) return false;
  return keys.every((key) => key === 'seed' || (Object.hasOwn(a, key) && Object.is(a[key], b[key])));
}

function completeSampling(where: string, s: SamplingParams, eosTokenIds: readonly number[]): SharedSampling {
  checkOptionNames(`${where} sampling`, s, SAMPLING_KEYS);
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
    stopTokenIds: s.stopTokenIds ?? eosTokenIds,
    stop: s.stop ?? [],
    badWords: s.badWords ?? [],
    logitBias: s.logitBias ?? new Map(),
    topLogProbs: number('topLogProbs', 0, { integer: true, min: 0, max: MAX_TOP_LOG_PROBS }),
    promptLogProbs: s.promptLogProbs ?? false,
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

function checkSampling(where: string, s: SharedSampling, vocabSize: number): void {
  if (!s.stop.every((text) => typeof text === 'string' && text !== ''))
    throw badOption(where, `stop: expected texts that are not empty but got ${show(s.stop)}`);
  refuseOutside(where, 'stopTokenIds', s.stopTokenIds, vocabSize);
  refuseOutside(where, 'logitBias', [...s.logitBias.keys()], vocabSize);
  for (const [i, word] of s.badWords.entries()) {
    if (word.length === 0) throw badOption(where, `badWords: entry ${i} is empty`);
    refuseOutside(where, `badWords, entry ${i}`, word, vocabSize);
  }
  for (const [id, bias] of s.logitBias) {
    if (!Number.isFinite(bias))
      throw badOption(where, `logitBias of ${id}: expected a number but got ${bias}`);
  }
}
