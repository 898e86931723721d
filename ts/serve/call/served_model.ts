// A model as it is served: its engine, its tokenizer, and how its family writes calls of tools.
import type { ImageThreads } from '../../data/images/image_threads';
import type { TextThreads } from '../../data/text_threads';
import type { TokenBytes } from '../../data/token_bytes';
import type { Tokenizer } from '../../data/tokenizer';
import type { RolloutEngine } from '../../rollout/engine';
import type { ToolFamily } from '../tools/families';
import type { Grammars } from './grammars';

export interface ServedModel {
  /** What requests call it. */
  name: string;
  /** Seconds since 1970. */
  created: number;
  engine: RolloutEngine;
  /** Ids of the model, from 0. */
  vocabSize: number;
  /** Tokens that end a response. */
  eosTokenIds: readonly number[];
  tokenizer: Tokenizer;
  bytes: TokenBytes;
  /** What tokenizes long texts. */
  texts: TextThreads;
  /** null: it cannot be given tools. */
  family: ToolFamily | null;
  /** How responses are held to a grammar: by the engine itself, by asking these for every token; null: not at all. */
  grammars: 'engine' | Grammars | null;
  /** What reads images; null: the model reads text alone. */
  images: ImageThreads | null;
}
