// How responses are held to grammars, where the engine cannot do that by itself.
import type { Grammar, TokenConstraint } from '../../rollout/request';

/** The constraint of one response; to be closed when that has ended. */
export interface OpenGrammar extends TokenConstraint {
  close(): void;
}

export interface Grammars {
  /** @throws ApiError 400 saying why a grammar cannot be read; of which field it is made, the caller knows */
  open(grammar: Grammar): Promise<OpenGrammar>;
  close(): Promise<void>;
}
