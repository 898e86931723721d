import type { AddressInfo, Socket } from 'node:net';
import { createServer, type Server, type TLSSocket } from 'node:tls';
import { FrameReader, FrameWriter } from '../worker/frames';
import type { ControllerMessage, WorkerMessage } from '../worker/protocol';
import { HANDSHAKE_MS, sharedKey, tlsOptions } from '../worker/transport';
import { RefusalLog } from './refusals';

/** The stream of one worker that has shown the token and said its rank. */
export interface WorkerConnection {
  readonly rank: number;
  /** Arrays are sent as they are when their turn comes. @throws DataCloneError for what cannot be sent */
  send(message: ControllerMessage): void;
  /** Passes by what is being sent. */
  sendNow(message: ControllerMessage): void;
}

export interface ControllerServerOptions {
  worldSize: number;
  token: string;
  /** Each worker hears something this often. */
  heartbeatMs: number;
  /** Receives lines about refused connections. */
  log: (line: string) => void;
  onConnect: (connection: WorkerConnection) => void;
  onMessage: (rank: number, message: WorkerMessage) => void;
  /** Something came, perhaps only a part of a message. */
  onActivity: (rank: number) => void;
  /** The stream has ended, whoever ended it. `fault`: what came that should not have come; null: nothing. */
  onDisconnect: (rank: number, fault: string | null) => void;
}

const NO_TOKEN = 'it did not present the token of this run';

/** Listens on a free port of 127.0.0.1 for the workers of one group, and for nobody else. */
export class ControllerServer {
  readonly #options: ControllerServerOptions;
  readonly #server: Server;
  readonly #refusals: RefusalLog;
  /** Whether they are known yet or not. */
  readonly #sockets = new Set<Socket>();
  readonly #connected = new Map<number, FrameWriter<ControllerMessage>>();
  readonly #heartbeat: NodeJS.Timeout;

  static async listen(options: ControllerServerOptions): Promise<ControllerServer> {
    const controller = new ControllerServer(options);
    await controller.#bind();
    return controller;
  }

  private constructor(options: ControllerServerOptions) {
    this.#options = options;
    this.#refusals = new RefusalLog(options.log);
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
    this.#heartbeat = setInterval(() => {
      for (const writer of this.#connected.values()) if (!writer.busy) writer.sendNow({ type: 'heartbeat' });
    }, options.heartbeatMs);
  }

  /** host:port for TROUPE_CONTROLLER. */
  get address(): string {
    return `127.0.0.1:${(this.#server.address() as AddressInfo).port}`;
  }

  /** Drops every connection at once. */
  close(): void {
    clearInterval(this.#heartbeat);
    this.#refusals.flush();
    this.#server.close();
    for (const socket of this.#sockets) socket.destroy();
  }

  #bind(): Promise<void> {
    return new Promise((resolve, reject) => {
      this.#server.once('error', reject);
      this.#server.listen(0, '127.0.0.1', () => {
        this.#server.off('error', reject);
        resolve();
      });
    });
  }

  /** The other end has the token, or the handshake would have failed. */
  #attach(socket: TLSSocket): void {
    socket.setNoDelay(true);
    const reader = new FrameReader<WorkerMessage>();
    const writer = new FrameWriter<ControllerMessage>(socket);
    let rank: number | null = null;
    let done = false;
    const leave = (fault: string | null): void => {
      if (!done && rank !== null && this.#connected.delete(rank)) this.#options.onDisconnect(rank, fault);
      done = true;
    };
    socket.on('error', () => {}); // 'close' follows
    socket.on('close', () => leave(null));
    socket.on('end', () => leave(null));
    socket.on('data', (bytes: Buffer) => {
      if (done) return;
      let messages: WorkerMessage[];
      try {
        messages = reader.push(bytes);
      } catch (error) {
        const fault = `it sent what is no message: ${(error as Error).message}`;
        if (rank === null) this.#refuse(socket, writer, fault);
        leave(fault);
        done = true;
        socket.destroySoon();
        return;
      }
      if (rank !== null) this.#options.onActivity(rank);
      for (const message of messages) {
        if (done) return;
        if (rank !== null) this.#options.onMessage(rank, message);
        else {
          rank = this.#greet(socket, writer, message);
          done = rank === null;
        }
      }
    });
  }

  /** The rank of a worker that is welcome. */
  #greet(socket: TLSSocket, writer: FrameWriter<ControllerMessage>, message: WorkerMessage): number | null {
    const { worldSize } = this.#options;
    const refuse = (reason: string): null => this.#refuse(socket, writer, reason);
    if (message.type !== 'hello') return refuse(`its first message was '${message.type}', not 'hello'`);
    const { rank } = message;
    if (!Number.isInteger(rank) || rank < 0 || rank >= worldSize)
      return refuse(`it claims rank ${rank} of a group of ${worldSize}`);
    if (this.#connected.has(rank)) return refuse(`rank ${rank} is connected already`);
    this.#connected.set(rank, writer);
    this.#options.onConnect({
      rank,
      send: (reply) => writer.send(reply),
      sendNow: (reply) => writer.sendNow(reply),
    });
    return rank;
  }

  #refuse(socket: TLSSocket, writer: FrameWriter<ControllerMessage>, reason: string): null {
    this.#refusals.add(peerOf(socket), reason);
    writer.send({ type: 'refused', reason });
    writer.end();
    return null;
  }
}

const peerOf = ({ remoteAddress, remotePort }: Socket): string =>
  remoteAddress === undefined ? 'a peer that has gone' : `${remoteAddress}:${remotePort}`;
