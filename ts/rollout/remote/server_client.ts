// JSON over HTTP to one inference server, whose responses may take an hour.
import type { IncomingMessage } from 'node:http';
import type { z } from 'zod';
import { HttpConnection, noAnswer, textOf } from '../../base/http_connection';
import { printable } from '../../base/printable';

const SHOWN = 500;
/** Of an answer that is kept whole. */
const MOST_BYTES = 1024 * 2 ** 20;

/** The server could not be reached, broke off, or failed inside: another one, or the same one later, may do it. */
export class ServerLost extends Error {}

/** The server has too much to do, or says so for another one. */
export class ServerBusy extends ServerLost {}

/** What answers has weights that the server was not given: it was started again, or is another one. */
export class OtherWeights extends ServerLost {}

/** The server understood and will not do it. */
export class ServerRefused extends Error {}

type Method = 'GET' | 'POST';

export class ServerClient {
  /** Without a name and a password in it: what goes wrong is told with it. */
  readonly url: string;
  private readonly connection: HttpConnection;

  /** @throws Error when it is no URL of http or https */
  constructor(
    url: string,
    private readonly apiKey: string | null = null,
  ) {
    const parsed = URL.canParse(url) ? new URL(url) : null;
    if (parsed === null || !/^https?:$/.test(parsed.protocol))
      throw new Error(`expected a URL such as http://host:8000, got ${printable(url, { max: 200 })}`);
    this.connection = new HttpConnection(withoutSlash(parsed));
    parsed.username = parsed.password = '';
    this.url = withoutSlash(parsed);
  }

  /** The parsed answer; null when it is empty, a text where it is in words, as that of some routes is. @throws ServerLost, ServerRefused */
  async json(method: Method, path: string, body: unknown, signal?: AbortSignal): Promise<unknown> {
    const text = await this.text(await this.send(method, path, body, signal));
    if (text.trim() === '') return null;
    const value = parsed(text);
    return value === undefined ? text : value;
  }

  /** An answer of this shape. @throws ServerLost, also where it is no JSON; ServerRefused, also where it is of another shape */
  async answer<T>(
    shape: z.ZodType<T>,
    method: Method,
    path: string,
    body: unknown,
    signal?: AbortSignal,
  ): Promise<T> {
    const response = await this.send(method, path, body, signal);
    const text = await this.text(response);
    const value = parsed(text);
    if (value === undefined)
      throw new ServerLost(`${this.heard(path, response)} with what is no JSON: ${beginning(text)}`);
    const result = shape.safeParse(value);
    if (result.success) return result.data;
    throw new ServerRefused(
      `${this.heard(path, response)} with JSON of another shape (${problem(result.error)}): ${beginning(text)}`,
    );
  }

  /** What an event of a stream holds. @throws ServerRefused where its shape is another */
  read<T>(shape: z.ZodType<T>, path: string, event: unknown): T {
    const result = shape.safeParse(event);
    if (result.success) return result.data;
    throw new ServerRefused(
      `${this.url}${path} sent an event of another shape (${problem(result.error)}): ${beginning(JSON.stringify(event))}`,
    );
  }

  /** The data of server-sent events, parsed, until [DONE] or the end. @throws ServerLost, also where there are none; ServerRefused */
  async *events(path: string, body: unknown, signal?: AbortSignal): AsyncGenerator<unknown> {
    const response = await this.send('POST', path, body, signal);
    response.setEncoding('utf8');
    let rest = '';
    let done = false;
    let first: string | null = '';
    try {
      // To its end, also after [DONE]: a connection whose answer is not read to the end is of no more use.
      for await (const chunk of response as AsyncIterable<string>) {
        const lines = (rest + chunk).split('\n');
        rest = lines.pop() as string;
        if (first !== null && first.length < SHOWN) first += chunk;
        for (const line of lines) {
          if (done || !line.startsWith('data:')) continue;
          first = null;
          const data = line.slice('data:'.length).trim();
          if (data === '[DONE]') done = true;
          else yield this.eventOf(data);
        }
      }
      if (first !== null)
        throw new ServerLost(`${this.heard(path, response)} without an event: ${beginning(first)}`);
    } catch (error) {
      throw this.lost(error);
    } finally {
      response.destroy();
    }
  }

  /** Breaks off what is being asked; it may be asked again. */
  close(): void {
    this.connection.close();
  }

  private eventOf(data: string): unknown {
    const value = parsed(data);
    if (value === undefined)
      throw new ServerLost(`${this.url}: expected JSON in a stream, got ${printable(data, { max: 200 })}`);
    return value;
  }

  private heard(path: string, response: IncomingMessage): string {
    return `${this.url}${path.split('?')[0]} answered ${response.statusCode ?? 0}`;
  }

  private async send(
    method: Method,
    path: string,
    body: unknown,
    signal: AbortSignal | undefined,
  ): Promise<IncomingMessage> {
    const response = await this.open(method, path, body, signal);
    const status = response.statusCode ?? 0;
    if (status >= 200 && status < 300) return response;
    const said = printable((await this.text(response)).slice(0, SHOWN));
    const { location } = response.headers;
    const elsewhere =
      location === undefined
        ? ''
        : ` and sends on to ${printable(location, { max: 200 })}: name that address.`;
    const message = `${this.heard(path, response)}${elsewhere} ${said}`.trim();
    if (status === 408 || status === 429 || status === 503) throw new ServerBusy(message);
    throw status >= 500 ? new ServerLost(message) : new ServerRefused(message);
  }

  private async open(
    method: Method,
    path: string,
    body: unknown,
    signal: AbortSignal | undefined,
  ): Promise<IncomingMessage> {
    const headers: Record<string, string> = { accept: 'application/json, text/event-stream' };
    if (this.apiKey !== null) headers['authorization'] = `Bearer ${this.apiKey}`;
    const text = body === null ? null : JSON.stringify(body);
    try {
      return await this.connection.open({ method, path, body: text, headers, signal });
    } catch (error) {
      throw this.lost(error);
    }
  }

  private async text(response: IncomingMessage): Promise<string> {
    try {
      return await textOf(response, MOST_BYTES);
    } catch (error) {
      throw this.lost(error);
    }
  }

  private lost(error: unknown): Error {
    if (error instanceof ServerLost) return error;
    return new ServerLost(`${this.url}: ${noAnswer(error).message}`);
  }
}

const withoutSlash = ({ href }: URL): string => href.replace(/\/+$/, '');

/** undefined: it is no JSON. */
function parsed(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch {
    return undefined;
  }
}

const beginning = (text: string): string =>
  text.trim() === '' ? 'nothing' : printable(text.slice(0, SHOWN).trim());

const problem = ({ issues: [issue] }: z.ZodError): string =>
  [issue?.path.map(String).join('.') ?? '', issue?.message].filter(Boolean).join(': ');
