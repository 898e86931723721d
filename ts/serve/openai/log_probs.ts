// Log-probabilities in the forms of the OpenAI API.
import type { TopLogProb } from '../../rollout/request';
import type { CallDelta } from '../call/model_call';
import type { ServedModel } from '../call/served_model';

/** JSON has no infinity; the API's own number for "not at all". */
const LEAST = -9999;

export interface TokenEntry {
  token: string;
  logprob: number;
  bytes: number[];
}

export interface TokenLogProbs extends TokenEntry {
  top_logprobs: TokenEntry[];
}

/** An entry per token of a delta; `count` of the most likely ones each. */
export function tokenLogProbs(model: ServedModel, delta: CallDelta, count: number): TokenLogProbs[] {
  return delta.tokens.map((token, i) => ({
    ...entry(model, token, delta.logProbs[i] as number),
    top_logprobs: topOf(delta, i, count).map((top) => entry(model, top.token, top.logProb)),
  }));
}

/** A token as the text that it is, or else its bytes, as completions have it. */
export function tokenText({ bytes }: ServedModel, token: number): string {
  const escaped = (): string =>
    Array.from(bytes.bytes(token), (byte) => `\\x${byte.toString(16).padStart(2, '0')}`).join('');
  return bytes.text(token) ?? `bytes:${escaped()}`;
}

export const topOf = (delta: CallDelta, i: number, count: number): TopLogProb[] =>
  (delta.topLogProbs[i] ?? []).slice(0, count);

export const finite = (logProb: number): number => Math.max(logProb, LEAST);

function entry({ bytes }: ServedModel, token: number, logProb: number): TokenEntry {
  const own = bytes.bytes(token);
  return { token: Buffer.from(own).toString('utf8'), logprob: finite(logProb), bytes: [...own] };
}
