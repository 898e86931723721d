import type { WorkerGroup } from '../../../ts/controller/worker_group';
import { piecesOf } from '../../../ts/worker/message_arrays';

/** A call that reached the workers. */
export interface Call {
  method: string;
  args: unknown[];
}

type Answer = (...args: never[]) => unknown;

/** Arguments as the other end of a connection would see them: arrays in pieces are one there. */
function asReceived<T>(value: T): T {
  if (Array.isArray(value)) return value.map(asReceived) as T;
  if (ArrayBuffer.isView(value)) {
    const pieces = piecesOf(value);
    if (pieces === null) return value;
    const { constructor: type } = value as unknown as { constructor: typeof Int32Array };
    return type.from(pieces.flatMap((piece) => [...(piece as Int32Array)])) as T;
  }
  if (typeof value !== 'object' || value === null || value.constructor !== Object) return value;
  return Object.fromEntries(Object.entries(value).map(([name, field]) => [name, asReceived(field)])) as T;
}

/** Stands in for the worker processes: answers engine methods from a table and records every call, by rank. */
export class FakeGroup {
  readonly calls: Call[] = [];
  readonly engines = new Map<string, unknown>();
  closed = false;
  readonly failure = null;

  constructor(
    private readonly answers: Record<string, Answer> = {},
    readonly worldSize = 1,
    readonly device: 'cpu' | 'cuda' = 'cpu',
  ) {}

  asGroup(): WorkerGroup {
    return this as unknown as WorkerGroup;
  }

  callsOf(method: string): Call[] {
    return this.calls.filter((call) => call.method === method);
  }

  buildInfo(): object {
    return {
      version: '0',
      libtorch: '0',
      cuda: this.device === 'cuda',
      deviceCount: this.device === 'cuda' ? 1 : 0,
      threads: 1,
    };
  }

  async memoryInfo(): Promise<object[]> {
    return [{ peakRss: 2 ** 30, allocated: 0, maxAllocated: 0 }];
  }

  async connect(): Promise<void> {}

  async createEngine(name: string, options: unknown): Promise<void> {
    if (this.engines.has(name)) throw new Error(`the engine '${name}' exists already`);
    this.engines.set(name, options);
  }

  async closeEngine(name: string): Promise<void> {
    this.engines.delete(name);
  }

  async callAll(
    engine: string,
    method: string,
    args: unknown[][] | ((rank: number) => unknown[]),
  ): Promise<unknown[]> {
    const byRank = Array.from({ length: this.worldSize }, (_, rank) =>
      typeof args === 'function' ? args(rank) : args[rank],
    );
    return Promise.all(byRank.map((rankArgs, rank) => this.callRank(rank, engine, method, rankArgs ?? [])));
  }

  async callRanks(
    ranks: readonly number[],
    engine: string,
    method: string,
    args: (rank: number) => unknown[],
  ): Promise<unknown[]> {
    return Promise.all(ranks.map((rank) => this.callRank(rank, engine, method, args(rank))));
  }

  async callRank(_rank: number, _engine: string, method: string, args: unknown[]): Promise<unknown> {
    const received = asReceived(args);
    this.calls.push({ method, args: received });
    const answer = this.answers[method];
    if (answer !== undefined) return answer(...(received as never[]));
    if (method === 'exportWeights') return { bytes: null, version: 0 };
    return method === 'parameters' ? [] : null;
  }

  async callBinding(method: string, args: unknown[]): Promise<unknown> {
    return this.callRank(0, '', method, args);
  }

  async close(): Promise<void> {
    this.closed = true;
  }
}
