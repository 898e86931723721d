// A server for the agents of a run: the dialects of the OpenAI and Anthropic APIs, with every call tied to a trajectory.
import { randomBytes } from 'node:crypto';
import { answerMessages, countTokens, messagesError } from '../../serve/anthropic/messages';
import type { CallHooks, Dialect } from '../../serve/call/answer';
import { ApiError } from '../../serve/call/api_error';
import type { ServedModel } from '../../serve/call/served_model';
import { HttpServer, type Route } from '../../serve/http/http_server';
import { answerChat } from '../../serve/openai/chat';
import { parseJson } from '../../serve/openai/fields';
import { modelList } from '../../serve/openai/models';
import { answerResponses } from '../../serve/openai/responses';
import { errorBody } from '../../serve/openai/usage';

/** Where an agent finds the policy: as environment variables and client libraries want it. */
export interface SessionAddress {
  /** For clients of the OpenAI API. */
  openaiBaseUrl: string;
  /** For clients of the Anthropic API. */
  anthropicBaseUrl: string;
  apiKey: string;
}

export interface Session {
  /** With the limits of the trajectory. */
  served: ServedModel;
  /** New ones for every call. */
  hooks(): CallHooks;
  /** Ends calls on their way when the trajectory ends. */
  signal: AbortSignal;
}

const MAX_BODY = 64 * 2 ** 20;
const MAX_REQUESTS = 8192;
const STALL_MS = 120_000;

const DIALECTS: readonly {
  method?: Route['method'];
  path: string;
  dialect: Dialect;
  error: (error: ApiError) => unknown;
}[] = [
  { path: '/v1/chat/completions', dialect: answerChat, error: errorBody },
  { path: '/v1/responses', dialect: answerResponses, error: errorBody },
  { path: '/v1/messages', dialect: answerMessages, error: messagesError },
  { path: '/v1/messages/count_tokens', dialect: countTokens, error: messagesError },
  {
    method: 'GET',
    path: '/v1/models',
    dialect: async (model) => ({ body: modelList(model) }),
    error: errorBody,
  },
];

export class SessionServer {
  private readonly sessions = new Map<string, Session>();
  private readonly http: HttpServer;
  private url: Promise<string> | null = null;

  constructor(host = '127.0.0.1') {
    this.http = new HttpServer(this.routes(), {
      host,
      port: 0,
      apiKeys: [],
      maxBodyBytes: MAX_BODY,
      maxRequests: MAX_REQUESTS,
      stallMs: STALL_MS,
      graceMs: 0,
    });
  }

  /** Opens a session: by the base URL, or by the key at the server's own address. The first one starts the server. @throws TroupeError IO */
  async open(session: Session): Promise<{ address: SessionAddress; close(): void }> {
    this.url ??= this.http.listen().catch((error: unknown) => {
      // The next trajectory may have better luck.
      this.url = null;
      throw error;
    });
    const url = await this.url;
    const key = randomBytes(18).toString('base64url');
    this.sessions.set(key, session);
    const base = `${url}/s/${key}`;
    return {
      address: { openaiBaseUrl: `${base}/v1`, anthropicBaseUrl: base, apiKey: key },
      close: () => this.sessions.delete(key),
    };
  }

  async close(): Promise<void> {
    if (this.url !== null) await this.http.close();
  }

  private routes(): Route[] {
    const answer =
      (dialect: Dialect): Route['answer'] =>
      async ({ request, path, body, signal }) => {
        const session = this.sessions.get(keyOf(path, request.headers as Headers));
        if (session === undefined)
          throw new ApiError(
            401,
            'there is no such session, or its trajectory has ended',
            null,
            'invalid_api_key',
          );
        const ended = AbortSignal.any([signal, session.signal]);
        const asked = request.method === 'POST' ? named(parseJson(body), session.served) : null;
        return await dialect(session.served, asked, ended, session.hooks());
      };
    return DIALECTS.flatMap(({ method = 'POST', path, dialect, error }) =>
      [path, `/s/*${path}`].map(
        (at): Route => ({ method, path: at, answer: answer(dialect), errorBody: error }),
      ),
    );
  }
}

type Headers = Readonly<Record<string, string | undefined>>;

/** In the path, or in the headers of a client that only takes a key. */
const keyOf = (path: string, headers: Headers): string =>
  /^\/s\/([^/]+)\//.exec(path)?.[1] ??
  /^Bearer (.*)$/i.exec(headers['authorization'] ?? '')?.[1] ??
  headers['x-api-key'] ??
  '';

/** An agent has models of its own names: whatever it asks for, it gets the policy. */
function named(body: unknown, { name }: ServedModel): unknown {
  return typeof body === 'object' && body !== null && 'model' in body ? { ...body, model: name } : body;
}
