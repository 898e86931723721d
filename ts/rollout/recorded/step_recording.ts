// The responses of one step in a file: a line for each, which is whole once it ends.
import { closeSync, createReadStream, existsSync, openSync, truncateSync, writeSync } from 'node:fs';
import { dirname } from 'node:path';
import { z } from 'zod';
import { asTroupeError } from '../../base/atomic_dir';
import { makeDirectories } from '../../base/make_directories';
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
  /** Whether the file says whose responses it has. */
  private begun = false;

  private constructor(
    private readonly file: string,
    private readonly model: string,
  ) {}

  /**
   * `model`: whose responses they are. A last line without an end, of a run that was killed, is taken off the file.
   * @throws TroupeError IO when the file is no recording, or one of another model
   */
  static async open(file: string, model: string): Promise<StepRecording> {
    const recording = new StepRecording(file, model);
    if (existsSync(file)) await recording.read();
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
    try {
      if (this.fd === null) {
        makeDirectories(dirname(this.file));
        this.fd = openSync(this.file, 'a');
        if (!this.begun) this.append({ version: VERSION, model: this.model });
        this.begun = true;
      }
      this.append(line);
    } catch (error) {
      throw asTroupeError(error, `write ${this.file}`);
    }
  }

  private append(line: object): void {
    const bytes = Buffer.from(`${JSON.stringify(line)}\n`);
    for (let at = 0; at < bytes.length; ) at += writeSync(this.fd as number, bytes, at);
  }

  private async read(): Promise<void> {
    let whole = 0;
    let number = 0;
    for await (const line of wholeLines(this.file)) {
      number++;
      whole += line.length + 1;
      if (number === 1) this.checkHead(line);
      else {
        const { key, ...result } = this.parsed(lineSchema, line, number, 'a response');
        this.results.set(key, { ...result, cachedTokens: 0 } as RolloutResult);
      }
    }
    truncateSync(this.file, whole);
    this.begun = number > 0;
  }

  private checkHead(line: Buffer): void {
    const { model } = this.parsed(headSchema, line, 1, 'the model of the responses');
    if (model !== this.model)
      throw this.unusable(1, `expected responses of the model ${this.model}, but they are of ${model}`);
  }

  private parsed<T>(schema: z.ZodType<T>, line: Buffer, number: number, what: string): T {
    let value: unknown;
    try {
      value = JSON.parse(line.toString());
    } catch {
      throw this.unusable(number, `expected ${what}, but it is not JSON`);
    }
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

/** Those that end: a file may be larger than a text can be. */
async function* wholeLines(file: string): AsyncGenerator<Buffer> {
  let begun: Buffer[] = [];
  for await (const chunk of createReadStream(file) as AsyncIterable<Buffer>) {
    let from = 0;
    for (let end = chunk.indexOf(10); end >= 0; end = chunk.indexOf(10, from)) {
      yield Buffer.concat([...begun, chunk.subarray(from, end)]);
      begun = [];
      from = end + 1;
    }
    begun.push(chunk.subarray(from));
  }
}
