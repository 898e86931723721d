// Messages between a process and its threads that tokenize.
import type { Tokenizer } from './tokenizer';

/** What a thread is started with: the tokenizer that it loads. */
export type TextThreadOptions = Tokenizer['source'];

export interface TextRequest {
  id: number;
  text: string;
  specialTokens: boolean;
}

export interface TextReply {
  id: number;
  ids?: Int32Array;
  error?: string;
}
