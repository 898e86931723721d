// A server that is there, or one that we start and stop.
import type { ChildProcess } from 'node:child_process';
import { closeSync, fstatSync, openSync, readSync } from 'node:fs';
import { createServer } from 'node:net';
import path from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { type GroupGuard, signalGroup } from '../../base/group_guard';
import { makeDirectories } from '../../base/make_directories';
import { printable } from '../../base/printable';
import { limited } from '../../base/timers';
import { ServerClient } from './server_client';
import type { LaunchOptions, ServerProtocol } from './server_protocol';

const POLL_MS = 500;
/** One question about its health may take so long. */
const HEALTH_MS = 30_000;
/** After SIGTERM it has so long before SIGKILL. */
const STOP_MS = 15_000;
/** Of its log, in an error. */
const SHOWN = 2000;
/** What servers say of a port that is another program's, which may be so by the time they ask for it. */
const TAKEN = /EADDRINUSE|address already in use/i;
const MOST_STARTS = 3;

export interface InferenceServer {
  /** Of the process that runs now. */
  readonly client: ServerClient;
  /** Resolves once it answers; one of ours is started with the weights of `directory` when it does not run. */
  ready(directory: string | null, signal: AbortSignal): Promise<void>;
  /** Ends one of ours. */
  close(): Promise<void>;
}

/** @throws what it said last, or that it said nothing, when `signal` comes */
async function healthy(protocol: ServerProtocol, client: ServerClient, signal: AbortSignal): Promise<void> {
  let last = new Error('it has not answered');
  for (;;) {
    try {
      await protocol.health(client, limited(signal, HEALTH_MS));
      return;
    } catch (error) {
      if (signal.aborted) throw last;
      last = error as Error;
    }
    await sleep(POLL_MS, undefined, { signal }).catch(() => {
      throw last;
    });
  }
}

export class GivenServer implements InferenceServer {
  readonly client: ServerClient;

  constructor(
    private readonly protocol: ServerProtocol,
    url: string,
    apiKey: string | null,
  ) {
    this.client = new ServerClient(url, apiKey);
  }

  ready(_directory: string | null, signal: AbortSignal): Promise<void> {
    return healthy(this.protocol, this.client, signal);
  }

  async close(): Promise<void> {
    this.client.close();
  }
}

export interface ManagedOptions extends Omit<LaunchOptions, 'host' | 'port'> {
  /** The program and its first arguments; empty: the protocol's. */
  command: readonly string[];
  /** More arguments, after ours. */
  args: readonly string[];
  /** CUDA_VISIBLE_DEVICES; null: as this process has it. */
  gpus: string | null;
  /** Its output goes here, all of it. */
  log: string;
}

/** Before it answered. */
class ServerEnded extends Error {}

export class ManagedServer implements InferenceServer {
  private current: ServerClient | null = null;
  private process: ChildProcess | null = null;
  private ended: string | null = null;
  /** Bytes of the log before the process that runs now, or ran last. */
  private logged = 0;
  /** Until its process is there. */
  private starting: Promise<void> | null = null;
  /** How often it was closed: what is closed while it comes up is not started again. */
  private closes = 0;

  constructor(
    private readonly protocol: ServerProtocol,
    private readonly options: ManagedOptions,
    private readonly guard: GroupGuard,
  ) {}

  get client(): ServerClient {
    if (this.current === null) throw new Error('the server has not been started');
    return this.current;
  }

  /**
   * Where another program has taken its port while it was coming up, it is started on another.
   * @throws Error with the end of its log, when it ends before it answers
   */
  async ready(directory: string | null, signal: AbortSignal): Promise<void> {
    const { closes } = this;
    for (let starts = 1; ; starts++) {
      try {
        await this.answering(directory, signal);
        return;
      } catch (error) {
        const taken = error instanceof ServerEnded && TAKEN.test(error.message);
        if (!taken || signal.aborted || starts === MOST_STARTS || closes !== this.closes) throw error;
      }
    }
  }

  private async answering(directory: string | null, signal: AbortSignal): Promise<void> {
    if (this.process === null) {
      this.starting ??= this.start(directory ?? this.options.model).finally(() => {
        this.starting = null;
      });
      await this.starting;
    }
    const given = new AbortController();
    const child = this.process as ChildProcess;
    const onEnd = (): void => given.abort();
    child.once('close', onEnd);
    if (this.process === null) onEnd();
    try {
      await healthy(this.protocol, this.client, AbortSignal.any([signal, given.signal]));
    } catch (error) {
      if (!given.signal.aborted) throw error;
      throw new ServerEnded(
        `${this.ended ?? 'the server has ended'}; the end of ${this.options.log}:\n${this.lastWords()}`,
      );
    } finally {
      child.off('close', onEnd);
    }
  }

  async close(): Promise<void> {
    this.closes++;
    // Else it would go on with the weights of before, whatever it is started with next.
    await this.starting?.catch(() => undefined);
    const child = this.process;
    this.current?.close();
    if (child === null) return;
    const gone = new Promise((resolve) => child.once('close', resolve));
    signalGroup(child.pid, 'SIGTERM');
    const late = setTimeout(() => signalGroup(child.pid, 'SIGKILL'), STOP_MS);
    await gone;
    clearTimeout(late);
  }

  private async start(model: string): Promise<void> {
    const { command, args, gpus, log } = this.options;
    const host = '127.0.0.1';
    const port = await freePort(host);
    const launch = this.protocol.launch({ ...this.options, model, host, port });
    const [program, ...first] = command.length > 0 ? command : launch.command;
    makeDirectories(path.dirname(log));
    const file = openSync(log, 'a');
    this.logged = fstatSync(file).size;
    // In a process group of its own: servers have workers, and a Ctrl-C is for the trainer, which ends them.
    const child = this.guard.spawn(program as string, [...first, ...launch.args, ...args], {
      env: { ...process.env, ...launch.env, ...(gpus === null ? {} : { CUDA_VISIBLE_DEVICES: gpus }) },
      stdio: ['ignore', file, file],
    });
    closeSync(file);
    this.current?.close();
    this.current = new ServerClient(`http://${host}:${port}`);
    this.process = child;
    this.ended = null;
    child.once('error', (error) => {
      this.ended = `${program} could not be started (${error.message})`;
    });
    child.once('close', (code, signal) => {
      // Its workers do not outlive it.
      signalGroup(child.pid, 'SIGKILL');
      this.guard.drop(child.pid);
      this.ended ??= `${program} ended with ${signal ?? `exit code ${code}`}`;
      if (this.process === child) this.process = null;
    });
  }

  private lastWords(): string {
    try {
      const words = endOf(this.options.log, this.logged).slice(-SHOWN);
      return printable(words, { max: SHOWN, lines: true });
    } catch {
      return '(nothing)';
    }
  }
}

/** The last characters of a file of any size, behind its first `from` bytes where it still has more. */
function endOf(file: string, from: number): string {
  const fd = openSync(file, 'r');
  try {
    const end = Buffer.alloc(4 * SHOWN);
    const { size } = fstatSync(fd);
    const read = readSync(fd, end, 0, end.length, Math.max(size < from ? 0 : from, size - end.length));
    return end.toString('utf8', 0, read);
  } finally {
    closeSync(fd);
  }
}

function freePort(host: string): Promise<number> {
  return new Promise((resolve, reject) => {
    const server = createServer();
    server.once('error', reject);
    server.listen(0, host, () => {
      const { port } = server.address() as { port: number };
      server.close(() => resolve(port));
    });
  });
}
