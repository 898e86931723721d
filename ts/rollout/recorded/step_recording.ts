// The responses of one step in a file: a line for each, which is whole once it ends.
import { closeSync, createReadStream, fstatSync, openSync, readSync, writeSync } from 'node:fs';
import { dirname } from 'node:path';
import { z } from 'zod';
import { asTroupeError } from '../../base/atomic_dir';
import { makeDirectories } from '../../base/make_directories';
import { isRegularFile } from '../../base/regular_file';
import { TroupeError } from '../../errors';
import type { RolloutResult } from '../request';

const VERSION = 1;
const NEW_LINE = 10;

const headSchema = z.object({ version: z.literal(VERSION), model: z.string() });

/** Arrays in base64, which keeps every bit of a log-probability. */
const bytes = z.base64().transform((text) => Uint8Array.from(Buffer.from(text, 'base64')));
const floats = bytes
  .refine(({ length }) => length % 4 === 0)
  .transform(({ buffer }) => new Float32Array(buffer));
const ids = bytes.refine(({ length }) => length % 4 === 0).transform(({ buffer }) => new Int32Array(buffer));

const lineSchema = z
  .object({
    key: z.string(),
    tokens: ids,
    logProbs: floats,
    topLogProbs: z.array(z.array(z.object({ token: z.int(), logProb: z.number() }))).optional(),
    promptLogProbs: floats.optional(),
    routedExperts: bytes.optional(),
    finishReason: z.enum(['stop', 'length']),
    stopText: z.string().optional(),
    versions: z.array(z.object({ version: z.int(), start: z.int(), end: z.int() })),
  })
  .refine(({ tokens, logProbs }) => tokens.length === logProbs.length, 'one log-probability a token');

const base64 = ({ buffer, byteOffset, byteLength }: ArrayBufferView): string =>
  Buffer.from(buffer, byteOffset, byteLength).toString('base64');

/** What a later run with the same requests is answered with. */
export class StepRecording {
  /** Of the file as it was found: what is added is for later runs. */
  private readonly results = new Map<string, RolloutResult>();
  private readonly added = new Set<string>();
  private fd: number | null = null;
  /** Whether the file says whose responses it has. */
  private headed = false;
  /** What became of a write that failed: half of its line may be there, and nothing may follow it. */
  private broken: TroupeError | null = null;

  private constructor(
    private readonly file: string,
    private readonly model: string,
  ) {}

  /**
   * `model`: whose responses they are. A line that was begun is of a run that was killed, or of one that is at work: it is passed over,
   * and what is added begins behind it. A file whose responses are only taken need not be writable.
   * @throws TroupeError IO when the file is no recording, or one of another model, or cannot be read
   */
  static async open(file: string, model: string): Promise<StepRecording> {
    const recording = new StepRecording(file, model);
    if (isRegularFile(file)) await recording.read();
    return recording;
  }

  get(key: string): RolloutResult | undefined {
    return this.results.get(key);
  }

  /** @throws TroupeError NO_SPACE, IO naming the file */
  add(key: string, result: RolloutResult): void {
    if (this.results.has(key) || this.added.has(key)) return;
    const { tokens, logProbs, promptLogProbs, routedExperts, cachedTokens: _, ...rest } = result;
    this.write({
      key,
      ...rest,
      tokens: base64(tokens),
      logProbs: base64(logProbs),
      ...(promptLogProbs ? { promptLogProbs: base64(promptLogProbs) } : {}),
      ...(routedExperts ? { routedExperts: base64(routedExperts) } : {}),
    });
    this.added.add(key);
  }

  close(): void {
    if (this.fd !== null) closeSync(this.fd);
    this.fd = null;
  }

  private write(line: object): void {
    if (this.broken !== null) throw this.broken;
    try {
      this.fd ??= this.begin();
      append(this.fd, line);
    } catch (error) {
      this.broken = asTroupeError(error, `write ${this.file}`, 'the responses that it has stay');
      throw this.broken;
    }
  }

  private begin(): number {
    makeDirectories(dirname(this.file));
    const fd = openSync(this.file, 'a+');
    try {
      // Another run may have begun the file since it was looked for: then it has a head twice.
      if (!this.headed) append(fd, { version: VERSION, model: this.model });
    } catch (error) {
      closeSync(fd);
      throw error;
    }
    return fd;
  }

  private async read(): Promise<void> {
    let number = 0;
    try {
      for await (const { line, ended } of linesOf(this.file)) {
        number++;
        const text = line.toString();
        const value = parsedJson(text);
        if (value !== undefined && ended) this.take(value, number);
        else if (!isBegun(text)) {
          if (value === undefined) throw this.unusable(number, `expected ${this.next()}, but it is not JSON`);
          this.take(value, number);
        }
      }
    } catch (error) {
      throw asTroupeError(error, `read ${this.file}`);
    }
  }

  private take(value: unknown, number: number): void {
    if (!this.headed || headSchema.safeParse(value).success) {
      const { model } = this.parsed(headSchema, value, number, this.next());
      if (model !== this.model)
        throw this.unusable(
          number,
          `expected responses of the model ${this.model}, but they are of ${model}`,
        );
      this.headed = true;
      return;
    }
    const { key, ...result } = this.parsed(lineSchema, value, number, this.next());
    this.results.set(key, { ...result, cachedTokens: 0 } as RolloutResult);
  }

  private next(): string {
    return this.headed ? 'a response' : 'the model of the responses';
  }

  private parsed<T>(schema: z.ZodType<T>, value: unknown, number: number, what: string): T {
    const { success, data, error } = schema.safeParse(value);
    if (success) return data;
    const [issue] = error.issues;
    throw this.unusable(
      number,
      `expected ${what}, but ${[...(issue?.path ?? []), issue?.message].join(': ')}`,
    );
  }

  private unusable(line: number, what: string): TroupeError {
    const advice = 'remove the file, or give another skip.rollout.dump_dir';
    return new TroupeError('IO', `[rollout] ${this.file}: line ${line}: ${what}: ${advice}`);
  }
}

function parsedJson(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch {
    return undefined;
  }
}

/** How lines of ours begin. */
const BEGINNINGS = ['{"key":', JSON.stringify({ version: VERSION, model: '' }).slice(0, -2)];

/** Whether it can be the beginning of one: what no run of ours has begun is somebody else's. */
const isBegun = (text: string): boolean =>
  BEGINNINGS.some((start) => start.startsWith(text) || text.startsWith(start));

/** Behind a line that another run has begun and not ended, on a line of its own. `fd`: open for reading and appending. */
function append(fd: number, line: object): void {
  const bytes = Buffer.from(`${endsLine(fd) ? '' : '\n'}${JSON.stringify(line)}\n`);
  for (let at = 0; at < bytes.length; ) at += writeSync(fd, bytes, at);
}

function endsLine(fd: number): boolean {
  const { size } = fstatSync(fd);
  const last = Buffer.alloc(1);
  return size === 0 || readSync(fd, last, 0, 1, size - 1) === 0 || last[0] === NEW_LINE;
}

/** The last one may have no end. A file may be larger than a text can be. */
async function* linesOf(file: string): AsyncGenerator<{ line: Buffer; ended: boolean }> {
  let begun: Buffer[] = [];
  for await (const chunk of createReadStream(file) as AsyncIterable<Buffer>) {
    let from = 0;
    for (let end = chunk.indexOf(NEW_LINE); end >= 0; end = chunk.indexOf(NEW_LINE, from)) {
      yield { line: Buffer.concat([...begun, chunk.subarray(from, end)]), ended: true };
      begun = [];
      from = end + 1;
    }
    if (from < chunk.length) begun.push(chunk.subarray(from));
  }
  if (begun.length > 0) yield { line: Buffer.concat(begun), ended: false };
}
