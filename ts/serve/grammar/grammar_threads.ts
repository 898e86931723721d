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
const TOO_SLOW =
  `compiling it took more than ${CHECK_MS} ms; lengths of texts (maxLength, minLength, {m,n} of a pattern) take the ` +
  'most, in proportion to them and the vocabulary';
/** Of a grammar that took longer, milliseconds, masks are made apart from those of others: it is compiled once more for them. */
const SLOW_MS = 500;
/** A refusal is remembered so long, milliseconds: what took too long may have had a busy processor. */
const REFUSED_MS = 60_000;
const MOST_CHECKED = 1024;

type GrammarThread = ThreadCalls<GrammarRequest, GrammarReply>;

interface Verdict {
  /** Whether it took long. Rejects with the ApiError of the refusal. */
  compiled: Promise<boolean>;
  /** A time of performance.now(). */
  until: number;
}

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
  /** Of grammars that compile slowly; null: there was none yet. */
  private slowMasks: GrammarThread | null = null;
  private checker: GrammarThread;
  private readonly verdicts = new Map<string, Verdict>();
  private before: Promise<unknown> = Promise.resolve();
  private nextMatcher = 0;
  private closed = false;

  constructor(private readonly vocabulary: GrammarVocabulary) {
    this.masks = startThread(vocabulary);
    this.checker = startThread(vocabulary);
  }

  async open(grammar: Grammar): Promise<OpenGrammar> {
    const masks = (await this.check(grammar)) ? this.threadOfSlow() : this.masks;
    const matcher = this.nextMatcher++;
    let first = (await masks.ask({ kind: 'open', matcher, grammar })).mask;
    return {
      next: (tokens) => {
        if (first === null || tokens.length > 0)
          return masks.ask({ kind: 'next', matcher, tokens }).then(({ mask }) => mask);
        const mask = first;
        first = null;
        return mask;
      },
      close: () => void masks.ask({ kind: 'close', matcher }).catch(() => undefined),
    };
  }

  async close(): Promise<void> {
    this.closed = true;
    await Promise.all([this.masks.end(), this.slowMasks?.end(), this.checker.end()]);
  }

  private threadOfSlow(): GrammarThread {
    if (this.closed) throw new ApiError(503, 'this server is about to end');
    this.slowMasks ??= startThread(this.vocabulary);
    return this.slowMasks;
  }

  /** One after another, each new one once. */
  private check(grammar: Grammar): Promise<boolean> {
    const key = JSON.stringify(grammar);
    const known = this.verdicts.get(key);
    if (known !== undefined && performance.now() < known.until) return known.compiled;
    if (this.verdicts.size >= MOST_CHECKED) this.verdicts.clear();
    const compiled = this.before.then(() => this.compile(grammar));
    const verdict: Verdict = { compiled, until: Number.POSITIVE_INFINITY };
    this.verdicts.set(key, verdict);
    this.before = compiled.catch(() => {
      verdict.until = performance.now() + REFUSED_MS;
    });
    return compiled;
  }

  /** Whether it took long. */
  private async compile(grammar: Grammar): Promise<boolean> {
    const { checker } = this;
    let timer: NodeJS.Timeout | undefined;
    try {
      await checker.ask({ kind: 'ready' });
      const late = new Promise<never>((_, reject) => {
        timer = setTimeout(() => reject(new Error(TOO_SLOW)), CHECK_MS);
      });
      const started = performance.now();
      await Promise.race([checker.ask({ kind: 'check', grammar }), late]);
      return performance.now() - started > SLOW_MS;
    } catch (error) {
      void checker.end();
      if (!this.closed) this.checker = startThread(this.vocabulary);
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
