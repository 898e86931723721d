// The server of the page: reads, never writes; every answer forbids what the page does not need.
import { createServer, type IncomingMessage, type Server, type ServerResponse } from 'node:http';
import { type AddressInfo, isIPv6 } from 'node:net';
import { networkInterfaces } from 'node:os';
import { pipeline, Readable } from 'node:stream';
import { gzipSync } from 'node:zlib';
import { printable } from '../base/printable';
import { reasonOf } from '../base/text';
import { TroupeError } from '../errors';
import { Access, isLoopback } from './access';
import type { Api } from './api';
import { Inside } from './inside';
import { loadPage, type PageFile } from './page_files';
import { RequestError } from './request_error';

export interface UiOptions {
  directory: string;
  host: string;
  port: number;
  /** What the address holds; null: nothing is asked for, on loopback addresses only. Default: a new one. */
  token?: string | null;
  /** Where the built page is; default: in this package. */
  page?: string;
}

const CSP = [
  "default-src 'none'",
  "script-src 'self'",
  "style-src 'self'",
  "img-src 'self' data: blob:",
  "connect-src 'self'",
  "base-uri 'none'",
  "form-action 'none'",
  "frame-ancestors 'none'",
].join('; ');

const HEADERS: Readonly<Record<string, string>> = {
  'content-security-policy': CSP,
  'x-content-type-options': 'nosniff',
  'x-frame-options': 'DENY',
  'referrer-policy': 'no-referrer',
  'cross-origin-resource-policy': 'same-origin',
  'cross-origin-opener-policy': 'same-origin',
  'permissions-policy': 'camera=(), geolocation=(), microphone=()',
};

/** Below it compressing costs more than it saves. */
const WORTH_COMPRESSING = 16 << 10;

export class UiServer {
  private readonly page: ReadonlyMap<string, PageFile>;
  private readonly access: Access;
  private readonly token: string | null;
  private readonly server: Server;
  private readonly inside: Inside;
  #api: Api | null = null;

  /**
   * Opens it. @throws TroupeError IO for a directory that is none, an address that cannot be had, a page that is not built;
   * INVALID_ARGUMENT for a server without a token on an address that others reach
   */
  static async open(options: UiOptions): Promise<UiServer> {
    const ui = new UiServer(options);
    await ui.listen();
    return ui;
  }

  private constructor(private readonly options: UiOptions) {
    const { directory, host } = options;
    this.token = options.token === undefined ? Access.newToken() : options.token;
    if (this.token === null && !isLoopback(host))
      throw new TroupeError(
        'INVALID_ARGUMENT',
        `[ui] without a token the page is served on a loopback address only, not on ${printable(host)}`,
      );
    this.page = loadPage(options.page);
    this.access = new Access({ host, token: this.token });
    try {
      this.inside = new Inside(directory);
    } catch (error) {
      throw new TroupeError('IO', `[ui] ${directory}: expected a directory with runs: ${reasonOf(error)}`);
    }
    this.server = createServer((request, response) => this.answer(request, response));
  }

  /** What a browser is given, token included. */
  get address(): string {
    return `${this.origin}/${this.token === null ? '' : `?token=${this.token}`}`;
  }

  get origin(): string {
    const { address, family, port } = this.server.address() as AddressInfo;
    // One that others reach it at, too: it was to be reached from there.
    const shown = ['0.0.0.0', '::'].includes(address) ? outwardAddress(family) : address;
    return `http://${isIPv6(shown) ? `[${shown}]` : shown}:${port}`;
  }

  /** Whether a page is open. */
  get watched(): boolean {
    return (this.#api?.live.size ?? 0) > 0;
  }

  /** Whether a run of the directory is going on. */
  anyRunning(): boolean {
    const { list } = this.api.runs;
    list.scan();
    return list.all().some(({ state }) => state === 'running');
  }

  async close(): Promise<void> {
    this.#api?.live.close();
    await new Promise<void>((resolve) => {
      this.server.close(() => resolve());
      this.server.closeAllConnections();
    });
  }

  /** What answers questions, loaded with the first one. */
  private get api(): Api {
    if (this.#api === null) {
      const { Api } = require('./api') as typeof import('./api');
      this.#api = new Api(this.inside);
    }
    return this.#api;
  }

  private listen(): Promise<void> {
    const { host, port } = this.options;
    return new Promise((resolve, reject) => {
      this.server.once('error', (error: NodeJS.ErrnoException) => {
        const why =
          error.code === 'EADDRINUSE'
            ? 'is in use: choose another one, or 0 for any'
            : `cannot be listened on: ${error.message}`;
        reject(new TroupeError('IO', `[ui] port ${port} of ${host} ${why}`));
      });
      this.server.listen(port, host, resolve);
    });
  }

  private get port(): number {
    return (this.server.address() as AddressInfo).port;
  }

  private answer(request: IncomingMessage, response: ServerResponse): void {
    for (const [name, value] of Object.entries(HEADERS)) response.setHeader(name, value);
    try {
      this.route(request, response);
    } catch (error) {
      const status = error instanceof RequestError ? error.status : 500;
      if (status === 405) response.setHeader('allow', 'GET, HEAD');
      response.writeHead(status, {
        'content-type': 'text/plain; charset=utf-8',
        'cache-control': 'no-store',
      });
      response.end(`${status === 500 ? 'this did not work; the server goes on' : reasonOf(error)}\n`);
    }
  }

  private route(request: IncomingMessage, response: ServerResponse): void {
    const { method, headers } = request;
    if (!this.access.knowsHost(headers.host))
      throw new RequestError(421, 'this server does not go by that name: use the address that it printed');
    if (method !== 'GET' && method !== 'HEAD') throw new RequestError(405, 'this server only reads');
    const { pathname, searchParams } = locationOf(request);
    const shown = searchParams.get('token');
    if (pathname === '/' && shown !== null) {
      const cookie = this.access.exchange(shown, this.port);
      if (cookie === null) throw new RequestError(401, UNAUTHORIZED);
      // The token leaves the address: it is not in the history, nor in what the page says where it came from.
      response.writeHead(303, { location: '/', 'set-cookie': cookie, 'cache-control': 'no-store' }).end();
      return;
    }
    if (!this.access.allows(headers, this.port)) throw new RequestError(401, UNAUTHORIZED);
    const file = this.page.get(pathname);
    if (file !== undefined) {
      sendFile(request, response, file);
      // What the page asks next is loaded while the browser reads it.
      response.once('finish', () => this.api);
    } else if (pathname === '/api/live') this.api.live.add(request, response, searchParams.getAll('run'));
    else if (pathname === '/api/csv') sendCsv(response, this.api.csv(searchParams));
    else {
      const found = pathname.startsWith('/api/')
        ? this.api.answer(pathname.slice('/api/'.length), searchParams)
        : undefined;
      if (found === undefined) throw new RequestError(404, 'there is no such page');
      sendJson(request, response, found);
    }
  }
}

/** The first IPv4 address that leaves this machine; where there is none, and IPv6 is listened on, of those; else 127.0.0.1. */
function outwardAddress(listens: string): string {
  const outward = Object.values(networkInterfaces())
    .flatMap((list = []) => list)
    .filter(({ internal, address }) => !internal && !address.startsWith('fe80:'));
  const found =
    outward.find(({ family }) => family === 'IPv4') ?? outward.find(({ family }) => family === listens);
  return found?.address ?? '127.0.0.1';
}

const UNAUTHORIZED = 'Open the address that troupe printed: it holds the token that this server asks for.';

function locationOf({ url }: IncomingMessage): URL {
  try {
    return new URL(url ?? '/', 'http://host');
  } catch {
    throw new RequestError(400, 'this is no address');
  }
}

const takesGzip = (request: IncomingMessage): boolean =>
  /\bgzip\b/.test(String(request.headers['accept-encoding'] ?? ''));

function sendJson(request: IncomingMessage, response: ServerResponse, value: unknown): void {
  const body = Buffer.from(JSON.stringify(value));
  const compress = body.length > WORTH_COMPRESSING && takesGzip(request);
  response.writeHead(200, {
    'content-type': 'application/json; charset=utf-8',
    'cache-control': 'no-store',
    ...(compress ? { 'content-encoding': 'gzip' } : {}),
  });
  response.end(compress ? gzipSync(body, { level: 1 }) : body);
}

/** In pieces, as fast as they are taken. */
function sendCsv(response: ServerResponse, { name, pieces }: ReturnType<Api['csv']>): void {
  response.writeHead(200, {
    'content-type': 'text/csv; charset=utf-8',
    'content-disposition': `attachment; filename="${name}"`,
    'cache-control': 'no-store',
  });
  // Whoever goes away in the middle ends it.
  pipeline(Readable.from(pieces), response, () => {});
}

function sendFile(request: IncomingMessage, response: ServerResponse, file: PageFile): void {
  const compress = takesGzip(request);
  response.writeHead(200, {
    'content-type': file.type,
    'cache-control': file.lasting ? 'private, max-age=31536000, immutable' : 'no-cache',
    vary: 'accept-encoding',
    ...(compress ? { 'content-encoding': 'gzip' } : {}),
  });
  response.end(compress ? file.gzip : file.body);
}
