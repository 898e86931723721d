// What is asked of a rollout engine, and what it answers. Token ids in, token ids out: text is somebody else's.
import type { PromptImage } from '../batch/prompt_image';

/**
 * Which tokens may come next, for constrained decoding (a grammar, a JSON schema). The engine asks before every token and waits for the
 * answer; it calls from the process that submitted the request, so the grammar may live anywhere there.
 */
export interface TokenConstraint {
  /**
   * `tokens`: of the response since the last call, none before its first. Returns one bit per token id, id i at bit i % 32 of word
   * floor(i / 32), ids that the mask does not reach are not allowed; null: every token is. A mask without any bit set is an error of the
   * request. Log-probabilities stay those without the mask.
   */
  next(tokens: Int32Array): Promise<Uint32Array | null> | Uint32Array | null;
}

/** How the tokens of one request are chosen. What is left out is off. */
export interface SamplingParams {
  maxNewTokens: number;
  /** Divides the logits, 1; 0 is greedy. */
  temperature?: number;
  /** Sample among the k most likely tokens; 0 and -1: off. */
  topK?: number;
  /** Sample among the most likely tokens that together reach this probability; 1: off. */
  topP?: number;
  /** Sample among the tokens that are at least this fraction as likely as the most likely one; 0: off. */
  minP?: number;
  /** Divides (or, where negative, multiplies) the logits of tokens that are in the prompt or the response; 1: off. */
  repetitionPenalty?: number;
  /** Taken off the logits of tokens that are in the response; 0: off. */
  presencePenalty?: number;
  /** Taken off the logits of a token for every time that it is in the response; 0: off. */
  frequencyPenalty?: number;
  /** Ids that end a response and are its last token. Default: the engine's eos ids; []: never stop early. */
  stopTokenIds?: readonly number[];
  /** Texts that end a response when it contains them; the token that completes one is the last. Needs an engine with a tokenizer. */
  stop?: readonly string[];
  /** Sequences of ids that are never completed. */
  badWords?: readonly (readonly number[])[];
  /** Added to the logits of these tokens, by id. */
  logitBias?: ReadonlyMap<number, number>;
  /** Asked before every token what may come. */
  constraint?: TokenConstraint;
  /** Also return this many of the most likely tokens at each position, 0. */
  topLogProbs?: number;
  /** Also return the log-probabilities of the prompt's tokens. */
  promptLogProbs?: boolean;
  /** The same prompt, parameters and seed give the same tokens, whatever else runs; left out: drawn anew. */
  seed?: bigint;
}

/**
 * What the text of a response must be. json-schema: JSON of this schema; structural-tag: free text and tagged parts, in the form of
 * xgrammar, which vLLM and SGLang take as well. Remote engines apply it themselves; for our own it is turned into a constraint before.
 */
export type Grammar = { kind: 'json-schema'; schema: string } | { kind: 'structural-tag'; tag: string };

export interface RolloutRequest {
  /** An Int32Array is not copied: it stays as it is until the end, and may be that of many requests. */
  promptIds: ArrayLike<number>;
  sampling: SamplingParams;
  /** Of the prompt, in the order of its image tokens. Our own engine with a model that reads images; others refuse them. */
  images?: readonly PromptImage[];
  /** Higher ones are admitted first, 0. */
  priority?: number;
  /** Milliseconds after submission until it is aborted; left out: never. */
  deadlineMs?: number;
  /** Requests share cached prefixes only with those of the same salt. */
  cacheSalt?: string;
  grammar?: Grammar;
  /** Requests of one session are sent to where its prefix lies. */
  session?: string;
}

/** stop: a stop id or text; length: maxNewTokens; abort: by the caller or its deadline. */
export type FinishReason = 'stop' | 'length' | 'abort';

export interface TopLogProb {
  token: number;
  logProb: number;
}

/** Some tokens of a response, as they come. */
export interface TokenSpan {
  tokens: Int32Array;
  /** [n] at the sampling temperature, before top-k, top-p, min-p and penalties. */
  logProbs: Float32Array;
  /** [n] of topLogProbs, most likely first; only where they were asked for. */
  topLogProbs?: TopLogProb[][];
  /** Of the weights that made them. */
  version: number;
}

export interface RolloutResult {
  /** [R] */
  tokens: Int32Array;
  /** [R] as in TokenSpan. */
  logProbs: Float32Array;
  topLogProbs?: TopLogProb[][];
  /** [P], the first is NaN; only where they were asked for. */
  promptLogProbs?: Float32Array;
  /**
   * [P+R] x bytes of a token, as the column of a batch; of our own engine with the option of that name. Not of a request that was given up
   * before its prompt was through, in a pause, or while it waited to be computed again.
   */
  routedExperts?: Uint8Array;
  finishReason: FinishReason;
  /** The stop text that ended it. */
  stopText?: string;
  /** Tokens [start, end) were made by this version of the weights; without gaps. */
  versions: { version: number; start: number; end: number }[];
  /** Tokens of the prompt whose keys and values were in the cache. */
  cachedTokens: number;
}
