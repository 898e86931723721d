import { createHash, timingSafeEqual } from 'node:crypto';
import { Server, ServerCredentials, type ServerDuplexStream, status } from '@grpc/grpc-js';
import type { ControllerMessage, WorkerMessage } from '../worker/protocol';
import { attachMethod, channelOptions, encodeMessage, MessageDecoder } from '../worker/transport';

/** The stream of one worker that has shown the token and said its rank. */
export interface WorkerConnection {
  readonly rank: number;
  send(message: ControllerMessage): void;
}

export interface ControllerServerOptions {
  worldSize: number;
  token: string;
  /** Receives one line per refused connection. */
  log: (line: string) => void;
  onConnect: (connection: WorkerConnection) => void;
  onMessage: (rank: number, message: WorkerMessage) => void;
  /** Something came, perhaps only a part of a message. */
  onActivity: (rank: number) => void;
  /** The stream has ended, whoever ended it. */
  onDisconnect: (rank: number) => void;
}

type Stream = ServerDuplexStream<Buffer, Buffer>;

/** Listens on a free port of 127.0.0.1 for the workers of one group, and for nobody else. */
export class ControllerServer {
  readonly #options: ControllerServerOptions;
  readonly #server = new Server(channelOptions);
  readonly #connected = new Set<number>();
  #address = '';

  static async listen(options: ControllerServerOptions): Promise<ControllerServer> {
    const controller = new ControllerServer(options);
    await controller.#bind();
    return controller;
  }

  private constructor(options: ControllerServerOptions) {
    this.#options = options;
    this.#server.addService({ attach: attachMethod }, { attach: (stream: Stream) => this.#attach(stream) });
  }

  /** host:port for TROUPE_CONTROLLER. */
  get address(): string {
    return this.#address;
  }

  /** Drops every connection at once. */
  close(): void {
    this.#server.forceShutdown();
  }

  #bind(): Promise<void> {
    return new Promise((resolve, reject) => {
      this.#server.bindAsync('127.0.0.1:0', ServerCredentials.createInsecure(), (error, port) => {
        if (error) {
          reject(error);
          return;
        }
        this.#address = `127.0.0.1:${port}`;
        resolve();
      });
    });
  }

  #attach(stream: Stream): void {
    stream.on('error', () => {}); // 'end' or 'cancelled' follows
    const shown = String(stream.metadata.get('authorization')[0] ?? '');
    if (!equalInConstantTime(shown, `Bearer ${this.#options.token}`)) {
      this.#refuse(stream, status.UNAUTHENTICATED, 'it did not present the token of this run');
      return;
    }
    const decoder = new MessageDecoder<WorkerMessage>();
    let rank: number | null = null;
    stream.on('data', (frame: Buffer) => {
      const message = decoder.push(frame);
      if (rank !== null) this.#options.onActivity(rank);
      if (message === null) return;
      if (rank !== null) this.#options.onMessage(rank, message);
      else rank = this.#greet(stream, message);
    });
    const leave = (): void => {
      if (rank !== null && this.#connected.delete(rank)) this.#options.onDisconnect(rank);
      stream.end();
    };
    stream.on('end', leave);
    stream.on('cancelled', leave);
  }

  /** The rank of a worker that is welcome. */
  #greet(stream: Stream, message: WorkerMessage): number | null {
    const { worldSize } = this.#options;
    if (message.type !== 'hello') {
      this.#refuse(stream, status.INVALID_ARGUMENT, `its first message was '${message.type}', not 'hello'`);
      return null;
    }
    const { rank } = message;
    if (!Number.isInteger(rank) || rank < 0 || rank >= worldSize) {
      this.#refuse(stream, status.INVALID_ARGUMENT, `it claims rank ${rank} of a group of ${worldSize}`);
      return null;
    }
    if (this.#connected.has(rank)) {
      this.#refuse(stream, status.ALREADY_EXISTS, `rank ${rank} is connected already`);
      return null;
    }
    this.#connected.add(rank);
    this.#options.onConnect({
      rank,
      send: (reply) => {
        for (const frame of encodeMessage(reply)) stream.write(frame);
      },
    });
    return rank;
  }

  #refuse(stream: Stream, code: status, reason: string): void {
    this.#options.log(`refused a worker connection from ${stream.getPeer()}: ${reason}`);
    stream.emit('error', { code, details: `refused: ${reason}` });
  }
}

/** Compares digests, so that neither the content nor the length of a guess shows in the time. */
function equalInConstantTime(a: string, b: string): boolean {
  const digest = (text: string): Buffer => createHash('sha256').update(text).digest();
  return timingSafeEqual(digest(a), digest(b));
}
