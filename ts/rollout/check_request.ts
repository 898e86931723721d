// What every engine refuses at once: requests that make no sense, or that it can never serve.
import { badOption, checkOptionNames, numberOption, temperatureOption } from '../base/check_options';
import { show } from '../base/text';
import type { RolloutRequest, SamplingParams } from './request';

const REQUEST_KEYS = ['promptIds', 'sampling', 'priority', 'deadlineMs', 'cacheSalt', 'grammar', 'session'];
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

/** What is asked for, complete: every option has a value. */
export type CompleteSampling = Required<Omit<SamplingParams, 'constraint' | 'seed' | 'stop'>> &
  Pick<SamplingParams, 'constraint' | 'seed'> & { stop: readonly string[] };

const MAX_TOP_LOG_PROBS = 1024;

/**
 * The sampling of a request, complete. INVALID_ARGUMENT for unknown options, values out of range, ids outside the vocabulary, an empty
 * prompt, and a prompt and response longer than `maxTokens` together.
 */
export function checkRequest(
  request: RolloutRequest,
  model: { vocabSize: number; maxTokens: number; eosTokenIds: readonly number[] },
  where = 'rollout',
): CompleteSampling {
  checkOptionNames(where, request, REQUEST_KEYS);
  checkOptionNames(`${where} sampling`, request.sampling, SAMPLING_KEYS);
  const { promptIds, sampling: s } = request;
  if (typeof promptIds !== 'object' || promptIds === null || !Number.isInteger(promptIds.length))
    throw badOption(where, `promptIds: expected an array of token ids but got ${show(promptIds)}`);
  const number = (
    name: keyof SamplingParams,
    fallback: number,
    rule: Parameters<typeof numberOption>[4],
  ): number => numberOption(where, name, s[name], fallback, rule);
  const complete: CompleteSampling = {
    maxNewTokens: number('maxNewTokens', 0, { integer: true, min: 1 }),
    temperature: temperatureOption(where, s.temperature, true),
    topK: Math.max(0, number('topK', 0, { integer: true, min: -1 })),
    topP: number('topP', 1, { above: 0, max: 1 }),
    minP: number('minP', 0, { min: 0, max: 1 }),
    repetitionPenalty: number('repetitionPenalty', 1, { above: 0, max: 100 }),
    presencePenalty: number('presencePenalty', 0, { min: -100, max: 100 }),
    frequencyPenalty: number('frequencyPenalty', 0, { min: -100, max: 100 }),
    stopTokenIds: s.stopTokenIds ?? model.eosTokenIds,
    stop: s.stop ?? [],
    badWords: s.badWords ?? [],
    logitBias: s.logitBias ?? new Map(),
    topLogProbs: number('topLogProbs', 0, { integer: true, min: 0, max: MAX_TOP_LOG_PROBS }),
    promptLogProbs: s.promptLogProbs ?? false,
    constraint: s.constraint,
    seed: s.seed,
  };
  if (s.maxNewTokens === undefined)
    throw badOption(where, 'maxNewTokens: expected an integer >= 1, but it is not given');
  if (request.grammar !== undefined) {
    throw badOption(
      where,
      `grammar: this engine takes constraints: turn the ${request.grammar.kind} into sampling.constraint first`,
    );
  }
  numberOption(where, 'priority', request.priority, 0, {});
  numberOption(where, 'deadlineMs', request.deadlineMs, 1, { above: 0 });
  if (typeof (s.seed ?? 0n) !== 'bigint')
    throw badOption(where, `seed: expected a bigint from 0 to 2^64 - 1 but got ${show(s.seed)}`);
  if (!complete.stop.every((text) => typeof text === 'string' && text !== ''))
    throw badOption(where, `stop: expected texts that are not empty but got ${show(s.stop)}`);

  const outside = (ids: ArrayLike<number>): number => {
    for (let i = 0; i < ids.length; i++) {
      const id = ids[i] as number;
      if (!Number.isInteger(id) || id < 0 || id >= model.vocabSize) return i;
    }
    return -1;
  };
  const refuseOutside = (name: string, ids: ArrayLike<number>): void => {
    const at = outside(ids);
    if (at < 0) return;
    throw badOption(
      where,
      `${name}: ${show(ids[at])} at position ${at} is outside the model's vocabulary (0 to ${model.vocabSize - 1})`,
    );
  };
  refuseOutside('promptIds', promptIds);
  refuseOutside('stopTokenIds', complete.stopTokenIds);
  refuseOutside('logitBias', [...complete.logitBias.keys()]);
  for (const [i, word] of complete.badWords.entries()) {
    if (word.length === 0) throw badOption(where, `badWords: entry ${i} is empty`);
    refuseOutside(`badWords, entry ${i}`, word);
  }
  for (const [id, bias] of complete.logitBias) {
    if (!Number.isFinite(bias))
      throw badOption(where, `logitBias of ${id}: expected a number but got ${bias}`);
  }
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
