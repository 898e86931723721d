// Responses that stay in a worker until all of a batch are there: its controller is told their lengths, finds a place for each, and takes them once.

import { roomFor } from '../base/response_room';
import type {
  NativeImage,
  NativeImageBatch,
  NativeRequestSampling,
  NativeRolloutCommands,
  NativeRolloutOutput,
  NativeRolloutRequest,
  NativeRolloutTurn,
} from '../native/bridge';

/** Samples of many prompts as one request, R of them, whose ids follow each other from `firstId`: those of the first prompt, of the second, ... */
export interface BatchSubmission {
  firstId: number;
  /** Tokens of P prompts behind each other. */
  prompts: Int32Array;
  promptLens: Int32Array; // [P]
  /** null: none has any. */
  images: NativeImageBatch | null; // of P prompts
  /** Of each prompt; their sum is R. */
  samples: Int32Array; // [P]
  seeds: BigUint64Array; // [R]
  sampling: NativeRequestSampling;
  /** Of all of them: higher ones are admitted first. */
  priority: number;
  /** false: another rank makes the same responses and keeps them. */
  keeps: boolean;
  /** Whether it is kept which weights made which token. */
  versions: boolean;
  /** Prompt and response together: some responses have fewer than `sampling.maxNewTokens`. */
  maxTokens: number;
}

export interface RolloutCommands extends NativeRolloutCommands {
  batches: BatchSubmission[];
}

/** Requests of the batch `firstId` that have come to their end. */
export interface EndedRequests {
  firstId: number;
  /** Counted from the first request of the batch. */
  places: number[];
  /** Of their responses, in tokens. */
  lengths: number[];
  /** Of what the engine says of the experts of a request, in bytes; 0 where it says nothing. */
  expertBytes: number[];
}

/** `outputs`: of requests that are no part of a batch, and the errors of those that are. */
export interface RolloutTurn extends NativeRolloutTurn {
  ended: EndedRequests[];
}

/** Of all requests of a batch, behind each other in their order. */
export interface TakenResponses {
  tokens: Int32Array;
  logProbs: Float32Array;
  /** Of the weights that made each token; empty unless the batch wanted it. */
  versions: Int32Array;
  routedExperts: Uint8Array;
}

/** One response as it comes; arrays that grow, because the pieces of every turn would be larger than what is in them. */
class GrowingResponse {
  tokens: Int32Array = new Int32Array(0);
  logProbs: Float32Array = new Float32Array(0);
  experts: Uint8Array | null = null;
  size = 0;
  /** Of neighbouring tokens by the same weights, and where they end. */
  private readonly runs: { version: number; end: number }[] = [];

  append({ tokens, logProbs, version, routedExperts, finish }: NativeRolloutOutput): void {
    const end = this.size + tokens.length;
    const newest = this.runs.at(-1);
    if (newest?.version === version) newest.end = end;
    else this.runs.push({ version, end });
    this.experts ??= routedExperts;
    if (this.size === 0 && finish !== 'none') {
      [this.tokens, this.logProbs] = [tokens, logProbs];
    } else if (tokens.length > 0) {
      if (end > this.tokens.length) this.grow(Math.max(end, 2 * this.size));
      this.tokens.set(tokens, this.size);
      this.logProbs.set(logProbs, this.size);
    }
    this.size = end;
  }

  writeVersions(into: Int32Array, at: number): void {
    let start = 0;
    for (const { version, end } of this.runs) {
      into.fill(version, at + start, at + end);
      start = end;
    }
  }

  private grow(length: number): void {
    const [tokens, logProbs] = [new Int32Array(length), new Float32Array(length)];
    tokens.set(this.tokens.subarray(0, this.size));
    logProbs.set(this.logProbs.subarray(0, this.size));
    this.tokens = tokens;
    this.logProbs = logProbs;
  }
}

interface KeptBatch {
  firstId: number;
  count: number;
  /** Requests that have not ended. */
  left: number;
  versions: boolean;
  /** null: dropped as they come. */
  responses: GrowingResponse[] | null;
}

const NO_IMAGES = new Int32Array(0);

/** Of one engine. */
export class KeptResponses {
  private readonly batches = new Map<number, KeptBatch>();
  /** Of these, ascending, as they come. */
  private readonly firstIds: number[] = [];

  /** A turn of the engine below (`native`), which knows single requests alone. */
  async turn(
    { batches, ...commands }: RolloutCommands,
    native: (commands: NativeRolloutCommands) => Promise<NativeRolloutTurn>,
  ): Promise<RolloutTurn> {
    // Not by spread: a batch may have more requests than a call has arguments.
    const images = [...commands.images];
    const submit = batches.reduce((all, batch) => all.concat(this.submit(batch, images)), commands.submit);
    const turn = await native({ ...commands, submit, images });
    return { ...turn, ...this.sorted(turn.outputs) };
  }

  /** Gives the responses of a batch away. @throws for a batch that is not here */
  take(firstId: number): TakenResponses {
    const { responses = null, versions = false } = this.batches.get(firstId) ?? {};
    if (responses === null) throw new Error(`[rollout] there are no responses of a batch ${firstId}`);
    this.forget(firstId);
    const total = (size: (response: GrowingResponse) => number): number =>
      responses.reduce((sum, response) => sum + size(response), 0);
    const length = total(({ size }) => size);
    const taken = {
      tokens: new Int32Array(length),
      logProbs: new Float32Array(length),
      versions: new Int32Array(versions ? length : 0),
      routedExperts: new Uint8Array(total(({ experts }) => experts?.length ?? 0)),
    };
    let [at, expertsAt] = [0, 0];
    for (const response of responses) {
      const { tokens, logProbs, experts, size } = response;
      if (versions) response.writeVersions(taken.versions, at);
      taken.tokens.set(size === tokens.length ? tokens : tokens.subarray(0, size), at);
      taken.logProbs.set(size === logProbs.length ? logProbs : logProbs.subarray(0, size), at);
      at += size;
      if (experts === null) continue;
      taken.routedExperts.set(experts, expertsAt);
      expertsAt += experts.length;
    }
    return taken;
  }

  /** Nobody wants the responses of this batch; what is still to come of them is dropped. */
  drop(firstId: number): void {
    const batch = this.batches.get(firstId);
    if (batch === undefined) return;
    batch.responses = null;
    if (batch.left === 0) this.forget(firstId);
  }

  /** Adds those of the batch to the images of the commands. */
  private submit(batch: BatchSubmission, all: NativeImage[]): NativeRolloutRequest[] {
    const { images: own } = batch;
    const before = all.length;
    for (const image of own?.all ?? []) all.push(image);
    const { firstId, prompts, promptLens, samples, seeds, priority, keeps, versions, maxTokens } = batch;
    const { maxNewTokens } = batch.sampling;
    const requests: NativeRolloutRequest[] = [];
    let start = 0;
    for (const [i, length] of promptLens.entries()) {
      const prompt = prompts.subarray(start, start + length);
      start += length;
      const room = roomFor(length, { maxNewTokens, maxTokens });
      const sampling = room === maxNewTokens ? batch.sampling : { ...batch.sampling, maxNewTokens: room };
      const images =
        own === null
          ? NO_IMAGES
          : own.indices.subarray(own.offsets[i], own.offsets[i + 1]).map((image) => before + image);
      for (let k = samples[i] as number; k > 0; k--) {
        const place = requests.length;
        const seedAndSalt = BigUint64Array.of(seeds[place] as bigint, 0n);
        requests.push({ id: firstId + place, prompt, sampling, seedAndSalt, priority, images });
      }
    }
    const responses = keeps ? requests.map(() => new GrowingResponse()) : null;
    const count = requests.length;
    this.firstIds.push(firstId);
    this.batches.set(firstId, { firstId, count, left: count, versions, responses });
    return requests;
  }

  private sorted(all: readonly NativeRolloutOutput[]): Pick<RolloutTurn, 'outputs' | 'ended'> {
    const outputs: NativeRolloutOutput[] = [];
    const ended = new Map<number, EndedRequests>();
    for (const output of all) {
      const batch = this.batchOf(output.id);
      const ends = output.error !== null || output.finish !== 'none';
      if (batch !== null && ends) this.ends(batch);
      if (batch === null || output.error !== null) {
        outputs.push(output);
        continue;
      }
      const { firstId } = batch;
      const place = output.id - firstId;
      const response = batch.responses?.[place];
      response?.append(output);
      if (!ends) continue;
      const of = ended.get(firstId) ?? { firstId, places: [], lengths: [], expertBytes: [] };
      ended.set(firstId, of);
      of.places.push(place);
      of.lengths.push(response?.size ?? 0);
      of.expertBytes.push(response?.experts?.length ?? 0);
    }
    return { outputs, ended: [...ended.values()] };
  }

  private ends(batch: KeptBatch): void {
    batch.left--;
    if (batch.left === 0 && batch.responses === null) this.forget(batch.firstId);
  }

  /** There may be thousands of small ones. */
  private batchOf(id: number): KeptBatch | null {
    let [low, high] = [0, this.firstIds.length];
    while (low < high) {
      const middle = (low + high) >> 1;
      if ((this.firstIds[middle] as number) <= id) low = middle + 1;
      else high = middle;
    }
    const batch = this.batches.get(this.firstIds[low - 1] ?? -1);
    return batch !== undefined && id < batch.firstId + batch.count ? batch : null;
  }

  private forget(firstId: number): void {
    this.batches.delete(firstId);
    this.firstIds.splice(this.firstIds.indexOf(firstId), 1);
  }
}
