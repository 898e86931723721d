// A retrieval server with the protocol of Search-R1's: POST /retrieve {queries, topk, return_scores}.
import { createServer, type IncomingMessage, type Server, type ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';
import { z } from 'zod';
import { printable } from '../../base/printable';
import { reasonOf } from '../../base/text';
import { TroupeError } from '../../errors';
import { ApiError } from '../../serve/call/api_error';
import { dropRest, readBody } from '../../serve/http/body';
import type { Bm25Index } from './bm25_index';

const MAX_BODY = 16 * 2 ** 20;
const MAX_QUERIES = 100_000;
const MAX_TOPK = 1000;

const requestBody = z.object({
  queries: z.array(z.string()).max(MAX_QUERIES),
  topk: z.int().min(1).max(MAX_TOPK).nullish(),
  return_scores: z.boolean().default(false),
});

export interface RetrieverServerOptions {
  host: string;
  /** 0: a free one. */
  port: number;
  /** Passages per query where a request does not say. */
  topk: number;
}

export class RetrieverServer {
  private constructor(
    private readonly server: Server,
    readonly url: string,
  ) {}

  /** @throws TroupeError IO when the address cannot be listened on */
  static async start(index: Bm25Index, options: RetrieverServerOptions): Promise<RetrieverServer> {
    const server = createServer((request, response) => void answer(index, options.topk, request, response));
    const { host, port } = options;
    await new Promise<void>((resolve, reject) => {
      server.once('error', reject);
      server.listen(port, host, resolve);
    }).catch((cause: unknown) => {
      throw new TroupeError(
        'IO',
        `[search] cannot listen on ${host}:${port}: ${reasonOf(cause)}; choose another --host or --port`,
        { cause },
      );
    });
    const { port: chosen } = server.address() as AddressInfo;
    const name = host.includes(':') ? `[${host}]` : host;
    return new RetrieverServer(server, `http://${name}:${chosen}/retrieve`);
  }

  async close(): Promise<void> {
    this.server.closeAllConnections();
    await new Promise((resolve) => this.server.close(resolve));
  }
}

async function answer(
  index: Bm25Index,
  defaultTopk: number,
  request: IncomingMessage,
  response: ServerResponse,
): Promise<void> {
  const send = (status: number, body: unknown): void => {
    response.writeHead(status, { 'content-type': 'application/json' }).end(JSON.stringify(body));
  };
  try {
    const path = pathOf(request);
    if (path === '/health' && request.method === 'GET')
      return send(200, { status: 'ok', passages: index.size });
    if (path !== '/retrieve') throw new ApiError(404, `expected POST /retrieve or GET /health, got ${path}`);
    if (request.method !== 'POST') throw new ApiError(405, `expected POST, got ${request.method}`);
    const { queries, topk, return_scores } = parseBody(await readBody(request, MAX_BODY));
    const result = queries.map((query) => {
      const hits = index.search(query, topk ?? defaultTopk);
      return return_scores ? hits : hits.map(({ document }) => document);
    });
    send(200, { result });
  } catch (error) {
    const status = error instanceof ApiError ? error.status : 500;
    if (!response.headersSent) send(status, { detail: printable(reasonOf(error), { max: 1000 }) });
    dropRest(request);
  }
}

function pathOf({ url = '/' }: IncomingMessage): string {
  try {
    return new URL(url, 'http://host').pathname;
  } catch {
    throw new ApiError(400, `expected POST /retrieve or GET /health, got ${url.slice(0, 200)}`);
  }
}

function parseBody(text: string): z.infer<typeof requestBody> {
  let given: unknown;
  try {
    given = JSON.parse(text);
  } catch (cause) {
    throw new ApiError(400, `expected JSON: ${reasonOf(cause)}`);
  }
  const parsed = requestBody.safeParse(given);
  if (!parsed.success) {
    const [issue] = parsed.error.issues;
    throw new ApiError(422, `${issue?.path.join('.') || 'body'}: ${issue?.message}`);
  }
  return parsed.data;
}
