// What a dialect makes of a request: one object, or events as they come.

import type { RolloutRequest, SamplingParams } from '../../rollout/request';
import type { Conversation } from './conversation';
import type { KeptResponses } from './kept_responses';
import type { CallRecord, RunningCall } from './model_call';
import type { ServedModel } from './served_model';

/** One event of a stream; `event`: its name, where a dialect has names. */
export interface ServerEvent {
  event?: string;
  data: string;
}

export type Answer = { body: unknown } | { events: AsyncIterable<ServerEvent> };

/** Where a session takes part in a call: an agent's endpoint decides on ids and sampling, and keeps what came out. */
export interface CallHooks {
  /** The ids of a conversation; default: the chat template's text, tokenised. */
  promptIds?: (conversation: Conversation) => ArrayLike<number> | Promise<ArrayLike<number>>;
  sampling?: (asked: SamplingParams) => SamplingParams;
  /** Of every request to the engine. */
  request?: Omit<RolloutRequest, 'promptIds' | 'sampling'>;
  /** Responses that requests may go on from by their id; without it none are kept. */
  keptResponses?: KeptResponses;
  /** Each response, when the engine has been asked for it. */
  onCall?: (call: RunningCall) => void;
  /** After each response, with its place among the choices. */
  onRecord?: (record: CallRecord, choice: number) => void;
}

/** A dialect. It throws ApiError before anything is sent; `signal` aborts when nobody waits any more. */
export type Dialect = (
  model: ServedModel,
  body: unknown,
  signal: AbortSignal,
  hooks?: CallHooks,
) => Promise<Answer>;
