// Joins the two ends of a tunnelled connection, which are at the agents of two hosts.
import type { StreamMessage } from '../host/protocol';
import type { Host } from './host';

interface End {
  host: Host;
  stream: number;
}

export class Relay {
  readonly #targets = new Map<number, { host: Host; port: number }>();
  readonly #others = new Map<Host, Map<number, End>>();
  #nextTunnel = 1;
  /** Agents number the streams that they open themselves upwards from 1. */
  #nextStream = -1;

  /** A port of 127.0.0.1 of `from` that leads to `port` of 127.0.0.1 of `to`. */
  open(from: Host, to: Host, port: number): Promise<number> {
    const tunnel = this.#nextTunnel++;
    this.#targets.set(tunnel, { host: to, port });
    return from.listen(tunnel);
  }

  opened(host: Host, tunnel: number, stream: number): void {
    const target = this.#targets.get(tunnel);
    if (target === undefined || target.host.lost !== null) {
      host.send({ type: 'ended', stream });
      return;
    }
    const far: End = { host: target.host, stream: this.#nextStream-- };
    this.#join({ host, stream }, far);
    this.#join(far, { host, stream });
    far.host.send({ type: 'connect', stream: far.stream, port: target.port });
  }

  pass(host: Host, message: StreamMessage): void {
    const other = this.#others.get(host)?.get(message.stream);
    if (message.type === 'ended') this.#others.get(host)?.delete(message.stream);
    other?.host.send({ ...message, stream: other.stream });
  }

  /** Ends what led to a host that is gone. */
  lost(host: Host): void {
    for (const other of this.#others.get(host)?.values() ?? [])
      other.host.send({ type: 'ended', stream: other.stream });
    this.#others.delete(host);
  }

  #join(end: End, other: End): void {
    const streams = this.#others.get(end.host) ?? new Map<number, End>();
    this.#others.set(end.host, streams.set(end.stream, other));
  }
}
