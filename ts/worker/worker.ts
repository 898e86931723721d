import { TroupeError } from '../errors';
import type { NativeBinding } from '../native/bridge';
import { BusyTime } from './busy_time';
import { Connection } from './connection';
import { EngineHost } from './engine_host';
import { HeartbeatMonitor } from './heartbeat';
import { type ControllerMessage, toWireError, type WorkerMessage, type WorkRequest } from './protocol';

/** What a launcher tells a worker, in environment variables. */
export interface WorkerSettings {
  controller: string; // host:port
  token: string;
  rank: number;
  worldSize: number;
  /** The process to live and die with; null when the launcher is not the parent (another host). */
  parentPid: number | null;
  /** Of its process. */
  title: string;
}

const parentCheckMs = 500;
/** A controller that computes for long sends nothing meanwhile: with a heartbeat per second, for a minute. */
const SILENT_HEARTBEATS = 60;
/** The only one that a worker's monitor watches. */
const CONTROLLER = 0;
/** How long the controller may take to close its end of a stream that we have ended. */
const farewellMs = 2_000;

/** Reads TROUPE_CONTROLLER, TROUPE_TOKEN, RANK, WORLD_SIZE and, where they are set, TROUPE_PARENT_PID and TROUPE_TITLE. */
function readWorkerSettings(env: NodeJS.ProcessEnv): WorkerSettings {
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
  const [rank, worldSize] = [count('RANK'), count('WORLD_SIZE')];
  return {
    controller: text('TROUPE_CONTROLLER'),
    token: text('TROUPE_TOKEN'),
    rank,
    worldSize,
    title: env.TROUPE_TITLE || `troupe worker ${rank}/${worldSize}`,
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
  readonly #connection: Connection<ControllerMessage, WorkerMessage>;
  #host: EngineHost | null = null;
  readonly #busy = new BusyTime();
  #monitor: HeartbeatMonitor | null = null;
  #queue: Promise<void> = Promise.resolve();
  /** Set once this process has decided to end by itself. */
  #exitCode: number | null = null;

  constructor(settings: WorkerSettings, loadBinding: () => NativeBinding) {
    this.#settings = settings;
    this.#loadBinding = loadBinding;
    const { controller, token, rank } = settings;
    this.#connection = new Connection({
      controller,
      token,
      identity: `rank ${rank}`,
      hello: () => ({ type: 'hello', rank, pid: process.pid }),
      receive: (message) => this.#receive(message),
      active: () => this.#monitor?.heard(CONTROLLER),
      closed: (reason) => this.#die(`the connection to the controller ended (${reason})`),
    });
    this.#watchParent();
  }

  #receive(message: ControllerMessage): void {
    switch (message.type) {
      case 'welcome':
        this.#start(message.heartbeatMs);
        break;
      case 'refused': // the connection keeps its reason
      case 'heartbeat': // has said all it has to say by coming
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
    setInterval(() => {
      // What is on its way says the same.
      if (!this.#connection.busy) this.#connection.sendNow({ type: 'heartbeat' });
    }, heartbeatMs);
    this.#watchController(heartbeatMs);
  }

  async #answer(request: WorkRequest): Promise<void> {
    const { requestId } = request;
    try {
      if (this.#host === null)
        throw new TroupeError('INTERNAL', 'a request came before the worker was ready');
      const value = await this.#host.serve(request);
      const lands = request.type === 'callEngine' && request.answerLands === true;
      const busyMs = this.#busy.take();
      const more = {
        ...(lands ? { lands: true as const } : {}),
        ...(busyMs === undefined ? {} : { busyMs }),
      };
      this.#send({ type: 'result', requestId, value, ...more });
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
    this.#connection.end();
    setTimeout(() => process.exit(exitCode), farewellMs);
  }

  #send(message: WorkerMessage): void {
    this.#connection.send(message);
  }

  /**
   * Far from its controller, silence is how a worker learns that it is gone. Beside it the process itself says so, and may be silent
   * for as long as it likes: stopped by Ctrl-Z, say.
   */
  #watchController(heartbeatMs: number): void {
    if (this.#settings.parentPid !== null) return;
    const silentMs = heartbeatMs * SILENT_HEARTBEATS;
    this.#monitor = new HeartbeatMonitor(silentMs, () =>
      this.#die(`the controller has sent nothing for ${silentMs / 1000} s`),
    );
    this.#monitor.watch(CONTROLLER);
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
  // Ctrl-C reaches every process of the terminal, and a scheduler's TERM every process of a job; the controller decides when
  // workers stop.
  for (const signal of ['SIGINT', 'SIGTERM', 'SIGUSR2', 'SIGHUP'] as const) process.on(signal, () => {});
  // The pipes may break before the stream does.
  process.stdout.on('error', () => {});
  process.stderr.on('error', () => {});
  const settings = readWorkerSettings(env);
  process.title = settings.title;
  return new Worker(settings, loadBinding);
}
