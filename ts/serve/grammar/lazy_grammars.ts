// Grammars whose threads start when the first one is asked for: most runs ask for none, and a vocabulary takes time to hand over.
import type { Grammar } from '../../rollout/request';
import type { Grammars, OpenGrammar } from '../call/grammars';

export class LazyGrammars implements Grammars {
  private made: Grammars | null = null;

  constructor(private readonly make: () => Grammars) {}

  open(grammar: Grammar): Promise<OpenGrammar> {
    this.made ??= this.make();
    return this.made.open(grammar);
  }

  async close(): Promise<void> {
    await this.made?.close();
  }
}
