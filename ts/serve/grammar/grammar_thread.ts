// A thread that turns grammars into masks of tokens, with xgrammar.
import { parentPort, workerData } from 'node:worker_threads';
import type { GrammarMatcher } from '@mlc-ai/web-xgrammar';
import type { Grammar } from '../../rollout/request';
import { CompiledGrammars } from './compiled_grammars';
import type { GrammarReply, GrammarRequest, GrammarVocabulary } from './protocol';
import { type Library, loadLibrary } from './xgrammar';

/** In GPT-2's table, in which the vocabulary is written, bytes below 32 are the characters from U+0100 on. */
const CONTROL = /[\u0100-\u011f]/;
const END_OF_LINE = '\u010a';

interface Open {
  matcher: GrammarMatcher;
  /** Tokens that may ever come. */
  text: Uint32Array;
}

class Grammars {
  private readonly matchers = new Map<number, Open>();
  private readonly text = new Map<Grammar['kind'], Uint32Array>();
  private readonly compiled: CompiledGrammars;

  constructor(
    private readonly library: Library,
    private readonly vocabulary: GrammarVocabulary,
  ) {
    this.compiled = new CompiledGrammars(library, vocabulary);
  }

  async answer(request: GrammarRequest): Promise<Uint32Array | null> {
    if (request.kind === 'ready') {
      await this.compiled.ready();
      return null;
    }
    if (request.kind === 'check') {
      await this.compiled.of(request.grammar);
      return null;
    }
    const { matcher: number } = request;
    if (request.kind === 'close') {
      this.matchers.get(number)?.matcher.dispose();
      this.matchers.delete(number);
      return null;
    }
    if (request.kind === 'open') {
      const compiled = await this.compiled.of(request.grammar);
      const matcher = await this.library.GrammarMatcher.createGrammarMatcher(compiled);
      this.matchers.set(number, { matcher, text: this.textTokens(request.grammar.kind) });
    }
    const { matcher, text } = this.matchers.get(number) as Open;
    for (const token of request.kind === 'next' ? request.tokens : []) {
      if (!matcher.isTerminated() && !matcher.acceptToken(token))
        throw new Error(`token ${token} came, which the grammar does not allow`);
    }
    return matcher.isTerminated() ? this.onlyEnd() : await this.maskOf(matcher, text);
  }

  private async maskOf(matcher: GrammarMatcher, text: Uint32Array): Promise<Uint32Array> {
    const mask = await matcher.getNextTokenBitmask();
    return Uint32Array.from(text, (word, i) => (word & (mask[i] as number)) >>> 0);
  }

  /**
   * The tokens without control characters, which xgrammar lets into strings of a bounded length, where JSON has none; what is not JSON of a
   * schema on one line has ends of lines.
   */
  private textTokens(kind: Grammar['kind']): Uint32Array {
    const known = this.text.get(kind);
    if (known !== undefined) return known;
    const { tokens } = this.vocabulary;
    const text = new Uint32Array(Math.ceil(tokens.length / 32));
    for (const [id, token] of tokens.entries()) {
      const allowed = kind === 'json-schema' ? token : token.replaceAll(END_OF_LINE, '');
      if (!CONTROL.test(allowed)) text[id >> 5] = (text[id >> 5] as number) | (1 << (id & 31));
    }
    this.text.set(kind, text);
    return text;
  }

  private onlyEnd(): Uint32Array {
    const { tokens, stopTokenIds } = this.vocabulary;
    const mask = new Uint32Array(Math.ceil(tokens.length / 32));
    for (const id of stopTokenIds) mask[id >> 5] = (mask[id >> 5] as number) | (1 << (id & 31));
    return mask;
  }
}

/** The library says why it gives up on its console, and then throws an error that does not. */
let lastWords = '';
console.error = (...words: unknown[]): void => {
  if (lastWords === '') lastWords = words.join(' ');
};

function reasonOf(error: unknown): string {
  const said = lastWords.replace(/^\[FATAL\] \S+: (Check failed: \(.*?\) is false: )?/, '');
  lastWords = '';
  // What its C++ throws comes as a number.
  return said || (error instanceof Error ? error.message : 'it is no grammar that xgrammar can read');
}

const port = parentPort as NonNullable<typeof parentPort>;
const grammars = new Grammars(loadLibrary(), workerData as GrammarVocabulary);
let before: Promise<void> = Promise.resolve();
port.on('message', (request: GrammarRequest) => {
  const { id } = request;
  before = before
    .then(() => grammars.answer(request))
    .then(
      (mask): GrammarReply => ({ id, mask }),
      (error): GrammarReply => ({ id, mask: null, error: reasonOf(error) }),
    )
    .then((reply) => port.postMessage(reply));
});
