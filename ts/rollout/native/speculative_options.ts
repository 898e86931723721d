// How our own engine drafts, as a caller says it and as its workers take it.
import { badOption, checkOptionNames, countOption, numberOption } from '../../base/check_options';
import { RUN_LIMITS } from '../../base/limits';
import { show } from '../../base/text';
import type { RoleEngine } from '../../engine/role_engine';
import type { NativeDraftOptions } from '../../native/bridge';

/**
 * Speculative decoding: tokens that may come next are computed beside the next one, in one step, and those that are then sampled are kept. It pays where few
 * requests run and their texts repeat what stands in the prompt, in the response or in other responses to the prompt.
 */
export interface SpeculativeConfig {
  /**
   * `ngram`: drafts are what stands behind an earlier place with the same last tokens (prompt lookup). `mtp`: they are what the model's own layer for further
   * tokens predicts, of an engine with the option `mtp`.
   */
  method: 'ngram' | 'mtp';
  /** Of a request per step, 4. */
  numSpeculativeTokens?: number;
  /** Of ngram: last tokens that must match, 2. */
  promptLookupMin?: number;
  /** Of ngram: last tokens that are compared, 8: the longest match counts. */
  promptLookupMax?: number;
  /**
   * With more requests than these at the same time on a rank nothing is drafted, 16; with n of them what is right with a probability of n / this, as far as
   * earlier guesses tell.
   */
  disableByBatchSize?: number;
  /** Of ngram: tokens of responses that have ended, to draft others of the same prompt from, 4194304; the oldest go first. */
  historyTokens?: number;
}

const KEYS = [
  'method',
  'numSpeculativeTokens',
  'promptLookupMin',
  'promptLookupMax',
  'disableByBatchSize',
  'historyTokens',
];

/** @throws TroupeError INVALID_ARGUMENT naming the option */
export function draftOptions(
  { model }: RoleEngine,
  o: SpeculativeConfig | undefined,
): NativeDraftOptions | null {
  if (o === undefined) return null;
  const where = 'rollout options: speculative';
  checkOptionNames(where, o, KEYS);
  const { method } = o;
  if (method !== 'ngram' && method !== 'mtp')
    throw badOption(where, `method: expected one of ngram, mtp but got ${show(method)}`);
  if (method === 'mtp' && model.config.prediction === null) {
    throw badOption(
      where,
      "method mtp: the engine has none of the model's layers that predict further tokens: create it with the option mtp (train: false where they stay as they are)",
    );
  }
  const minMatch = countOption(where, 'promptLookupMin', o.promptLookupMin, RUN_LIMITS.match, 2);
  const maxMatch = countOption(
    where,
    'promptLookupMax',
    o.promptLookupMax,
    RUN_LIMITS.match,
    Math.max(8, minMatch),
  );
  if (minMatch > maxMatch)
    throw badOption(where, `promptLookupMin: expected at most promptLookupMax ${maxMatch}, got ${minMatch}`);
  return {
    numTokens: countOption(where, 'numSpeculativeTokens', o.numSpeculativeTokens, RUN_LIMITS.tokens, 4),
    predicts: method === 'mtp',
    minMatch,
    maxMatch,
    maxSequences: countOption(where, 'disableByBatchSize', o.disableByBatchSize, RUN_LIMITS.sequences, 16),
    rememberedTokens: numberOption(where, 'historyTokens', o.historyTokens, 2 ** 22, {
      integer: true,
      min: 0,
      max: RUN_LIMITS.history,
    }),
  };
}
