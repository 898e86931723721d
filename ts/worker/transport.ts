import { createHash } from 'node:crypto';
import type { CommonConnectionOptions } from 'node:tls';

// The connection between a worker and its controller: TLS whose key both derive from the token of the run. So each end knows that the
// other has the token, nobody between them reads along or joins in, and there are no certificates to make and to carry.

/** ECDHE first: what has been said stays secret when the token becomes known later. */
const CIPHERS = 'ECDHE-PSK-CHACHA20-POLY1305:DHE-PSK-AES256-GCM-SHA384';

/** For both ends. TLS 1.3 has no keys from elsewhere in Node. */
export const tlsOptions = {
  ciphers: CIPHERS,
  minVersion: 'TLSv1.2',
  maxVersion: 'TLSv1.2',
} as const satisfies CommonConnectionOptions & { ciphers: string; minVersion: string; maxVersion: string };

/** How long either end may take to show that it has the token. */
export const HANDSHAKE_MS = 10_000;

/** The label stands for both ends' version of the protocol. */
export function sharedKey(token: string): Buffer {
  return createHash('sha256').update(`troupe/controller/2 ${token}`).digest();
}

/** host:port; an IPv6 address in brackets, one that maps an IPv4 address as that. */
export function hostPort(address: string, port: number): string {
  const plain = plainAddress(address);
  return plain.includes(':') ? `[${plain}]:${port}` : `${plain}:${port}`;
}

/** ::ffff:10.0.0.1 -> 10.0.0.1 */
export const plainAddress = (address: string): string => address.replace(/^::ffff:(?=\d+\.)/i, '');
