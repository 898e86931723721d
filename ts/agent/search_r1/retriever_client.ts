// A retrieval server of Search-R1: POST {queries, topk, return_scores}, answered with passages per query.
import { z } from 'zod';
import { AnswerTooLong, HttpConnection } from '../../base/http_connection';
import { printable } from '../../base/printable';
import { reasonOf } from '../../base/text';
import { TroupeError } from '../../errors';
import type { Passage } from './rules';

const document = z.looseObject({ contents: z.string() });
const reply = z.object({
  // With scores, and without.
  result: z.array(z.array(z.union([z.object({ document, score: z.number() }), document]))),
});

export interface RetrieverOptions {
  /** Such as http://127.0.0.1:8000/retrieve. */
  url: string;
  /** Passages per query. */
  topk: number;
  /** Milliseconds for one request. 30000 */
  timeoutMs?: number;
  /** Further attempts where the server is not reached, is busy (429) or fails (5xx). 2 */
  retries?: number;
  /** Queries in one request; those asked at the same time go together. 256 */
  batch?: number;
}

/** Finds passages for queries. */
export interface Retriever {
  search(query: string, signal?: AbortSignal): Promise<Passage[]>;
}

interface Waiting {
  query: string;
  resolve(passages: Passage[]): void;
  reject(reason: unknown): void;
}

/** Searches that begin in the same turn of the event loop are one request, as a batch of rows is one in Search-R1. */
export class RetrieverClient implements Retriever {
  private waiting: Waiting[] = [];
  private readonly connection: HttpConnection;

  /** @throws TroupeError INVALID_ARGUMENT for a URL that is none */
  constructor(private readonly options: RetrieverOptions) {
    try {
      this.connection = new HttpConnection(options.url);
    } catch (error) {
      throw new TroupeError('INVALID_ARGUMENT', `[search] retriever.url: ${printable(reasonOf(error))}`);
    }
  }

  /** @throws TroupeError IO when the server is not reached or answers something else */
  search(query: string, signal?: AbortSignal): Promise<Passage[]> {
    return new Promise((resolve, reject) => {
      const onAbort = (): void => reject(signal?.reason);
      if (signal?.aborted) return onAbort();
      signal?.addEventListener('abort', onAbort, { once: true });
      const settle = (): void => signal?.removeEventListener('abort', onAbort);
      if (this.waiting.length === 0) setImmediate(() => this.flush());
      this.waiting.push({
        query,
        resolve: (passages) => {
          settle();
          resolve(passages);
        },
        reject: (reason) => {
          settle();
          reject(reason);
        },
      });
    });
  }

  private flush(): void {
    const { batch = 256 } = this.options;
    const all = this.waiting;
    this.waiting = [];
    for (let start = 0; start < all.length; start += batch) void this.send(all.slice(start, start + batch));
  }

  private async send(part: readonly Waiting[]): Promise<void> {
    try {
      const found = await this.retrieve(part.map(({ query }) => query));
      part.forEach(({ resolve }, i) => {
        resolve(found[i] as Passage[]);
      });
    } catch (error) {
      for (const { reject } of part) reject(error);
    }
  }

  /** Passages for each query, best first. @throws TroupeError IO */
  async retrieve(queries: readonly string[]): Promise<Passage[][]> {
    const { retries = 2 } = this.options;
    for (let attempt = 0; ; attempt++) {
      try {
        return await this.request(queries);
      } catch (error) {
        if (!(error instanceof Transient) || attempt >= retries) throw this.failure(error);
        await new Promise((resolve) => setTimeout(resolve, 200 * 2 ** attempt));
      }
    }
  }

  private async request(queries: readonly string[]): Promise<Passage[][]> {
    const { topk, timeoutMs = 30_000 } = this.options;
    const request = {
      method: 'POST',
      body: JSON.stringify({ queries, topk, return_scores: true }),
      signal: AbortSignal.timeout(timeoutMs),
    } as const;
    const { status, text } = await this.connection.ask(request, MOST_BYTES).catch((error: unknown) => {
      throw error instanceof AnswerTooLong ? error : new Transient(reasonOf(error));
    });
    if (status === 429 || status >= 500) throw new Transient(said(status, text));
    if (status < 200 || status > 299) throw new Error(said(status, text));
    const { result } = reply.parse(JSON.parse(text));
    if (result.length !== queries.length)
      throw new Error(`it gave results for ${result.length} queries of ${queries.length}`);
    return result.map((found) =>
      found.map((one) => ('document' in one && isScored(one) ? one.document : (one as Passage))),
    );
  }

  private failure(error: unknown): TroupeError {
    const { url } = this.options;
    return new TroupeError(
      'IO',
      `[search] the retrieval server at ${url} failed: ${printable(reasonOf(error), { max: 500 })}. Expected an answer ` +
        '{"result": [[{"document": {"contents": ...}, "score": ...}, ...], ...]}: check retriever.url, or start one with troupe retriever',
      { cause: error },
    );
  }
}

/** Of an answer. */
const MOST_BYTES = 256 * 2 ** 20;

/** Worth another attempt. */
class Transient extends Error {}

const said = (status: number, text: string): string => `HTTP ${status}: ${text.slice(0, 300)}`;
const isScored = (one: object): one is { document: Passage; score: number } =>
  typeof (one as { document?: unknown }).document === 'object';
