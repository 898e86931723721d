// Connections between ports of 127.0.0.1 on two hosts, carried by the connection to the controller. So what meets there needs no port that
// others can reach, and is as private as the rest.
import { once } from 'node:events';
import { type AddressInfo, connect, createServer, type Server, type Socket } from 'node:net';
import type { FromHost, StreamMessage } from './protocol';

/** One end of them: the host's. */
export class Tunnels {
  readonly #send: (message: FromHost) => void;
  readonly #servers: Server[] = [];
  /** By number: ours count up from 1, those that the controller opens down from -1. */
  readonly #streams = new Map<number, Socket>();
  #next = 1;

  constructor(send: (message: FromHost) => void) {
    this.#send = send;
  }

  /** Opens a port whose connections go through `tunnel`. */
  async listen(tunnel: number): Promise<void> {
    const server = createServer({ allowHalfOpen: true }, (socket) => {
      const stream = this.#next++;
      this.#send({ type: 'opened', tunnel, stream });
      this.#carry(stream, socket);
    });
    this.#servers.push(server);
    server.listen(0, '127.0.0.1');
    await once(server, 'listening');
    this.#send({ type: 'listening', tunnel, port: (server.address() as AddressInfo).port });
  }

  /** The far end of a stream: a connection to a port of this host. */
  connect(stream: number, port: number): void {
    this.#carry(stream, connect({ port, host: '127.0.0.1', allowHalfOpen: true }));
  }

  receive(message: StreamMessage): void {
    const socket = this.#streams.get(message.stream);
    if (message.type === 'bytes') socket?.write(message.bytes);
    else socket?.end();
  }

  close(): void {
    for (const server of this.#servers) server.close();
    for (const socket of this.#streams.values()) socket.destroy();
  }

  #carry(stream: number, socket: Socket): void {
    this.#streams.set(stream, socket);
    socket.setNoDelay(true);
    socket.on('data', (bytes: Buffer) => this.#send({ type: 'bytes', stream, bytes: new Uint8Array(bytes) }));
    socket.on('error', () => {}); // 'close' follows
    socket.on('end', () => this.#send({ type: 'ended', stream }));
    socket.on('close', () => {
      if (this.#streams.delete(stream)) this.#send({ type: 'ended', stream });
    });
  }
}
