import type { ControllerMessage, WorkerMessage } from '../worker/protocol';
import { type Conversation, type ListenPlace, MessageServer, type Peer } from './message_server';

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
  /** Default: a free port of 127.0.0.1. */
  place?: ListenPlace;
  /** Each worker hears something this often. */
  heartbeatMs: number;
  /** Receives lines about refused connections. */
  log: (line: string) => void;
  onConnect: (connection: WorkerConnection) => void;
  onMessage: (rank: number, message: WorkerMessage) => void;
  /** The arrays of a message that lands are about to come. */
  onLanding: (rank: number, message: WorkerMessage) => void;
  /** Something came, perhaps only a part of a message. */
  onActivity: (rank: number) => void;
  /** The stream has ended, whoever ended it. `fault`: what came that should not have come; null: nothing. */
  onDisconnect: (rank: number, fault: string | null) => void;
}

const LOOPBACK: ListenPlace = { address: '127.0.0.1', ports: null };

/** Listens for the workers of one group, and for nobody else. */
export class ControllerServer {
  readonly #options: ControllerServerOptions;
  readonly #connected = new Map<number, Peer<ControllerMessage>>();
  readonly #heartbeat: NodeJS.Timeout;
  #server!: MessageServer<WorkerMessage, ControllerMessage>;

  /** @throws TroupeError COMM when there is no port */
  static async listen(options: ControllerServerOptions): Promise<ControllerServer> {
    const controller = new ControllerServer(options);
    try {
      controller.#server = await MessageServer.listen({
        token: options.token,
        place: options.place ?? LOOPBACK,
        whose: 'worker',
        log: options.log,
        open: (peer) => controller.#converse(peer),
      });
    } catch (error) {
      clearInterval(controller.#heartbeat);
      throw error;
    }
    return controller;
  }

  private constructor(options: ControllerServerOptions) {
    this.#options = options;
    this.#heartbeat = setInterval(() => {
      for (const peer of this.#connected.values()) if (!peer.busy) peer.sendNow({ type: 'heartbeat' });
    }, options.heartbeatMs);
  }

  /** host:port for TROUPE_CONTROLLER. */
  get address(): string {
    return this.#server.address;
  }

  /** Drops every connection at once. */
  close(): void {
    clearInterval(this.#heartbeat);
    this.#server.close();
  }

  #converse(peer: Peer<ControllerMessage>): Conversation<WorkerMessage> {
    let rank: number | null = null;
    return {
      receive: (message) => {
        if (rank === null) rank = this.#greet(peer, message);
        else this.#options.onMessage(rank, message);
      },
      landing: (message) => {
        if (rank !== null) this.#options.onLanding(rank, message);
      },
      active: () => {
        if (rank !== null) this.#options.onActivity(rank);
      },
      end: (fault) => {
        if (rank === null) {
          if (fault !== null) peer.refuse(fault);
        } else if (this.#connected.delete(rank)) this.#options.onDisconnect(rank, fault);
      },
    };
  }

  /** The rank of a worker that is welcome. */
  #greet(peer: Peer<ControllerMessage>, message: WorkerMessage): number | null {
    const { worldSize } = this.#options;
    const refuse = (reason: string): null => {
      peer.refuse(reason);
      return null;
    };
    if (message.type !== 'hello') return refuse(`its first message was '${message.type}', not 'hello'`);
    const { rank } = message;
    if (!Number.isInteger(rank) || rank < 0 || rank >= worldSize)
      return refuse(`it claims rank ${rank} of a group of ${worldSize}`);
    if (this.#connected.has(rank)) return refuse(`rank ${rank} is connected already`);
    this.#connected.set(rank, peer);
    this.#options.onConnect({
      rank,
      send: (reply) => peer.send(reply),
      sendNow: (reply) => peer.sendNow(reply),
    });
    return rank;
  }
}
