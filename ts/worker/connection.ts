// The dialling end of a connection to a controller: a worker's, and that of the agent of a host.
import { connect, type TLSSocket } from 'node:tls';
import { FrameReader, FrameWriter } from './frames';
import { HANDSHAKE_MS, plainAddress, sharedKey, tlsOptions } from './transport';

export interface ConnectionOptions<In, Out> {
  /** host:port */
  controller: string;
  token: string;
  /** Who dials, for the other end's eyes. */
  identity: string;
  /** The first message, sent once both ends have shown that they have the token. `from`: address that reaches the controller. What it throws ends the connection. */
  hello(from: string): Out;
  receive(message: In): void;
  /** Something came, perhaps only a part of a message. */
  active(): void;
  /** The last call. */
  closed(reason: string): void;
  /** How long the other end may take with each part of the handshake, and with its first answer; milliseconds, default 10 s. */
  answerMs?: number;
}

export class Connection<In extends { type: string }, Out> {
  readonly #options: ConnectionOptions<In, Out>;
  readonly #socket: TLSSocket;
  readonly #writer: FrameWriter<Out>;
  readonly #reader = new FrameReader<In>();
  /** Why it ends, where that is known. */
  #ending = '';

  constructor(options: ConnectionOptions<In, Out>) {
    this.#options = options;
    this.#socket = this.#dial();
    this.#writer = new FrameWriter(this.#socket);
  }

  send(message: Out): void {
    this.#writer.send(message);
  }

  /** Passes by what is being sent. */
  sendNow(message: Out): void {
    this.#writer.sendNow(message);
  }

  /** Whether something is on its way already. */
  get busy(): boolean {
    return this.#writer.busy;
  }

  /** Ends behind what has been sent. */
  end(): void {
    this.#writer.end();
  }

  /** Ends at once. */
  drop(reason: string): void {
    this.#socket.destroy(new Error(reason));
  }

  #dial(): TLSSocket {
    const { controller, token, identity, hello, active, closed, answerMs = HANDSHAKE_MS } = this.#options;
    const { hostname, port } = new URL(`tls://${controller}`);
    const socket = connect({
      ...tlsOptions,
      host: hostname.replace(/^\[(.*)\]$/, '$1'),
      port: Number(port),
      pskCallback: () => ({ psk: sharedKey(token), identity }),
      // The key says who it is: there is no certificate.
      checkServerIdentity: () => undefined,
    });
    socket.setNoDelay(true);
    socket.setTimeout(answerMs, () => socket.destroy(new Error('no answer')));
    socket.on('secureConnect', () => {
      try {
        this.#writer.send(hello(plainAddress(socket.localAddress as string)));
      } catch (error) {
        socket.destroy(error as Error);
      }
    });
    socket.on('error', (error: NodeJS.ErrnoException) => {
      this.#ending ||= error.code?.startsWith('ERR_SSL')
        ? `refused: it did not present the token of this run (${error.code})`
        : error.message;
    });
    socket.on('close', () => closed(this.#ending || 'it closed the connection'));
    // From then on its silence is its user's matter.
    socket.once('data', () => socket.setTimeout(0));
    socket.on('data', (bytes: Buffer) => {
      active();
      for (const message of this.#read(bytes)) this.#receive(message);
    });
    return socket;
  }

  #receive(message: In): void {
    if (message.type === 'refused')
      this.#ending = `refused: ${(message as unknown as { reason: string }).reason}`;
    else this.#options.receive(message);
  }

  #read(bytes: Buffer): In[] {
    try {
      return this.#reader.push(bytes);
    } catch (error) {
      this.#socket.destroy(new Error(`what came is no message: ${(error as Error).message}`));
      return [];
    }
  }
}
