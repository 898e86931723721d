// A server that is asked over HTTP, for whoever asks one: connections that are kept, the caller's time limits and no others (fetch
// gives up after five minutes), answers of bounded size, and reasons in words.
import { Agent as HttpAgent, request as httpRequest, type IncomingMessage } from 'node:http';
import { Agent as HttpsAgent, request as httpsRequest } from 'node:https';
import { reasonOf } from './text';

/** The server could not be reached or broke off, or the caller gave up. The message is the reason alone. */
export class NoAnswer extends Error {}

/** To ask again would be of no use. */
export class AnswerTooLong extends NoAnswer {}

export interface HttpRequest {
  method: 'GET' | 'POST';
  /** What follows the URL of the server. '' */
  path?: string;
  /** null: none. */
  body: string | null;
  headers?: Readonly<Record<string, string>>;
  signal?: AbortSignal | undefined;
}

/** Whatever its status is: redirections are not followed. */
export interface HttpAnswer {
  status: number;
  /** Where it sends the caller; null: nowhere. */
  location: string | null;
  text: string;
}

/** A kept connection broke off before anything of an answer came; a new one may serve. */
class ClosedWhileIdle extends Error {}

export class HttpConnection {
  private readonly agent: HttpAgent | HttpsAgent;
  private readonly secure: boolean;
  /** How often its connections were ended. */
  private closings = 0;

  /** @throws Error when `url` is no URL of http or https */
  constructor(readonly url: string) {
    const protocol = URL.canParse(url) ? new URL(url).protocol : null;
    if (protocol !== 'http:' && protocol !== 'https:') throw new Error(`not a URL of http or https: ${url}`);
    this.secure = protocol === 'https:';
    this.agent = this.secure ? new HttpsAgent({ keepAlive: true }) : new HttpAgent({ keepAlive: true });
  }

  /** The whole answer. @throws NoAnswer; AnswerTooLong for more than `mostBytes` */
  async ask(request: HttpRequest, mostBytes: number): Promise<HttpAnswer> {
    const response = await this.open(request);
    const { statusCode: status = 0, headers } = response;
    const text = await textOf(response, mostBytes, request.signal);
    return { status, location: headers.location ?? null, text };
  }

  /**
   * The beginning of an answer, whose rest is to be read or destroyed. What was sent on a kept connection that the server closed at that
   * moment, as it does with idle ones, is sent again. @throws NoAnswer
   */
  async open(asked: HttpRequest): Promise<IncomingMessage> {
    for (;;) {
      try {
        return await this.send(asked);
      } catch (error) {
        if (!(error instanceof ClosedWhileIdle)) throw error;
      }
    }
  }

  private send({ method, path = '', body, headers: given, signal }: HttpRequest): Promise<IncomingMessage> {
    const { closings } = this;
    const headers: Record<string, string> = { ...given };
    if (body !== null) headers['content-type'] = 'application/json';
    if (method === 'POST') headers['content-length'] = String(Buffer.byteLength(body ?? ''));
    return new Promise((resolve, reject) => {
      const options = { method, headers, agent: this.agent, ...(signal ? { signal } : {}) };
      const request = (this.secure ? httpsRequest : httpRequest)(this.url + path, options, resolve);
      request.on('error', (error: NodeJS.ErrnoException) => {
        const closed = error.code === 'ECONNRESET' || error.code === 'EPIPE';
        const stale = request.reusedSocket && closed && closings === this.closings;
        reject(stale && !signal?.aborted ? new ClosedWhileIdle() : noAnswer(error, signal));
      });
      request.end(body ?? undefined);
    });
  }

  /** Ends its connections, with what is being asked on them. Idle ones keep no program alive. */
  close(): void {
    this.closings++;
    this.agent.destroy();
  }
}

/** The text of an answer, as UTF-8. @throws NoAnswer; AnswerTooLong */
export async function textOf(
  response: IncomingMessage,
  mostBytes: number,
  signal?: AbortSignal,
): Promise<string> {
  const chunks: Buffer[] = [];
  let size = 0;
  try {
    for await (const chunk of response as AsyncIterable<Buffer>) {
      size += chunk.length;
      if (size > mostBytes) throw new AnswerTooLong(`an answer of more than ${mostBytes} bytes`);
      chunks.push(chunk);
    }
  } catch (error) {
    throw noAnswer(error, signal);
  }
  return Buffer.concat(chunks).toString('utf8');
}

/** Why there is no answer. */
export function noAnswer(error: unknown, signal?: AbortSignal): NoAnswer {
  if (error instanceof NoAnswer) return error;
  // A name with several addresses fails with one error for each.
  const [first] = (error as { errors?: unknown[] }).errors ?? [];
  const reason = signal?.aborted ? reasonOf(signal.reason) : reasonOf(error) || reasonOf(first ?? '');
  return new NoAnswer(reason || 'the connection broke off', { cause: error });
}
