import { Client, type ClientDuplexStream, credentials, Metadata, type StatusObject } from '@grpc/grpc-js';
import { TroupeError } from '../errors';
import type { NativeBinding } from '../native/bridge';
import { EngineHost } from './engine_host';
import { type ControllerMessage, toWireError, type WorkerMessage, type WorkRequest } from './protocol';
import { attachMethod, channelOptions, encodeMessage, MessageDecoder } from './transport';

/** What a launcher tells a worker, in environment variables. */
export interface WorkerSettings {
  controller: string; // host:port
  token: string;
  rank: number;
  worldSize: number;
  /** The process to live and die with; null when the launcher is not the parent (another host). */
  parentPid: number | null;
}

const parentCheckMs = 500;
/** How long the controller may take to close its end of a stream that we have ended. */
const farewellMs = 2_000;

/** Reads TROUPE_CONTROLLER, TROUPE_TOKEN, RANK, WORLD_SIZE and, from local launchers, TROUPE_PARENT_PID. */
export function readWorkerSettings(env: NodeJS.ProcessEnv): WorkerSettings {
  const text = (name: string): string => {
    const value = env[name];
    if (value) return value;
    throw new TroupeError(
      'INVALID_ARGUMENT',
      `the environment variable ${name} is not set: a worker is started by a launcher of Troupe, not by hand`,
    );
  };
  const count = (name: string): number => {
    const value = Number(text(name));
    if (Number.isInteger(value) && value >= 0) return value;
    throw new TroupeError('INVALID_ARGUMENT', `${name}: expected an integer >= 0, got '${text(name)}'`);
  };
  return {
    controller: text('TROUPE_CONTROLLER'),
    token: text('TROUPE_TOKEN'),
    rank: count('RANK'),
    worldSize: count('WORLD_SIZE'),
    parentPid: env.TROUPE_PARENT_PID ? count('TROUPE_PARENT_PID') : null,
  };
}

/**
 * One worker process: dials the controller, loads the native addon when welcomed, serves requests in
 * the order they come, and ends with the controller. Nothing in it outlives the process.
 */
export class Worker {
  readonly #settings: WorkerSettings;
  readonly #loadBinding: () => NativeBinding;
  readonly #stream: ClientDuplexStream<Buffer, Buffer>;
  readonly #decoder = new MessageDecoder<ControllerMessage>();
  #host: EngineHost | null = null;
  #queue: Promise<void> = Promise.resolve();
  /** Set once this process has decided to end by itself. */
  #exitCode: number | null = null;

  constructor(settings: WorkerSettings, loadBinding: () => NativeBinding) {
    this.#settings = settings;
    this.#loadBinding = loadBinding;
    const metadata = new Metadata();
    metadata.set('authorization', `Bearer ${settings.token}`);
    const client = new Client(settings.controller, credentials.createInsecure(), channelOptions);
    const { path, requestSerialize, responseDeserialize } = attachMethod;
    this.#stream = client.makeBidiStreamRequest(path, requestSerialize, responseDeserialize, metadata);
    this.#stream.on('data', (frame: Buffer) => {
      const message = this.#decoder.push(frame);
      if (message !== null) this.#receive(message);
    });
    this.#stream.on('error', () => {}); // the status that follows says the same
    this.#stream.on('status', (status: StatusObject) => {
      this.#die(`the connection to the controller ended (${status.details || `status ${status.code}`})`);
    });
    this.#send({ type: 'hello', rank: settings.rank, pid: process.pid });
    this.#watchParent();
  }

  #receive(message: ControllerMessage): void {
    switch (message.type) {
      case 'welcome':
        this.#start(message.heartbeatMs);
        break;
      case 'abort':
        this.#host?.abort(message.reason);
        break;
      case 'shutdown':
        this.#queue = this.#queue.then(() => this.#shutdown());
        break;
      default:
        this.#queue = this.#queue.then(() => this.#answer(message));
    }
  }

  #start(heartbeatMs: number): void {
    try {
      const binding = this.#loadBinding();
      // Faster, and it takes more memory: docs/planning.md.
      if (!process.env.TROUPE_RETURN_FREED_MEMORY) binding.keepFreedMemory();
      this.#host = new EngineHost(binding);
      this.#send({ type: 'ready', buildInfo: binding.buildInfo() });
    } catch (error) {
      this.#send({ type: 'error', requestId: null, error: toWireError(error) });
      this.#leave(1);
      return;
    }
    // Engine work runs on a thread of the addon, so this timer ticks whatever the engine does.
    setInterval(() => this.#send({ type: 'heartbeat' }), heartbeatMs);
  }

  async #answer(request: WorkRequest): Promise<void> {
    const { requestId } = request;
    try {
      if (this.#host === null)
        throw new TroupeError('INTERNAL', 'a request came before the worker was ready');
      const value = await this.#host.serve(request);
      this.#send({ type: 'result', requestId, value });
    } catch (error) {
      this.#send({ type: 'error', requestId, error: toWireError(error) });
    }
  }

  async #shutdown(): Promise<void> {
    await this.#host?.close();
    this.#leave(0);
  }

  /** Everything sent so far is delivered first: the controller answers by closing its end. */
  #leave(exitCode: number): void {
    this.#exitCode = exitCode;
    this.#stream.end();
    setTimeout(() => process.exit(exitCode), farewellMs);
  }

  #send(message: WorkerMessage): void {
    for (const frame of encodeMessage(message)) this.#stream.write(frame);
  }

  #watchParent(): void {
    const { parentPid } = this.#settings;
    if (parentPid === null) return;
    setInterval(() => {
      if (process.ppid !== parentPid)
        this.#die(`the process that started this worker (${parentPid}) is gone`);
    }, parentCheckMs);
  }

  /**
   * Ends this process at once. process.exit() would wait for the engine thread, which may be deep in a
   * computation whose result nobody will read.
   */
  #die(reason: string): void {
    if (this.#exitCode !== null) process.exit(this.#exitCode);
    process.stderr.write(`troupe worker rank ${this.#settings.rank}: ${reason}\n`);
    if (this.#host === null) process.exit(1);
    process.kill(process.pid, 'SIGKILL');
  }
}

/** Runs this process as a worker until its controller is done with it. */
export function runWorker(env: NodeJS.ProcessEnv, loadBinding: () => NativeBinding): Worker {
  // Ctrl-C reaches every process of the terminal; the controller decides when workers stop.
  process.on('SIGINT', () => {});
  // The pipes may break before the stream does.
  process.stdout.on('error', () => {});
  process.stderr.on('error', () => {});
  const settings = readWorkerSettings(env);
  process.title = `troupe worker ${settings.rank}/${settings.worldSize}`;
  return new Worker(settings, loadBinding);
}
