// Who may look: a token that the printed address holds, exchanged for a cookie; and only under the names that the server goes by.
import { createHash, createHmac, randomBytes, timingSafeEqual } from 'node:crypto';
import { hostname } from 'node:os';

/** Hidden from scripts and from other sites; kept until the browser is closed. */
const COOKIE_RULES = 'HttpOnly; SameSite=Strict; Path=/';

/** In a time that does not depend on where they differ. */
function same(given: string, right: string): boolean {
  const digest = (text: string): Buffer => createHash('sha256').update(text).digest();
  return timingSafeEqual(digest(given), digest(right));
}

export const isLoopback = (host: string): boolean => /^(localhost|127(\.\d+){3}|::1)$/.test(host);

/** The name in a Host header, without port and brackets; null when it is none. */
function nameOf(host: string | undefined): string | null {
  const match = /^(?:\[([0-9a-f:.]+)\]|([a-z0-9.-]+))(?::\d{1,5})?$/i.exec(host ?? '');
  return match === null ? null : ((match[1] ?? match[2]) as string).toLowerCase();
}

export interface AccessOptions {
  /** Address that the server listens on. */
  host: string;
  /** null: none is asked for. */
  token: string | null;
}

export class Access {
  /** What the cookie holds: not the token, so that a copied cookie ends with this server. */
  private readonly session: string | null;

  constructor(
    private readonly options: AccessOptions,
    secret = randomBytes(32),
  ) {
    this.session =
      options.token === null ? null : createHmac('sha256', secret).update(options.token).digest('base64url');
  }

  static newToken(): string {
    return randomBytes(24).toString('base64url');
  }

  /**
   * Whether a Host header names this server. A page of another site whose name has been pointed at this address (DNS rebinding) sends
   * its own name. On a loopback address only its names are right; on another one also numbers and the name of the machine,
   * with or without its domain. Whoever has pointed a name at this address still needs the token.
   */
  knowsHost(header: string | undefined): boolean {
    const name = nameOf(header);
    if (name === null) return false;
    const { host } = this.options;
    if (isLoopback(name) || name === host.toLowerCase()) return true;
    if (isLoopback(host)) return false;
    const machine = hostname().toLowerCase();
    return /^(\d+\.){3}\d+$|:/.test(name) || name === machine || name.startsWith(`${machine}.`);
  }

  /** The cookie for whoever shows this token; null when it is not the one. */
  exchange(token: string, port: number): string | null {
    const { token: right } = this.options;
    if (right === null || this.session === null || !same(token, right)) return null;
    return `${cookieName(port)}=${this.session}; ${COOKIE_RULES}`;
  }

  allows(
    headers: { cookie?: string | undefined; authorization?: string | undefined },
    port: number,
  ): boolean {
    if (this.session === null || this.options.token === null) return true;
    const bearer = /^Bearer (.+)$/.exec(headers.authorization ?? '')?.[1];
    if (bearer !== undefined) return same(bearer, this.options.token);
    const name = `${cookieName(port)}=`;
    const cookie = (headers.cookie ?? '')
      .split(';')
      .map((part) => part.trim())
      .find((part) => part.startsWith(name));
    return cookie !== undefined && same(cookie.slice(name.length), this.session);
  }
}

/** Cookies know no ports: two servers of one machine must not take each other's. */
const cookieName = (port: number): string => `troupe_ui_${port}`;
