// The responses of one step in a file: a line for each, which is whole once it ends.
import { closeSync, createReadStream, fstatSync, ftruncateSync, openSync, writeSync } from 'node:fs';
import { dirname } from 'node:path';
import { z } from 'zod';
import { asTroupeError } from '../../base/atomic_dir';
import { makeDirectories } from '../../base/make_directories';
import { isRegularFile } from '../../base/regular_file';
import { TroupeError } from '../../errors';
import type { RolloutResult } from '../request';

const VERSION = 1;

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
  /** Bytes of the whole lines that the file had when it was read, and of what is behind them, without an end. */
  private whole = 0;
  private unended = 0;
  /** What became of a write that failed: half of its line may be there, and nothing may follow it. */
  private broken: TroupeError | null = null;

  private constructor(
    private readonly file: string,
    private readonly model: string,
  ) {}

  /**
   * `model`: whose responses they are. A last line without an end is of a run that was killed, or of one that is at work: it is taken
   * off the file by the first {@link add}, unless it has grown since. A file whose responses are only taken need not be writable.
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
    const fd = openSync(this.file, 'a');
    try {
      const { size } = fstatSync(fd);
      if (this.unended > 0 && size === this.whole + this.unended) ftruncateSync(fd, this.whole);
      // Another run may have begun the file since it was looked for: then it has a head twice.
      if (this.whole === 0) append(fd, { version: VERSION, model: this.model });
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
        if (ended) {
          this.whole += line.length + 1;
          this.take(this.json(line, number), number);
        } else {
          this.unended = line.length;
          // What no run of ours can have begun is somebody else's file.
          if (number === 1 && !isBegunHead(line.toString())) this.take(this.json(line, number), number);
        }
      }
    } catch (error) {
      throw asTroupeError(error, `read ${this.file}`);
    }
  }

  private take(value: unknown, number: number): void {
    if (number === 1 || headSchema.safeParse(value).success) {
      const { model } = this.parsed(headSchema, value, number, 'the model of the responses');
      if (model === this.model) return;
      throw this.unusable(number, `expected responses of the model ${this.model}, but they are of ${model}`);
    }
    const { key, ...result } = this.parsed(lineSchema, value, number, 'a response');
    this.results.set(key, { ...result, cachedTokens: 0 } as RolloutResult);
  }

  private json(line: Buffer, number: number): unknown {
    try {
      return JSON.parse(line.toString());
    } catch {
      const what = number === 1 ? 'the model of the responses' : 'a response';
      throw this.unusable(number, `expected ${what}, but it is not JSON`);
    }
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

const isBegunHead = (text: string): boolean => {
  const start = JSON.stringify({ version: VERSION, model: '' }).slice(0, -2);
  return start.startsWith(text) || text.startsWith(start);
};

function append(fd: number, line: object): void {
  const bytes = Buffer.from(`${JSON.stringify(line)}\n`);
  for (let at = 0; at < bytes.length; ) at += writeSync(fd, bytes, at);
}

/** The last one may have no end. A file may be larger than a text can be. */
async function* linesOf(file: string): AsyncGenerator<{ line: Buffer; ended: boolean }> {
  let begun: Buffer[] = [];
  for await (const chunk of createReadStream(file) as AsyncIterable<Buffer>) {
    let from = 0;
    for (let end = chunk.indexOf(10); end >= 0; end = chunk.indexOf(10, from)) {
      yield { line: Buffer.concat([...begun, chunk.subarray(from, end)]), ended: true };
      begun = [];
      from = end + 1;
    }
    if (from < chunk.length) begun.push(chunk.subarray(from));
  }
  if (begun.length > 0) yield { line: Buffer.concat(begun), ended: false };
}
