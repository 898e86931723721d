// What a worker records of a step that is profiled.
import { createReadStream } from 'node:fs';
import { mkdtemp, open, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { pipeline } from 'node:stream/promises';
import { createGzip } from 'node:zlib';
import type { NativeBinding } from '../native/bridge';
import type { EngineMethod } from './protocol';

/** A worker's work that one trace may be of: what engines of these names do, and generation, whichever engine generates. */
export type ProfiledWork = 'actor' | 'ref' | 'critic' | 'teacher' | 'generate';

/** What a worker records. */
export interface ProfileOrder {
  cuda: boolean;
  shapes: boolean;
  memory: boolean;
  /** A trace of each piece of this work; null: one of all that the worker does. */
  pieces: readonly ProfiledWork[] | null;
}

export interface WorkerTrace {
  /** What it is a piece of, such as `actor-update`; null: it is of everything. */
  piece: string | null;
  pid: number;
  /** When it began; milliseconds since 1970. */
  time: number;
  /** Times in it count from here; milliseconds since 1970. */
  zero: number;
  /** JSON of the Trace Event format, in gzip. */
  bytes: Uint8Array;
}

const GENERATE = 'generate';
/** Verbs that a piece is of, as verl names its stages. */
const PIECES: Partial<Record<EngineMethod, string>> = {
  beginRollout: GENERATE,
  rolloutTurn: GENERATE,
  parkRollout: GENERATE,
  computeLogProb: 'compute_log_prob',
  computeValues: 'compute_values',
  updatePolicy: 'update',
  updateCritic: 'update',
  updateSft: 'update',
};
/** They are answered without the engine. */
const WITHOUT_ENGINE: ReadonlySet<EngineMethod> = new Set(['takeRollout', 'dropRollout']);
/** A step waits for it. */
const GZIP_LEVEL = 1;
/** Kineto says what its times count from before the events or behind them, as its versions differ. */
const EDGE_BYTES = 4096;

/** Of a call, in names of ranges. */
function verb(method: EngineMethod): string {
  if (method === 'rolloutTurn') return GENERATE;
  const stage = PIECES[method];
  if (stage !== undefined && stage !== GENERATE) return stage;
  return method.replace(/[A-Z]/g, (letter) => `_${letter.toLowerCase()}`);
}

/** Stands between the engines of a worker and their calls: these go by while nothing is recorded. */
export class Profiling {
  private order: ProfileOrder | null = null;
  /** What is being recorded. */
  private recording: { piece: string | null; time: number } | null = null;
  private traces: WorkerTrace[] = [];

  constructor(private readonly binding: NativeBinding) {}

  async begin(order: ProfileOrder): Promise<void> {
    await this.drop();
    this.order = order;
    if (order.pieces === null) await this.start(null);
  }

  /** What was recorded since {@link begin}. */
  async end(): Promise<WorkerTrace[]> {
    await this.finish();
    const { traces } = this;
    await this.drop();
    return traces;
  }

  async drop(): Promise<void> {
    this.order = null;
    this.traces = [];
    if (this.recording === null) return;
    this.recording = null;
    await this.binding.stopProfile(null);
  }

  /** A call of an engine: a named range, and perhaps a trace of its own. */
  async around<T>(engine: string, method: EngineMethod, call: () => Promise<T>): Promise<T> {
    if (this.order === null || WITHOUT_ENGINE.has(method)) return call();
    const stage = PIECES[method];
    const { pieces } = this.order;
    if (pieces !== null) await this.turnTo(engine, stage ?? null, pieces);
    if (this.recording === null) return call();
    await this.binding.enterRange(`${engine}_${verb(method)}`);
    try {
      return await call();
    } finally {
      await this.binding.leaveRange();
      if (pieces !== null && (stage !== GENERATE || method === 'parkRollout')) await this.finish();
    }
  }

  /** Generation is one piece however many turns it has, until something else is done. */
  private async turnTo(engine: string, stage: string | null, pieces: readonly ProfiledWork[]): Promise<void> {
    if (stage === null) return;
    if (stage === GENERATE && this.recording !== null) return;
    await this.finish();
    // Of several teachers each has its number.
    const work = stage === GENERATE ? GENERATE : engine.replace(/_\d+$/, '');
    if (!(pieces as readonly string[]).includes(work)) return;
    await this.start(stage === GENERATE ? GENERATE : `${engine}_${stage}`.replaceAll('_', '-'));
  }

  private async start(piece: string | null): Promise<void> {
    const { cuda, shapes, memory } = this.order as ProfileOrder;
    await this.binding.startProfile({ cuda, shapes, memory });
    this.recording = { piece, time: Date.now() };
  }

  private async finish(): Promise<void> {
    if (this.recording === null) return;
    const { piece, time } = this.recording;
    this.recording = null;
    const directory = await mkdtemp(join(tmpdir(), 'troupe-profile-'));
    try {
      const file = join(directory, 'trace.json');
      await this.binding.stopProfile(file);
      const trace = {
        piece,
        pid: process.pid,
        time,
        zero: await zeroOf(file),
        bytes: await compressed(file),
      };
      this.traces.push(trace);
    } finally {
      await rm(directory, { recursive: true, force: true });
    }
  }
}

async function compressed(file: string): Promise<Uint8Array> {
  const chunks: Buffer[] = [];
  const gzip = createGzip({ level: GZIP_LEVEL });
  await pipeline(createReadStream(file), gzip, async (source: AsyncIterable<Buffer>) => {
    for await (const chunk of source) chunks.push(chunk);
  });
  return new Uint8Array(Buffer.concat(chunks));
}

async function zeroOf(file: string): Promise<number> {
  const handle = await open(file);
  try {
    const { size } = await handle.stat();
    const head = Buffer.alloc(Math.min(size, EDGE_BYTES));
    const tail = Buffer.alloc(head.length);
    await handle.read(head, 0, head.length, 0);
    await handle.read(tail, 0, tail.length, size - tail.length);
    const found = /"baseTimeNanoseconds": (\d+)/.exec(`${head}${tail}`)?.[1];
    return found === undefined ? 0 : Number(BigInt(found) / 1000n) / 1000;
  } finally {
    await handle.close();
  }
}
