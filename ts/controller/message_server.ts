// A listening end of connections that carry messages, open to whoever has the token and to nobody else.
import type { AddressInfo, Socket } from 'node:net';
import { createServer, type Server, type TLSSocket } from 'node:tls';
import { TroupeError } from '../errors';
import { FrameReader, FrameWriter } from '../worker/frames';
import { HANDSHAKE_MS, hostPort, sharedKey, tlsOptions } from '../worker/transport';
import { RefusalLog } from './refusals';

/** Where to listen. */
export interface ListenPlace {
  /** An address of this machine. */
  address: string;
  /** First and last port to try; null: any that is free. */
  ports: readonly [number, number] | null;
}

/** One whole message each. */
export interface Message {
  type: string;
}

/** The other end of a connection. */
export interface Peer<Out> {
  /** Of the other end. */
  readonly address: string;
  /** Arrays are sent as they are when their turn comes. @throws DataCloneError for what cannot be sent */
  send(message: Out): void;
  /** Passes by what is being sent. */
  sendNow(message: Out): void;
  /** Whether something is on its way already. */
  readonly busy: boolean;
  /** Says why, and ends the connection. */
  refuse(reason: string): void;
  /** Ends it without a word. */
  drop(): void;
}

/** What is made of what a peer says. */
export interface Conversation<In> {
  receive(message: In): void;
  /** The arrays of a message that lands are about to come: says where to. */
  landing?(message: In): void;
  /** Something came, perhaps only a part of a message. */
  active(): void;
  /** The last call. `fault`: what came that should not have come; null: the stream has ended. */
  end(fault: string | null): void;
}

export interface MessageServerOptions<In, Out> {
  token: string;
  place: ListenPlace;
  /** Whose connections they are, in lines about refused ones: 'worker'. */
  whose: string;
  log: (line: string) => void;
  open(peer: Peer<Out>): Conversation<In>;
}

const NO_TOKEN = 'it did not present the token of this run';
const ANY_PORT: readonly [number, number] = [0, 0];

export class MessageServer<In extends Message, Out extends Message> {
  readonly #options: MessageServerOptions<In, Out>;
  readonly #server: Server;
  readonly #refusals: RefusalLog;
  /** Whether they are known yet or not. */
  readonly #sockets = new Set<Socket>();

  /** @throws TroupeError COMM when the address or every port is taken */
  static async listen<In extends Message, Out extends Message>(
    options: MessageServerOptions<In, Out>,
  ): Promise<MessageServer<In, Out>> {
    const server = new MessageServer(options);
    await server.#bind();
    return server;
  }

  private constructor(options: MessageServerOptions<In, Out>) {
    this.#options = options;
    this.#refusals = new RefusalLog(options.log, options.whose);
    const key = sharedKey(options.token);
    this.#server = createServer(
      { ...tlsOptions, dhparam: 'auto', pskCallback: () => key, handshakeTimeout: HANDSHAKE_MS },
      (socket) => this.#attach(socket),
    );
    this.#server.on('connection', (socket: Socket) => {
      this.#sockets.add(socket);
      socket.on('error', () => {}); // 'close' follows
      socket.on('close', () => this.#sockets.delete(socket));
    });
    this.#server.on('tlsClientError', (_error, socket) => {
      this.#refusals.add(peerOf(socket), NO_TOKEN);
      socket.destroy();
    });
  }

  get port(): number {
    return (this.#server.address() as AddressInfo).port;
  }

  /** host:port, or [host]:port. */
  get address(): string {
    return hostPort(this.#options.place.address, this.port);
  }

  /** Drops every connection at once. */
  close(): void {
    this.#refusals.flush();
    this.#server.close();
    for (const socket of this.#sockets) socket.destroy();
  }

  async #bind(): Promise<void> {
    const { address, ports } = this.#options.place;
    const [first, last] = ports ?? ANY_PORT;
    for (let port = first; ; port++) {
      try {
        await this.#listenOn(address, port);
        return;
      } catch (error) {
        const { code, message } = error as NodeJS.ErrnoException;
        if (code === 'EADDRINUSE' && port < last) continue;
        const where = ports === null ? address : `${address}, ports ${first}-${last}`;
        throw new TroupeError('COMM', `cannot listen on ${where}: ${message}`, { cause: error });
      }
    }
  }

  #listenOn(host: string, port: number): Promise<void> {
    return new Promise((resolve, reject) => {
      this.#server.once('error', reject);
      this.#server.listen(port, host, () => {
        this.#server.off('error', reject);
        resolve();
      });
    });
  }

  /** The other end has the token, or the handshake would have failed. */
  #attach(socket: TLSSocket): void {
    socket.setNoDelay(true);
    const reader = new FrameReader<In>((message) => conversation.landing?.(message));
    const writer = new FrameWriter<Out>(socket);
    let done = false;
    const peer: Peer<Out> = {
      address: peerOf(socket),
      send: (message) => writer.send(message),
      sendNow: (message) => writer.sendNow(message),
      get busy() {
        return writer.busy;
      },
      refuse: (reason) => {
        done = true;
        this.#refusals.add(peerOf(socket), reason);
        writer.send({ type: 'refused', reason } as unknown as Out);
        writer.end();
      },
      drop: () => socket.destroy(),
    };
    const conversation = this.#options.open(peer);
    const leave = (fault: string | null): void => {
      if (done) return;
      done = true;
      conversation.end(fault);
    };
    socket.on('error', () => {}); // 'close' follows
    socket.on('close', () => leave(null));
    socket.on('end', () => leave(null));
    socket.on('data', (bytes: Buffer) => {
      if (done) return;
      let messages: In[];
      try {
        messages = reader.push(bytes);
      } catch (error) {
        leave(`it sent what is no message: ${(error as Error).message}`);
        socket.destroySoon();
        return;
      }
      conversation.active();
      for (const message of messages) if (!done) conversation.receive(message);
    });
  }
}

const peerOf = ({ remoteAddress, remotePort }: Socket): string =>
  remoteAddress === undefined ? 'a peer that has gone' : hostPort(remoteAddress, remotePort as number);
