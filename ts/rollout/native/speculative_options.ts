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
  /** Drafts are what stands behind an earlier place with the same last tokens (prompt lookup). */
  method: 'ngram';
  /** Of a request per step, 4. */
  numSpeculativeTokens?: number;
  /** Last tokens that must match, 2. */
  promptLookupMin?: number;
  /** Last tokens that are compared, 8: the longest match counts. */
  promptLookupMax?: number;
  /**
   * With more requests than these at the same time on a rank nothing is drafted, 16; with n of them what is right with a probability of n / this, as far as
   * earlier guesses tell.
   */
  disableByBatchSize?: number;
  /** Tokens of responses that have ended, to draft others of the same prompt from, 4194304; the oldest go first. */
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
  if (o.method !== 'ngram') throw badOption(where, `method: expected ngram but got ${show(o.method)}`);
  if (model.config.delta !== null) {
    throw badOption(
      where,
      'the states of linear attention cannot take a draft back: leave it out for this model',
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
