// One host of a run: the agent there, and the workers that it has started.

import type { WorkerSpec } from '../controller/launcher';
import { workerPrefix } from '../controller/local_launcher';
import type { Peer } from '../controller/message_server';
import { TroupeError } from '../errors';
import type { FromHost, HostFacts, StreamMessage, ToHost } from '../host/protocol';
import { RemoteWorker } from './remote_worker';

type Probed = Extract<FromHost, { type: 'probed' }>;

/** What a host has to say to the pool that it is in. */
export interface HostListener {
  /** A line that one of its workers has written. */
  line(text: string): void;
  /** The engine that runs the agent has sent it a signal. */
  notice(host: Host, signal: string): void;
  /** A connection has come to a tunnel. */
  opened(host: Host, tunnel: number, stream: number): void;
  /** Of a tunnelled connection. */
  stream(host: Host, message: StreamMessage): void;
}

export class Host {
  readonly facts: HostFacts;
  /** Which of the hosts it was started as; null: nobody has said so. */
  readonly claimed: number | null;
  /** Why it is of no more use; null: it is there. */
  lost: string | null = null;
  readonly #peer: Peer<ToHost>;
  readonly #listener: HostListener;
  readonly #workers = new Map<number, { worker: RemoteWorker; spec: WorkerSpec }>();
  readonly #probes = new Map<number, { resolve: (answer: Probed) => void; reject: (e: Error) => void }>();
  readonly #listening = new Map<number, { resolve: (port: number) => void; reject: (e: Error) => void }>();
  #next = 1;

  constructor(peer: Peer<ToHost>, facts: HostFacts, claimed: number | null, listener: HostListener) {
    this.#peer = peer;
    this.facts = facts;
    this.claimed = claimed;
    this.#listener = listener;
  }

  get name(): string {
    return this.facts.name;
  }

  send(message: ToHost): void {
    if (this.lost === null) this.#peer.send(message);
  }

  /** Sent past all else, unless something else is on its way, which says the same. */
  heartbeat(): void {
    if (this.lost === null && !this.#peer.busy) this.#peer.sendNow({ type: 'heartbeat' });
  }

  start(spec: WorkerSpec): RemoteWorker {
    const id = this.#next++;
    const worker = new RemoteWorker(this.name, this.facts.address, {
      signal: (signal) => this.send({ type: 'signal', id, signal }),
      askStacks: (kind) => this.send({ type: 'stacks', id, kind }),
    });
    if (this.lost !== null) {
      worker.end({ exitCode: null, signal: null, lost: this.#loss() });
      return worker;
    }
    this.#workers.set(id, { worker, spec });
    this.send({ type: 'start', id, spec });
    return worker;
  }

  /** Opens a port of 127.0.0.1 there that leads into `tunnel`. */
  listen(tunnel: number): Promise<number> {
    if (this.lost !== null) return Promise.reject(new TroupeError('COMM', this.#loss()));
    return new Promise((resolve, reject) => {
      this.#listening.set(tunnel, { resolve, reject });
      this.send({ type: 'listen', tunnel });
    });
  }

  /** What its agent reads in a small file, and how far its clock is ahead of this one. @throws TroupeError COMM when it is lost */
  async probe(file: string): Promise<{ seen: string | null; clockMs: number; roundTripMs: number }> {
    const id = this.#next++;
    const [start, sent] = [performance.now(), Date.now()];
    const { now, content } = await new Promise<Probed>((resolve, reject) => {
      if (this.lost !== null) reject(new TroupeError('COMM', this.#loss()));
      this.#probes.set(id, { resolve, reject });
      this.send({ type: 'probe', id, file });
    });
    const roundTripMs = performance.now() - start;
    return { seen: content, clockMs: now - (sent + roundTripMs / 2), roundTripMs };
  }

  receive(message: FromHost): void {
    switch (message.type) {
      case 'heartbeat':
        for (const [id, { worker }] of this.#workers) worker.isStopped = message.stopped.includes(id);
        break;
      case 'started': {
        const started = this.#workers.get(message.id);
        if (started !== undefined) started.worker.pid = message.pid;
        break;
      }
      case 'line':
        this.#line(message.id, message.line, message.isError);
        break;
      case 'stacks':
        this.#workers.get(message.id)?.worker.stacksCame(message.kind, message.text);
        break;
      case 'exited': {
        const { exitCode, signal } = message;
        this.#workers.get(message.id)?.worker.end({ exitCode, signal });
        this.#workers.delete(message.id);
        break;
      }
      case 'notice':
        this.#listener.notice(this, message.signal);
        break;
      case 'probed':
        this.#probes.get(message.id)?.resolve(message);
        this.#probes.delete(message.id);
        break;
      case 'listening':
        this.#listening.get(message.tunnel)?.resolve(message.port);
        this.#listening.delete(message.tunnel);
        break;
      case 'opened':
        this.#listener.opened(this, message.tunnel, message.stream);
        break;
      case 'bytes':
      case 'ended':
        this.#listener.stream(this, message);
        break;
      default: // hello has been heard
    }
  }

  /** It is of no more use: its workers count as ended. */
  lose(reason: string): void {
    if (this.lost !== null) return;
    this.lost = reason;
    this.#peer.drop();
    for (const { worker } of this.#workers.values())
      worker.end({ exitCode: null, signal: null, lost: this.#loss() });
    this.#workers.clear();
    for (const { reject } of [...this.#listening.values(), ...this.#probes.values()])
      reject(new TroupeError('COMM', this.#loss()));
    this.#probes.clear();
    this.#listening.clear();
  }

  #loss(): string {
    return `its host ${this.name} (${this.facts.address}) was lost: ${this.lost}`;
  }

  #line(id: number, line: string, isError: boolean): void {
    const from = this.#workers.get(id);
    if (from === undefined) return;
    from.worker.said(line, isError);
    this.#listener.line(`${workerPrefix(from.spec).slice(0, -1)} on ${this.name}] ${line}`);
  }
}
