// An HTTP server of a few routes: keys, bounds, and an end that lets what runs run out.
import { createHash, timingSafeEqual } from 'node:crypto';
import { setMaxListeners } from 'node:events';
import { createServer, type IncomingMessage, type Server, type ServerResponse } from 'node:http';
import type { AddressInfo, Socket } from 'node:net';
import { TroupeError } from '../../errors';
import type { Answer } from '../call/answer';
import { ApiError, apiErrorOf } from '../call/api_error';
import { dropRest, readBody } from './body';
import { writeEvents } from './event_stream';
import { Reader } from './reader';

/** What a route is given; `signal` aborts when nobody waits for the answer. */
export interface RouteRequest {
  request: IncomingMessage;
  path: string;
  /** Of a POST. */
  body: string;
  signal: AbortSignal;
}

export type RouteAnswer = Answer | { text: string; type: string; status?: number };

export interface Route {
  method: 'GET' | 'POST';
  /** The whole path, or its beginning when it ends with a slash; a segment `*` is any one. Routes of one path stand for its methods. */
  path: string;
  /** Whether it is open to those without a key. */
  open?: boolean;
  answer(request: RouteRequest): Promise<RouteAnswer>;
  /** The body of an error, in the dialect of the path. */
  errorBody(error: ApiError): unknown;
}

export interface HttpOptions {
  host: string;
  port: number;
  /** Any of them lets in; none: everybody. */
  apiKeys: readonly string[];
  maxBodyBytes: number;
  /** Requests at a time; more are told to come again. */
  maxRequests: number;
  /** Milliseconds that a reader may take nothing. */
  stallMs: number;
  /** Milliseconds that running requests have when the server closes. */
  graceMs: number;
  /** Of every request, once. */
  onDone?(done: { path: string; status: number; seconds: number; streamed: boolean }): void;
}

/** As nginx counts those who do not wait for the end of their answer. */
const CLIENT_LEFT = 499;

const notFound = (message: string): ApiError => new ApiError(404, message);

export class HttpServer {
  private readonly server: Server;
  /** By who ends it, with the connection that it came on. */
  private readonly running = new Map<AbortController, Socket>();
  private readonly keys: readonly Buffer[];
  private readonly routes: readonly { route: Route; path: RegExp }[];
  private closing = false;

  constructor(
    routes: readonly Route[],
    private readonly options: HttpOptions,
  ) {
    this.routes = routes.map((route) => ({ route, path: pathPattern(route.path) }));
    this.keys = options.apiKeys.map(digest);
    this.server = createServer((request, response) => void this.serve(request, response));
    this.server.on('connection', (socket) => socket.once('close', () => this.leave(socket)));
    // Agents keep their connections between turns.
    this.server.keepAliveTimeout = 75_000;
  }

  /** Resolves to its URL. @throws TroupeError IO when the port is not to be had */
  listen(): Promise<string> {
    const { host, port } = this.options;
    return new Promise((resolve, reject) => {
      this.server.once('error', (error: NodeJS.ErrnoException) => {
        const reason =
          error.code === 'EADDRINUSE'
            ? 'is in use: choose another one, or 0 for any'
            : `cannot be listened on: ${error.message}`;
        reject(new TroupeError('IO', `[serve] port ${port} on ${host} ${reason}`, { cause: error }));
      });
      this.server.listen(port, host, () => {
        const { address, family, port: opened } = this.server.address() as AddressInfo;
        resolve(`http://${family === 'IPv6' ? `[${address}]` : address}:${opened}`);
      });
    });
  }

  /** Takes nothing new, waits for what runs, and ends what is left after the time for it. */
  async close(): Promise<void> {
    this.closing = true;
    const closed = new Promise<void>((resolve) => {
      this.server.close(() => resolve());
    });
    this.closeIdle();
    const late = setTimeout(() => {
      for (const controller of this.running.keys()) controller.abort();
      this.server.closeAllConnections();
    }, this.options.graceMs);
    await closed;
    clearTimeout(late);
  }

  /** Clients keep connections that nothing runs on any more, or open some ahead. */
  private closeIdle(): void {
    if (this.running.size === 0) this.server.closeAllConnections();
    else this.server.closeIdleConnections();
  }

  /** A reader that goes takes its requests with it: those, too, whose answers would have come after the one that it was reading. */
  private leave(gone: Socket): void {
    for (const [controller, socket] of this.running) if (socket === gone) controller.abort();
  }

  private async serve(request: IncomingMessage, response: ServerResponse): Promise<void> {
    const started = performance.now();
    const controller = new AbortController();
    // Each prompt of a request listens.
    setMaxListeners(0, controller.signal);
    const path = pathOf(request.url ?? '');
    const routes = this.routes.filter((one) => one.path.test(path)).map(({ route }) => route);
    const route = routes.find((one) => takes(one, request.method)) ?? routes[0];
    let streamed = false;
    const { signal } = controller;
    response.on('error', () => controller.abort());
    const reader = new Reader(response, this.options.stallMs, signal);
    this.running.set(controller, request.socket);
    try {
      const known = this.admit(request, path, route);
      const body = known.method === 'POST' ? await readBody(request, this.options.maxBodyBytes) : '';
      const answer = await known.answer({ request, path, body, signal });
      streamed = 'events' in answer;
      if ('events' in answer) await writeEvents(response, answer.events, reader);
      else if ('text' in answer) await send(response, answer.status ?? 200, answer.type, answer.text, reader);
      else await send(response, 200, 'application/json', JSON.stringify(answer.body), reader);
    } catch (error) {
      await this.refuse(request, response, routes, apiErrorOf(error), reader);
    } finally {
      await reader.finished();
      this.running.delete(controller);
      controller.abort();
      if (this.closing) this.closeIdle();
      const seconds = (performance.now() - started) / 1000;
      const status = response.writableFinished ? response.statusCode : CLIENT_LEFT;
      this.options.onDone?.({ path: route?.path ?? 'other', status, seconds, streamed });
    }
  }

  /** @throws ApiError 401, 404, 405, 429, 503 */
  private admit(request: IncomingMessage, path: string, route: Route | undefined): Route {
    if (!route?.open) this.checkKey(request);
    if (route === undefined) throw notFound(`there is nothing at ${path.slice(0, 200)}`);
    if (!takes(route, request.method))
      throw new ApiError(405, `${route.path} wants ${route.method}, not ${request.method}`);
    if (this.closing) throw new ApiError(503, 'this server is about to end');
    if (!route.open && this.running.size > this.options.maxRequests)
      throw new ApiError(429, `${this.options.maxRequests} requests are running: come again later`);
    return route;
  }

  private checkKey({ headers }: IncomingMessage): void {
    if (this.keys.length === 0) return;
    const bearer = /^Bearer (.*)$/i.exec(headers.authorization ?? '')?.[1];
    // The header of the Anthropic dialect.
    const given = bearer ?? headers['x-api-key'];
    const hash = digest(typeof given === 'string' ? given : '');
    if (this.keys.some((key) => timingSafeEqual(key, hash))) return;
    const what = given === undefined ? 'no API key was given' : 'this API key is not one of this server';
    throw new ApiError(401, `${what}: expected "Authorization: Bearer KEY"`, null, 'invalid_api_key');
  }

  private async refuse(
    request: IncomingMessage,
    response: ServerResponse,
    routes: readonly Route[],
    error: ApiError,
    reader: Reader,
  ): Promise<void> {
    if (response.headersSent) {
      response.destroy();
      return;
    }
    if (error.status === 429) response.setHeader('retry-after', '1');
    if (error.status === 401) response.setHeader('www-authenticate', 'Bearer');
    if (error.status === 405)
      response.setHeader(
        'allow',
        routes.map(({ method }) => (method === 'GET' ? 'GET, HEAD' : method)).join(', '),
      );
    if (error.status === 503) response.setHeader('connection', 'close');
    const { message, type, param, code } = error;
    const body = routes[0]?.errorBody(error) ?? { error: { message, type, param, code } };
    dropRest(request);
    await send(response, error.status, 'application/json', JSON.stringify(body), reader);
  }
}

/** What a request asks for: proxies name the server, too (RFC 9112, 3.2.2). */
const pathOf = (target: string): string =>
  (target.replace(/^https?:\/\/[^/?]*/i, '').split('?')[0] as string) || '/';

const pathPattern = (path: string): RegExp =>
  new RegExp(`^${path.replace(/[^\w/*]/g, '\\$&').replaceAll('*', '[^/]+')}${path.endsWith('/') ? '' : '$'}`);

const takes = ({ method }: Route, asked: string | undefined): boolean =>
  asked === method || (method === 'GET' && asked === 'HEAD');

/** Keys of any length, compared in constant time. */
const digest = (key: string): Buffer => createHash('sha256').update(key).digest();

async function send(
  response: ServerResponse,
  status: number,
  type: string,
  text: string,
  reader: Reader,
): Promise<void> {
  if (response.destroyed) return;
  response.writeHead(status, { 'content-type': type, 'content-length': Buffer.byteLength(text) });
  if (await reader.write(text)) response.end();
}
