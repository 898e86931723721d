// Grammars in threads: one that makes masks, and one that compiles every new grammar first.
import path from 'node:path';
import { printable } from '../../base/printable';
import { ThreadCalls } from '../../base/thread_calls';
import { byteLevelText, type TokenBytes } from '../../data/token_bytes';
import type { Tokenizer } from '../../data/tokenizer';
import { packageRoot } from '../../install/package_root';
import type { Grammar } from '../../rollout/request';
import { ApiError } from '../call/api_error';
import type { Grammars, OpenGrammar } from '../call/grammars';
import type { GrammarReply, GrammarRequest, GrammarVocabulary } from './protocol';

/** Compiling a grammar may take so long, milliseconds. */
const CHECK_MS = 10_000;
const MOST_CHECKED = 1024;

type GrammarThread = ThreadCalls<GrammarRequest, GrammarReply>;

function startThread(vocabulary: GrammarVocabulary): GrammarThread {
  const file = path.join(packageRoot, 'dist', 'serve', 'grammar', 'grammar_thread.js');
  return new ThreadCalls(file, vocabulary, 'grammars');
}

/**
 * xgrammar aborts on what it cannot read, and is not to be trusted after that; and there are small schemas that it compiles for minutes,
 * while no mask would be made. A grammar is compiled by a thread of its own first, which is given up when it fails or takes too long.
 */
export class GrammarThreads implements Grammars {
  private readonly masks: GrammarThread;
  private checker: GrammarThread | null;
  private readonly checked = new Set<string>();
  private before: Promise<unknown> = Promise.resolve();
  private nextMatcher = 0;

  constructor(private readonly vocabulary: GrammarVocabulary) {
    this.masks = startThread(vocabulary);
    this.checker = startThread(vocabulary);
  }

  async open(grammar: Grammar): Promise<OpenGrammar> {
    await this.check(grammar);
    const matcher = this.nextMatcher++;
    let first = (await this.masks.ask({ kind: 'open', matcher, grammar })).mask;
    return {
      next: (tokens) => {
        if (first === null || tokens.length > 0)
          return this.masks.ask({ kind: 'next', matcher, tokens }).then(({ mask }) => mask);
        const mask = first;
        first = null;
        return mask;
      },
      close: () => void this.masks.ask({ kind: 'close', matcher }).catch(() => undefined),
    };
  }

  async close(): Promise<void> {
    await Promise.all([this.masks.end(), this.checker?.end()]);
  }

  /** One after another, each new one once. */
  private async check(grammar: Grammar): Promise<void> {
    const key = JSON.stringify(grammar);
    if (this.checked.has(key)) return;
    const own = this.before.then(() => this.compile(grammar));
    this.before = own.catch(() => undefined);
    await own;
    if (this.checked.size >= MOST_CHECKED) this.checked.clear();
    this.checked.add(key);
  }

  private async compile(grammar: Grammar): Promise<void> {
    this.checker ??= startThread(this.vocabulary);
    const { checker } = this;
    let timer: NodeJS.Timeout | undefined;
    const late = new Promise<never>((_, reject) => {
      timer = setTimeout(() => reject(new Error(`compiling it took more than ${CHECK_MS} ms`)), CHECK_MS);
    });
    try {
      await Promise.race([checker.ask({ kind: 'check', grammar }), late]);
    } catch (error) {
      this.checker = null;
      void checker.end();
      const reason = printable((error as Error).message, { max: 500 });
      throw new ApiError(400, `this schema cannot be used: ${reason}`, null, 'invalid_schema');
    } finally {
      clearTimeout(timer);
    }
  }
}

/** The vocabulary of a model for grammars; `tags`: special tokens that they may write as text. */
export function grammarVocabulary(
  tokenizer: Tokenizer,
  bytes: TokenBytes,
  o: { vocabSize: number; stopTokenIds: readonly number[]; tags: readonly string[] },
): GrammarVocabulary {
  const added = tokenizer.addedTokens();
  const tokens = Array.from({ length: o.vocabSize }, (_, id) => {
    const token = added.get(id);
    const silent = o.stopTokenIds.includes(id) || (token?.special && !o.tags.includes(token.content));
    return silent ? '' : byteLevelText(bytes.bytes(id));
  });
  return { tokens, stopTokenIds: [...o.stopTokenIds] };
}
