// The agent of a host: one small process that starts the workers there and tells the controller what becomes of them.

import { readFileSync, statSync } from 'node:fs';
import type { StackKind, WorkerSpec } from '../controller/launcher';
import { createLocalLauncher, type LocalProcess } from '../controller/local_launcher';
import { Connection } from '../worker/connection';
import { HeartbeatMonitor } from '../worker/heartbeat';
import { hostFacts } from './facts';
import type { FromHost, HostFacts, ToHost } from './protocol';
import { Tunnels } from './tunnels';

export interface AgentOptions {
  /** host:port */
  controller: string;
  token: string;
  /** An interface, subnet or address; null: the address that reaches the controller. */
  network: string | null;
  /** Which of the hosts this is, where somebody has said so. */
  index: number | null;
  /** Default: local processes that run the built worker. */
  launcher?: typeof createLocalLauncher;
}

export interface AgentEnd {
  /** Whether the controller had taken it in. */
  welcomed: boolean;
  /** The code that the controller wants this process to end with; null: the connection was lost, or never made. */
  exitCode: number | null;
  reason: string;
}

/** Bytes. */
const MOST_PROBED = 100;
/** The only one that an agent's monitor watches. */
const CONTROLLER = 0;
/** Longer than the controller waits for a host: of a link that is cut for a while both ends give up, and this one last. */
const PATIENCE = 1.5;

export class HostAgent {
  /** Settles when the connection has ended; every worker has been killed by then. */
  readonly ended: Promise<AgentEnd>;
  readonly #options: AgentOptions;
  readonly #connection: Connection<ToHost, FromHost>;
  readonly #workers = new Map<number, LocalProcess>();
  readonly #tunnels: Tunnels;
  #heartbeat: NodeJS.Timeout | null = null;
  #monitor: HeartbeatMonitor | null = null;
  #exitCode: number | null = null;
  #facts: HostFacts | null = null;
  #launcher: ReturnType<typeof createLocalLauncher> | null = null;
  /** By id, in the order of `start`, for what a worker writes. */
  readonly #ids = new Map<WorkerSpec, number>();

  constructor(options: AgentOptions) {
    this.#options = options;
    this.#tunnels = new Tunnels((message) => this.#connection.send(message));
    let end!: (reason: string) => void;
    this.ended = new Promise<string>((resolve) => {
      end = resolve;
    }).then((reason) => this.#leave(reason));
    this.#connection = new Connection<ToHost, FromHost>({
      controller: options.controller,
      token: options.token,
      identity: 'host',
      hello: (from) => {
        this.#facts = hostFacts(from, options.network);
        return { type: 'hello', facts: this.#facts, index: options.index };
      },
      receive: (message) => this.#receive(message),
      active: () => this.#monitor?.heard(CONTROLLER),
      closed: end,
    });
  }

  /** Whether the controller has taken it in. */
  get welcomed(): boolean {
    return this.#monitor !== null;
  }

  /** Tells the controller of a signal, which decides what becomes of the run. */
  notice(signal: string): void {
    this.#connection.sendNow({ type: 'notice', signal });
  }

  #receive(message: ToHost): void {
    switch (message.type) {
      case 'welcome':
        this.#begin(message.heartbeatMs, message.deadTimeoutMs);
        break;
      case 'start':
        this.#start(message.id, message.spec);
        break;
      case 'signal':
        this.#workers.get(message.id)?.signal(message.signal);
        break;
      case 'stacks':
        void this.#stacks(message.id, message.kind);
        break;
      case 'probe':
        this.#connection.sendNow({
          type: 'probed',
          id: message.id,
          now: Date.now(),
          content: smallFile(message.file),
        });
        break;
      case 'listen':
        void this.#tunnels.listen(message.tunnel);
        break;
      case 'connect':
        this.#tunnels.connect(message.stream, message.port);
        break;
      case 'bytes':
      case 'ended':
        this.#tunnels.receive(message);
        break;
      case 'shutdown':
        this.#exitCode = message.exitCode;
        this.#connection.end();
        break;
      default: // a heartbeat has said all it has to say by coming
    }
  }

  #begin(heartbeatMs: number, deadTimeoutMs: number): void {
    this.#heartbeat = setInterval(() => {
      if (this.#connection.busy) return;
      const stopped = [...this.#workers].filter(([, worker]) => worker.stopped()).map(([id]) => id);
      this.#connection.sendNow({ type: 'heartbeat', stopped });
    }, heartbeatMs);
    const silentMs = deadTimeoutMs * PATIENCE;
    this.#monitor = new HeartbeatMonitor(silentMs, () =>
      this.#connection.drop(`the controller has sent nothing for ${silentMs / 1000} s`),
    );
    this.#monitor.watch(CONTROLLER);
  }

  #start(id: number, spec: WorkerSpec): void {
    try {
      const make = this.#options.launcher ?? createLocalLauncher;
      this.#launcher ??= make({ env: networkEnvironment(this.#facts) }, undefined, (of, line, isError) =>
        this.#connection.send({ type: 'line', id: this.#ids.get(of) as number, line, isError }),
      );
      this.#ids.set(spec, id);
      const worker = this.#launcher.start(spec);
      this.#workers.set(id, worker);
      this.#connection.send({ type: 'started', id, pid: worker.pid });
      void worker.exited.then((exit) => {
        this.#workers.delete(id);
        this.#ids.delete(spec);
        this.#connection.send({ type: 'exited', id, ...exit });
      });
    } catch (error) {
      this.#connection.send({ type: 'line', id, line: (error as Error).message, isError: true });
      this.#connection.send({ type: 'exited', id, exitCode: null, signal: null });
    }
  }

  async #stacks(id: number, kind: StackKind): Promise<void> {
    const text = (await this.#workers.get(id)?.stacks(kind)) ?? '';
    this.#connection.send({ type: 'stacks', id, kind, text });
  }

  async #leave(reason: string): Promise<AgentEnd> {
    if (this.#heartbeat !== null) clearInterval(this.#heartbeat);
    this.#monitor?.stop();
    this.#tunnels.close();
    const workers = [...this.#workers.values()];
    for (const worker of workers) worker.kill();
    await Promise.all(workers.map((worker) => worker.exited));
    return { welcomed: this.welcomed, exitCode: this.#exitCode, reason };
  }
}

/** Its first bytes; null where there is none. */
function smallFile(path: string): string | null {
  try {
    return statSync(path).size <= MOST_PROBED ? readFileSync(path, 'utf8') : null;
  } catch {
    return null;
  }
}

/** Which interface the libraries of the workers take among several, unless the environment says so already. */
function networkEnvironment(facts: HostFacts | null): Record<string, string> {
  if (facts?.interface == null) return {};
  const names = ['GLOO_SOCKET_IFNAME', 'NCCL_SOCKET_IFNAME'].filter((name) => !process.env[name]);
  return Object.fromEntries(names.map((name) => [name, facts.interface as string]));
}
