// A thread that turns grammars into masks of tokens, with xgrammar.
import { readFileSync } from 'node:fs';
import { createRequire, Module } from 'node:module';
import { parentPort, workerData } from 'node:worker_threads';
import type { CompiledGrammar, GrammarMatcher, Grammar as ParsedGrammar } from '@mlc-ai/web-xgrammar';
import type { Grammar } from '../../rollout/request';
import type { GrammarReply, GrammarRequest, GrammarVocabulary } from './protocol';

type Library = typeof import('@mlc-ai/web-xgrammar', { with: { 'resolution-mode': 'import' }});
type Compiler = Awaited<ReturnType<Library['GrammarCompiler']['createGrammarCompiler']>>;

/** Grammars that stay compiled: compiling takes far longer than a step, and the same schema comes again and again. */
const MOST_COMPILED = 64;
/** JSON on one line, as Python writes it: where any white space may come, small models write nothing else. */
const ONE_LINE = [false, -1, [', ', ': ']] as const;

/** In GPT-2's table, in which the vocabulary is written, bytes below 32 are the characters from U+0100 on. */
const CONTROL = /[\u0100-\u011f]/;
const END_OF_LINE = '\u010a';

/** The package calls itself an ES module, but what it ships is none: neither import nor require can load it as it is. */
function loadLibrary(): Library {
  const file = createRequire(__filename).resolve('@mlc-ai/web-xgrammar');
  const loaded = new Module(file) as Module & { _compile(source: string, file: string): void };
  loaded._compile(readFileSync(file, 'utf8'), file.replace(/\.js$/, '.cjs'));
  return loaded.exports as Library;
}

interface Open {
  matcher: GrammarMatcher;
  /** Tokens that may ever come. */
  text: Uint32Array;
}

class Grammars {
  private readonly matchers = new Map<number, Open>();
  private readonly compiled = new Map<string, CompiledGrammar>();
  private readonly text = new Map<Grammar['kind'], Uint32Array>();
  private compiler: Compiler | null = null;

  constructor(
    private readonly library: Library,
    private readonly vocabulary: GrammarVocabulary,
  ) {}

  async answer(request: GrammarRequest): Promise<Uint32Array | null> {
    if (request.kind === 'check') {
      (await this.parse(request.grammar)).dispose();
      return null;
    }
    const { matcher: number } = request;
    if (request.kind === 'close') {
      this.matchers.get(number)?.matcher.dispose();
      this.matchers.delete(number);
      return null;
    }
    if (request.kind === 'open') {
      const compiled = await this.compile(request.grammar);
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
    const { tokens } = this.vocabulary as NonNullable<GrammarVocabulary>;
    const text = new Uint32Array(Math.ceil(tokens.length / 32));
    for (const [id, token] of tokens.entries()) {
      const allowed = kind === 'json-schema' ? token : token.replaceAll(END_OF_LINE, '');
      if (!CONTROL.test(allowed)) text[id >> 5] = (text[id >> 5] as number) | (1 << (id & 31));
    }
    this.text.set(kind, text);
    return text;
  }

  private onlyEnd(): Uint32Array {
    const { tokens, stopTokenIds } = this.vocabulary as NonNullable<GrammarVocabulary>;
    const mask = new Uint32Array(Math.ceil(tokens.length / 32));
    for (const id of stopTokenIds) mask[id >> 5] = (mask[id >> 5] as number) | (1 << (id & 31));
    return mask;
  }

  private parse(grammar: Grammar): Promise<ParsedGrammar> {
    const { Grammar } = this.library;
    if (grammar.kind === 'structural-tag') return Grammar.fromStructuralTag(grammar.tag);
    const [anyWhitespace, indent, separators] = ONE_LINE;
    return Grammar.fromJSONSchema(grammar.schema, anyWhitespace, indent, [...separators]);
  }

  private async compile(grammar: Grammar): Promise<CompiledGrammar> {
    const key = JSON.stringify(grammar);
    const known = this.compiled.get(key);
    if (known !== undefined) return known;
    this.compiler ??= await this.createCompiler();
    const parsed = await this.parse(grammar);
    const compiled = await this.compiler.compileGrammar(parsed);
    parsed.dispose();
    const [oldest] = this.compiled.keys();
    if (oldest !== undefined && this.compiled.size >= MOST_COMPILED) this.compiled.delete(oldest);
    this.compiled.set(key, compiled);
    return compiled;
  }

  private async createCompiler(): Promise<Compiler> {
    const { tokens, stopTokenIds } = this.vocabulary as NonNullable<GrammarVocabulary>;
    const { GrammarCompiler, TokenizerInfo } = this.library;
    const info = await TokenizerInfo.createTokenizerInfo(
      tokens,
      'byte_level',
      false,
      tokens.length,
      stopTokenIds,
    );
    return GrammarCompiler.createGrammarCompiler(info);
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
