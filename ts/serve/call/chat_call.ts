// What a model is asked for, in the terms of every dialect.
import type { PromptImages } from '../../batch/prompt_image';
import type { Grammar, SamplingParams } from '../../rollout/request';
import type { CallReading } from '../tools/families';
import type { Conversation } from './conversation';
import type { SentImage } from './sent_image';

/** What its client calls the parts of a request, for errors. */
export interface CallFields {
  prompt: string;
  maxTokens: string;
  /** What a grammar is made of. */
  grammar: string;
}

export interface ChatCall {
  fields: CallFields;
  conversation: Conversation;
  /** Of its messages, in order, as they were sent; default: it has those that are in it. */
  images?: readonly SentImage[];
  /** Most tokens of the response; null: what there is room for. */
  maxTokens: number | null;
  /** A limit where maxTokens is a wish: less where there is no room for so much. */
  atMost?: number | null;
  sampling: Omit<SamplingParams, 'maxNewTokens'>;
  n: number;
  seed: number | undefined;
  stop: string[];
  grammar: Grammar | null;
  /** Whose calls are read; null: the response is text. */
  tools: CallReading | null;
  /** Of several calls of tools only the first one counts. */
  oneCall?: boolean;
  specialTokens: boolean;
  priority: number | undefined;
  cacheSalt: string | undefined;
}

/** What completions have in common with chats. */
export type PlainCall = Omit<ChatCall, 'conversation' | 'images'> & {
  promptIds: ArrayLike<number>;
  /** In the order of the image tokens. */
  images?: PromptImages;
};
