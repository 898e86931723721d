import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { TokenBytes } from '../../../ts/data/token_bytes';
import { Tokenizer } from '../../../ts/data/tokenizer';
import { GrammarThreads, grammarVocabulary } from '../../../ts/serve/grammar/grammar_threads';

/** The token that ends a response; those before it are the bytes. */
export const END = 256;

/** Grammars over bytes, for the tests of a file. */
export function withByteGrammars(take: (grammars: GrammarThreads) => void): void {
  const directory = mkdtempSync(join(tmpdir(), 'troupe-grammars-'));
  let grammars: GrammarThreads;
  beforeAll(async () => {
    const module = '../../../bench/byte_tokenizer.mjs';
    (await import(module)).writeByteTokenizer(directory);
    const tokenizer = Tokenizer.load(directory);
    const o = { vocabSize: 260, stopTokenIds: [END], tags: [] };
    grammars = new GrammarThreads(grammarVocabulary(tokenizer, new TokenBytes(tokenizer), o));
    take(grammars);
  });
  afterAll(async () => {
    await grammars.close();
    rmSync(directory, { recursive: true, force: true });
  });
}
