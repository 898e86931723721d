// JSON over HTTP to one inference server, without the time limits of fetch: a response may take an hour.
import { Agent as HttpAgent, request as httpRequest, type IncomingMessage } from 'node:http';
import { Agent as HttpsAgent, request as httpsRequest } from 'node:https';
import { printable } from '../../base/printable';
import { reasonOf } from '../../base/text';

const SHOWN = 500;
/** Of an answer that is kept whole. */
const MOST_BYTES = 1024 * 2 ** 20;

/** The server could not be reached, broke off, or failed inside: another one, or the same one later, may do it. */
export class ServerLost extends Error {}

/** The server understood and will not do it. */
export class ServerRefused extends Error {}

export class ServerClient {
  readonly url: string;
  private readonly agent: HttpAgent | HttpsAgent;
  private readonly secure: boolean;

  /** @throws Error when it is no URL of http or https */
  constructor(
    url: string,
    private readonly apiKey: string | null = null,
  ) {
    const parsed = URL.canParse(url) ? new URL(url) : null;
    if (parsed === null || !/^https?:$/.test(parsed.protocol))
      throw new Error(`expected a URL such as http://host:8000, got ${printable(url, { max: 200 })}`);
    this.url = parsed.href.replace(/\/+$/, '');
    this.secure = parsed.protocol === 'https:';
    this.agent = this.secure ? new HttpsAgent({ keepAlive: true }) : new HttpAgent({ keepAlive: true });
  }

  /** The parsed answer; null when it is empty. @throws ServerLost, ServerRefused */
  async json(method: 'GET' | 'POST', path: string, body: unknown, signal?: AbortSignal): Promise<unknown> {
    const text = await this.text(await this.send(method, path, body, signal));
    if (text.trim() === '') return null;
    try {
      return JSON.parse(text);
    } catch {
      // Some routes answer in words.
      return text;
    }
  }

  /** The data of server-sent events, parsed, until [DONE] or the end. @throws ServerLost, ServerRefused */
  async *events(path: string, body: unknown, signal?: AbortSignal): AsyncGenerator<unknown> {
    const response = await this.send('POST', path, body, signal);
    response.setEncoding('utf8');
    let rest = '';
    try {
      for await (const chunk of response as AsyncIterable<string>) {
        const lines = (rest + chunk).split('\n');
        rest = lines.pop() as string;
        for (const line of lines) {
          if (!line.startsWith('data:')) continue;
          const data = line.slice('data:'.length).trim();
          if (data === '[DONE]') return;
          yield this.parsed(data);
        }
      }
    } catch (error) {
      throw this.lost(error);
    } finally {
      response.destroy();
    }
  }

  close(): void {
    this.agent.destroy();
  }

  private parsed(data: string): unknown {
    try {
      return JSON.parse(data);
    } catch {
      throw new ServerLost(`${this.url}: expected JSON in a stream, got ${printable(data, { max: 200 })}`);
    }
  }

  private async send(
    method: string,
    path: string,
    body: unknown,
    signal: AbortSignal | undefined,
  ): Promise<IncomingMessage> {
    const response = await this.open(method, path, body, signal);
    const status = response.statusCode ?? 0;
    if (status >= 200 && status < 300) return response;
    const said = printable((await this.text(response)).slice(0, SHOWN));
    const message = `${this.url}${path.split('?')[0]} answered ${status} ${said}`.trim();
    // Too many requests, a time-out: the same may succeed later.
    const passing = status >= 500 || status === 408 || status === 429;
    throw passing ? new ServerLost(message) : new ServerRefused(message);
  }

  private open(
    method: string,
    path: string,
    body: unknown,
    signal: AbortSignal | undefined,
  ): Promise<IncomingMessage> {
    const text = body === null ? null : JSON.stringify(body);
    const headers: Record<string, string> = { accept: 'application/json, text/event-stream' };
    if (text !== null) {
      headers['content-type'] = 'application/json';
      headers['content-length'] = String(Buffer.byteLength(text));
    } else if (method === 'POST') headers['content-length'] = '0';
    if (this.apiKey !== null) headers['authorization'] = `Bearer ${this.apiKey}`;
    return new Promise((resolve, reject) => {
      const request = (this.secure ? httpsRequest : httpRequest)(
        this.url + path,
        { method, headers, agent: this.agent, ...(signal ? { signal } : {}) },
        resolve,
      );
      request.on('error', (error) => reject(this.lost(error)));
      request.end(text ?? undefined);
    });
  }

  private async text(response: IncomingMessage): Promise<string> {
    const chunks: Buffer[] = [];
    let size = 0;
    try {
      for await (const chunk of response as AsyncIterable<Buffer>) {
        size += chunk.length;
        if (size > MOST_BYTES) throw new Error(`an answer of more than ${MOST_BYTES} bytes`);
        chunks.push(chunk);
      }
    } catch (error) {
      throw this.lost(error);
    }
    return Buffer.concat(chunks).toString('utf8');
  }

  private lost(error: unknown): Error {
    if (error instanceof ServerLost) return error;
    return new ServerLost(`${this.url}: ${reasonOf(error) || 'the connection broke off'}`);
  }
}
