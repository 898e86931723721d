// Passages of a corpus in memory, found by BM25.
import MiniSearch from 'minisearch';
import { show } from '../../base/text';
import type { Row } from '../../data/row';
import { RowFiles } from '../../data/row_file';
import { TroupeError } from '../../errors';

export interface StoredPassage {
  id: string;
  /** The title in quotes, a line break, the text. */
  contents: string;
}

export interface Hit {
  document: StoredPassage;
  score: number;
}

/** Words, as far as letters, digits and marks go; case and diacritics aside. */
const WORDS = /[\p{L}\p{N}\p{M}]+/gu;
const tokenize = (text: string): string[] => text.match(WORDS) ?? [];
const processTerm = (term: string): string => term.normalize('NFKD').replace(/\p{M}/gu, '').toLowerCase();

/**
 * Robertson and Zaragoza 2009, with the constants that Pyserini, and so Search-R1's own BM25, has. The length of a passage is the number of
 * its different words.
 */
const BM25 = { k: 0.9, b: 0.4, d: 0 };

export class Bm25Index {
  private readonly index = new MiniSearch<StoredPassage & { number: number }>({
    fields: ['contents'],
    idField: 'number',
    tokenize,
    processTerm,
    searchOptions: { bm25: BM25, combineWith: 'OR', tokenize, processTerm },
  });
  private readonly passages: StoredPassage[] = [];

  /**
   * Reads passages from JSONL, JSON or parquet: rows {id?, contents}, as Search-R1's corpora have them, or {id?, title, text}.
   * @throws TroupeError IO, or INVALID_DATA naming file and row
   */
  static async open(paths: readonly string[]): Promise<Bm25Index> {
    const index = new Bm25Index();
    const files = await RowFiles.open(paths);
    for (let i = 0; i < files.length; i++) {
      const { file, row } = files.locate(i);
      index.add(passageOf(await file.row(row), file.where(row), i));
    }
    return index;
  }

  add(passage: StoredPassage): void {
    const number = this.passages.push(passage) - 1;
    this.index.add({ ...passage, number });
  }

  get size(): number {
    return this.passages.length;
  }

  /** At most `topk` passages that share a word with the query, best first; among equals the one that was added first. */
  search(query: string, topk: number): Hit[] {
    // The library multiplies by the number of words found, which BM25 does not.
    const found = this.index
      .search(query)
      .map(({ id, score, terms }) => ({ number: id as number, score: score / Math.max(terms.length, 1) }));
    found.sort((a, b) => b.score - a.score || a.number - b.number);
    return found
      .slice(0, topk)
      .map(({ number, score }) => ({ document: this.passages[number] as StoredPassage, score }));
  }
}

function passageOf(row: Row, where: string, number: number): StoredPassage {
  const { id = number, contents, title, text } = row;
  if (typeof contents === 'string') return { id: String(id), contents };
  if (typeof title === 'string' && typeof text === 'string')
    return { id: String(id), contents: `"${title}"\n${text}` };
  throw new TroupeError(
    'INVALID_DATA',
    `[search] ${where}: expected {id, contents} or {id, title, text} with texts, got ${show(row)}`,
  );
}
