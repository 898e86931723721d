// The requests of one rank: turns of its engine follow each other for as long as there are any.
import { types } from 'node:util';
import { badOption } from '../../base/check_options';
import { show } from '../../base/text';
import { ImageTable } from '../../engine/image_batch';
import { TroupeError } from '../../errors';
import type { NativeRolloutOutput, NativeRolloutStats } from '../../native/bridge';
import type { RolloutCommands, RolloutTurn } from '../../worker/kept_responses';
import type { BatchShare } from './live_batch';
import { type LiveRequest, requestError } from './live_request';
import { NativeRequests } from './native_request';

/** Steps of a turn begin within so many milliseconds. */
const TURN_MS = 40;
/** Turns under way: the engine finds the next one when it has ended one. */
const TURNS = 2;

export interface RankCalls {
  turn(commands: RolloutCommands): Promise<RolloutTurn>;
  /** Whether turns may be made now; otherwise `wake` is called when they may. */
  ready(): boolean;
  /** Whether requests can be given up while turns may not be made: the engine is there, and waits for weights. */
  hears(): boolean;
  /** The weights were not at hand for a turn. */
  lost(): void;
  /** So many requests have ended. */
  left(count: number): void;
  /** No turn is under way: nothing is left to do, or turns may not be made now. */
  rests(): void;
}

export class RankLoop {
  stats: NativeRolloutStats | null = null;
  private readonly live = new Map<number, LiveRequest>();
  /** Of batches, by the id of their first request. */
  private readonly shares = new Map<number, BatchShare>();
  private readonly native = new NativeRequests();
  /** Of the requests in `commands`. */
  private images = new ImageTable();
  private commands: RolloutCommands = none();
  private underWay = 0;
  /** The engine has nothing to do until something is said to it. */
  private resting = false;

  constructor(private readonly calls: RankCalls) {}

  get size(): number {
    let size = this.live.size;
    for (const { left } of this.shares.values()) size += left;
    return size;
  }

  get busy(): boolean {
    return this.underWay > 0;
  }

  submit(request: LiveRequest): void {
    const images = Int32Array.from(request.request.images ?? [], (image) => this.images.add(image));
    this.commands.submit.push({ ...this.native.of(request), images });
    this.live.set(request.id, request);
  }

  /** `firstId`: ids of the share's requests begin here. */
  submitShare(share: BatchShare, firstId: number): void {
    this.shares.set(firstId, share);
    this.commands.batches.push(share.submission(firstId));
  }

  abort(ids: readonly number[]): void {
    for (const id of ids) if (this.live.has(id) || this.shareOf(id) !== null) this.commands.abort.push(id);
    this.wake();
  }

  abortAll(): void {
    this.abort(this.openIds());
  }

  /** Makes turns as long as there is something to do. */
  wake(): void {
    const said = (): boolean => {
      const { submit, batches, abort, masks } = this.commands;
      return submit.length + batches.length + abort.length + masks.length > 0;
    };
    const due = (): boolean =>
      this.calls.ready()
        ? said() || (this.size > 0 && !this.resting)
        : this.commands.abort.length > 0 && this.calls.hears();
    while (this.underWay < TURNS && due()) void this.turn();
    if (this.underWay === 0) this.calls.rests();
  }

  /** Of everything: what the engine has of it is given up with the next turn. */
  fail(error: unknown): void {
    const abort = [...this.commands.abort, ...this.openIds()];
    this.commands = { ...none(), abort };
    this.images = new ImageTable();
    for (const request of [...this.live.values()]) {
      request.fail(error);
      this.drop(request);
    }
    const shares = [...this.shares.values()];
    this.shares.clear();
    for (const share of shares) this.calls.left(share.lost(error));
  }

  private openIds(): number[] {
    const ids = [...this.live.keys()];
    // Not by spread: a share may have more requests than a call has arguments.
    for (const share of this.shares.values()) for (const id of share.openIds()) ids.push(id);
    return ids;
  }

  private async turn(): Promise<void> {
    const commands = { ...this.commands, images: this.images.all };
    this.commands = none();
    this.images = new ImageTable();
    this.resting = false;
    this.underWay++;
    try {
      const { outputs, ended, stats, ready, idle } = await this.calls.turn(commands);
      this.stats = stats;
      for (const output of outputs) this.take(output);
      for (const requests of ended) {
        const share = this.shares.get(requests.firstId);
        if (share !== undefined) this.ended(share, share.take(requests));
      }
      if (!ready) this.calls.lost();
      // A turn behind this one may have been told more.
      else if (this.underWay === 1) this.resting = idle;
    } catch (error) {
      this.fail(error);
    } finally {
      this.underWay--;
      this.wake();
    }
  }

  private take(output: NativeRolloutOutput): void {
    const request = this.live.get(output.id);
    if (request === undefined) {
      const share = this.shareOf(output.id);
      // Only errors come of the requests of a batch one by one.
      if (share !== null && output.error !== null)
        this.ended(share, share.failed(output.id, requestError(output.error, output.nonFinite)));
      return;
    }
    const progress = request.take(output);
    if (progress === 'stopped') this.commands.abort.push(request.id);
    if (progress !== 'runs') this.drop(request);
    else if (output.needsMask) void this.mask(request, output.tokens);
  }

  private async mask(request: LiveRequest, tokens: Int32Array): Promise<void> {
    try {
      const words: unknown = await request.sampling.constraint?.next(tokens);
      if (request.ended) return;
      if (words !== null && !types.isUint32Array(words))
        throw badOption('rollout', `constraint: next: expected a Uint32Array or null but got ${show(words)}`);
      if (words?.every((word) => word === 0))
        throw new TroupeError('INVALID_ARGUMENT', '[rollout] the constraint allows no token');
      this.commands.masks.push({ id: request.id, words: Int32Array.from(words ?? []) });
    } catch (error) {
      if (this.live.has(request.id)) this.commands.abort.push(request.id);
      // Anything may be thrown, null and texts too, and who waits for the result wants an error.
      const known = types.isNativeError(error) || error instanceof Error;
      request.fail(
        known ? error : badOption('rollout', `constraint: next threw ${show(error)}, which is no error`),
      );
      this.drop(request);
    }
    this.wake();
  }

  private drop(request: LiveRequest): void {
    if (this.live.delete(request.id)) this.calls.left(1);
  }

  private ended(share: BatchShare, count: number): void {
    if (share.left === 0) this.shares.delete(share.firstId);
    this.calls.left(count);
  }

  private shareOf(id: number): BatchShare | null {
    for (const share of this.shares.values()) if (share.has(id)) return share;
    return null;
  }
}

const none = (): RolloutCommands => ({
  images: [],
  submit: [],
  batches: [],
  abort: [],
  masks: [],
  milliseconds: TURN_MS,
});
