// Grammars that stay compiled, up to a number: compiling takes far longer than a step, and the same schema comes again and again.
import type { CompiledGrammar, Grammar as ParsedGrammar } from '@mlc-ai/web-xgrammar';
import type { Grammar } from '../../rollout/request';
import type { GrammarVocabulary } from './protocol';
import { WrittenSchema, writtenTag } from './written_schema';
import type { Library } from './xgrammar';

type Compiler = Awaited<ReturnType<Library['GrammarCompiler']['createGrammarCompiler']>>;

const MOST_COMPILED = 64;
/** JSON on one line, as Python writes it: where any white space may come, small models write nothing else. */
const ONE_LINE = [false, -1, [', ', ': ']] as const;

/** To be disposed. */
async function parseGrammar({ Grammar, Testings }: Library, grammar: Grammar): Promise<ParsedGrammar> {
  if (grammar.kind === 'structural-tag') {
    const tag = await writtenTag(grammar.tag, async (schema) => {
      const written = new WrittenSchema(schema);
      if (!written.isPart) return { type: 'json_schema', json_schema: JSON.parse(written.json) };
      const ebnf = await Testings._jsonSchemaToEBNF(written.json);
      return { type: 'grammar', grammar: written.complete(ebnf) };
    });
    return await Grammar.fromStructuralTag(tag);
  }
  const [anyWhitespace, indent, separators] = ONE_LINE;
  const written = new WrittenSchema(grammar.schema);
  if (!written.isPart)
    return await Grammar.fromJSONSchema(written.json, anyWhitespace, indent, [...separators]);
  const ebnf = await Testings._jsonSchemaToEBNF(written.json, anyWhitespace, indent, [...separators]);
  return await Grammar.fromEBNF(written.complete(ebnf));
}

/** What the library makes lies in the memory of WebAssembly, where no collector comes by: whatever leaves is disposed. */
export class CompiledGrammars {
  private readonly compiled = new Map<string, CompiledGrammar>();
  private readonly compiler: Promise<Compiler>;

  constructor(
    private readonly library: Library,
    vocabulary: GrammarVocabulary,
  ) {
    this.compiler = createCompiler(library, vocabulary);
    // Who compiles is told.
    this.compiler.catch(() => undefined);
  }

  /** Resolves once the library has read the vocabulary. */
  async ready(): Promise<void> {
    await this.compiler;
  }

  /** It may be gone after the next call; a matcher that was made of it stays. */
  async of(grammar: Grammar): Promise<CompiledGrammar> {
    const key = JSON.stringify(grammar);
    const known = this.compiled.get(key);
    if (known !== undefined) return known;
    const compiled = await this.compile(grammar);
    const [oldest] = this.compiled;
    if (oldest !== undefined && this.compiled.size >= MOST_COMPILED) {
      oldest[1].dispose();
      this.compiled.delete(oldest[0]);
    }
    this.compiled.set(key, compiled);
    return compiled;
  }

  private async compile(grammar: Grammar): Promise<CompiledGrammar> {
    const compiler = await this.compiler;
    const parsed = await parseGrammar(this.library, grammar);
    try {
      return await compiler.compileGrammar(parsed);
    } finally {
      parsed.dispose();
    }
  }
}

async function createCompiler(
  { GrammarCompiler, TokenizerInfo }: Library,
  { tokens, stopTokenIds }: GrammarVocabulary,
): Promise<Compiler> {
  const info = await TokenizerInfo.createTokenizerInfo(
    tokens,
    'byte_level',
    false,
    tokens.length,
    stopTokenIds,
  );
  // Its own cache has no bound.
  return GrammarCompiler.createGrammarCompiler(info, false);
}
