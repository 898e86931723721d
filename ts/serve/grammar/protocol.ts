// Messages between a server and a thread that knows grammars.
import type { Grammar } from '../../rollout/request';

/** What a thread is started with. */
export interface GrammarVocabulary {
  /** The bytes of every token by GPT-2's table, '' for those that no text may hold. */
  tokens: string[];
  stopTokenIds: number[];
}

type Asked =
  /** Answered by no mask, once grammars can be compiled. */
  | { kind: 'ready' }
  /** Answered by no mask, once it is compiled. */
  | { kind: 'check'; grammar: Grammar }
  /** Answered by the mask of the first token. */
  | { kind: 'open'; matcher: number; grammar: Grammar }
  /** Answered by the mask of the token after these. */
  | { kind: 'next'; matcher: number; tokens: Int32Array }
  | { kind: 'close'; matcher: number };

export type GrammarRequest = { id: number } & Asked;

export interface GrammarReply {
  id: number;
  /** As TokenConstraint has it; null where none was asked for, or where there is an error. */
  mask: Uint32Array | null;
  error?: string;
}
