// The addresses of this machine, and which of them a run is to use.
import { BlockList, isIP } from 'node:net';
import { networkInterfaces } from 'node:os';
import { TroupeError } from '../errors';

export interface NamedAddress {
  interface: string;
  address: string;
  internal: boolean;
}

/** All addresses, IPv4 before IPv6 of each interface; without those that are good on one link only (fe80::). */
function allAddresses(): NamedAddress[] {
  return Object.entries(networkInterfaces()).flatMap(([name, list = []]) =>
    list
      .filter(({ family, address }) => family === 'IPv4' || !address.startsWith('fe80:'))
      .map(({ address, internal }) => ({ interface: name, address, internal })),
  );
}

/** Whether a text is host:port, of an IPv6 address in brackets. */
export function isHostPort(text: string): boolean {
  const [, port] = /^(?:\[[\da-f:.]+\]|[^\s:/?#@[\]]+):([1-9]\d*)$/i.exec(text) ?? [];
  return port !== undefined && URL.canParse(`tls://${text}`);
}

export const interfaceOf = (address: string): string | null =>
  allAddresses().find((one) => one.address === address)?.interface ?? null;

/**
 * The address that `network` means: an interface (eth0), a subnet (10.0.0.0/8, fd00::/8) or an address itself.
 * @throws TroupeError INVALID_ARGUMENT listing what there is
 */
export function namedAddress(network: string, addresses: readonly NamedAddress[] = allAddresses()): string {
  const within = matcher(network);
  const fitting = addresses.filter((one) => one.interface === network || within?.(one.address) === true);
  // A wide subnet has that of this machine alone, too.
  const found = fitting.find(({ internal }) => !internal) ?? fitting[0];
  if (found !== undefined) return found.address;
  const there = addresses.map((one) => `${one.interface} ${one.address}`).join(', ');
  throw new TroupeError(
    'INVALID_ARGUMENT',
    `network ${network}: expected an interface, a subnet such as 10.0.0.0/8, or an address of this host, which has ${there || 'none'}`,
  );
}

/** Whether an address is in a subnet, or is the one; null for what is neither. */
function matcher(network: string): ((address: string) => boolean) | null {
  const [base, bits] = network.split('/') as [string, string?];
  const family = isIP(base) === 6 ? 'ipv6' : 'ipv4';
  if (isIP(base) === 0) return null;
  if (bits === undefined) return (address) => address === base;
  if (!/^\d+$/.test(bits)) return null;
  const list = new BlockList();
  try {
    list.addSubnet(base, Number(bits), family);
  } catch {
    return null;
  }
  return (address) => list.check(address, isIP(address) === 6 ? 'ipv6' : 'ipv4');
}

/** The address to be reached at where nobody says: the first that leaves this machine, else 127.0.0.1. */
export function outwardAddress(addresses: readonly NamedAddress[] = allAddresses()): string {
  return addresses.find(({ internal }) => !internal)?.address ?? '127.0.0.1';
}
