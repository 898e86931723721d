import { HttpConnection } from '../base/http_connection';
import { reasonOf } from '../base/text';

const SHOWN = 300;
/** Of an answer. */
const MOST_BYTES = 64 * 2 ** 20;
/** Statuses below 500 after which the same request may succeed: time-out, too early, too many requests. */
const PASSING = [408, 425, 429];

/** A server understood a request and will not do it: trying again is of no use. */
export class RefusedError extends Error {
  constructor(
    readonly status: number,
    message: string,
  ) {
    super(message);
    this.name = 'RefusedError';
  }
}

/** How requests say who is asking; `null`: they do not. */
export type Credentials = { user: string; password: string } | { token: string } | null;

/** JSON over HTTP to one server. Nothing that it throws holds the credentials. */
export class HttpClient {
  /** The URL without what says who is asking, and without a slash at its end. */
  readonly base: string;
  private readonly connection: HttpConnection;
  private readonly authorization: string | null;
  private readonly secrets: readonly string[];

  /**
   * `base`: http(s) URL; a user and password in it are used, unless `credentials` are given, and taken out.
   * `keys`: the environment variables that the credentials come from, for messages.
   * @throws Error when it is not such a URL
   */
  constructor(
    base: string,
    credentials: Credentials,
    private readonly keys: string,
  ) {
    const url = URL.canParse(base) ? new URL(base) : null;
    if (url === null || !/^https?:$/.test(url.protocol)) {
      const shown = base.replace(/\/\/[^/@]*@/, '//***@');
      throw new Error(`expected a URL that begins with http:// or https://, got "${shown}"`);
    }
    let known = credentials;
    if (known === null && url.username !== '') {
      known = { user: decodeURIComponent(url.username), password: decodeURIComponent(url.password) };
    }
    url.username = '';
    url.password = '';
    this.base = url.href.replace(/\/+$/, '');
    this.connection = new HttpConnection(this.base);
    this.authorization = known && authorizationOf(known);
    this.secrets = known ? secretsOf(known) : [];
  }

  /**
   * The parsed answer of a request; {} when it is empty. `path` begins with a slash.
   * @throws RefusedError when trying again is of no use; Error when it may be, also when `signal` aborts it
   */
  async request(method: 'GET' | 'POST', path: string, body: unknown, signal: AbortSignal): Promise<unknown> {
    const headers: Record<string, string> = { accept: 'application/json' };
    if (this.authorization !== null) headers['authorization'] = this.authorization;
    const request = { method, path, headers, signal, body: body === null ? null : JSON.stringify(body) };
    const { status, location, text } = await this.connection
      .ask(request, MOST_BYTES)
      .catch((error: unknown) => {
        throw new Error(this.redacted(`${this.base}: ${reasonOf(error)}`));
      });
    if (status >= 200 && status < 300) return this.parsed(text);
    const said =
      location === null ? text.slice(0, SHOWN) : `and sends to ${location}: give the address there`;
    const message = this.redacted(`${this.base}${path.split('?')[0]} answered ${status} ${said}`.trim());
    if (status === 401 || status === 403) throw new RefusedError(status, `${message}: check ${this.keys}`);
    if (status >= 500 || PASSING.includes(status)) throw new Error(message);
    throw new RefusedError(status, message);
  }

  private parsed(text: string): unknown {
    if (text.trim() === '') return {};
    try {
      return JSON.parse(text);
    } catch {
      const shown = this.redacted(text.slice(0, SHOWN));
      throw new Error(`${this.base}: expected JSON, got ${JSON.stringify(shown)}`);
    }
  }

  private redacted(text: string): string {
    return this.secrets.reduce((rest, secret) => rest.replaceAll(secret, '***'), text);
  }
}

function authorizationOf(credentials: NonNullable<Credentials>): string {
  if ('token' in credentials) return `Bearer ${credentials.token}`;
  return `Basic ${Buffer.from(`${credentials.user}:${credentials.password}`).toString('base64')}`;
}

function secretsOf(credentials: NonNullable<Credentials>): string[] {
  const secret = 'token' in credentials ? credentials.token : credentials.password;
  return secret === '' ? [] : [secret, authorizationOf(credentials).split(' ')[1] as string];
}
