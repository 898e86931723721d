// Our own engine in the worker processes of a role: every rank, or the ranks that hold a model together, serves requests of its own.
import { badOption } from '../../base/check_options';
import { roomFor } from '../../base/response_room';
import { reasonOf } from '../../base/text';
import type { Batch } from '../../batch/batch';
import { ColumnMemory } from '../../batch/column_memory';
import { oneToAll } from '../../controller/dispatch';
import { Tokenizer } from '../../data/tokenizer';
import type { RoleEngine } from '../../engine/role_engine';
import { TroupeError } from '../../errors';
import type { NativeRolloutOptions, NativeRolloutStats } from '../../native/bridge';
import type { RolloutCommands, RolloutTurn, TakenResponses } from '../../worker/kept_responses';
import { checkBatchRequest, checkPause, checkWeights } from '../check_calls';
import { asSubmitted, type ModelBounds, RequestChecks, type SharedSampling } from '../check_request';
import type {
  BatchRequest,
  PauseMode,
  RolloutEngine,
  RolloutHandle,
  RolloutStats,
  WeightSource,
} from '../engine';
import type { RolloutRequest } from '../request';
import { type BatchCalls, type BatchShare, LiveBatch } from './live_batch';
import { LiveRequest } from './live_request';
import { boundsOf, type NativeRolloutConfig, nativeOptions } from './native_options';
import { nativeSampling } from './native_request';
import { joined, Placement } from './placement';
import { RankLoop } from './rank_loop';
import { StopStrings } from './stop_strings';
import { PAGE_POSITIONS, summedStats } from './summed_stats';
import { takeWeights } from './take_weights';

export class NativeRollout implements RolloutEngine {
  readonly bounds: ModelBounds;
  private readonly options: NativeRolloutOptions;
  private readonly freesCache: boolean;
  /** Ranks of the workers that serve the same requests together; what is called a rank here is one of these groups. */
  private readonly groups: number[][];
  private readonly ranks: RankLoop[];
  private readonly placement: Placement;
  private nextId = 1;
  private current = 0;
  /** The weights are in the form that steps need, on every rank. */
  private begun = false;
  private beginning: Promise<void> | null = null;
  /** Updates of the weights that have begun, and that are under way: nothing is begun with weights of which the version is not known. */
  private updates = 0;
  private updating = 0;
  private opened: NativeRolloutStats[] | null = null;
  /** draining: turns are made for what runs, and nothing new is admitted. */
  private state: 'open' | 'draining' | 'paused' = 'open';
  private closed = false;
  /** Submitted in a pause, or just now. */
  private held: LiveRequest[] = [];
  private heldBatches: LiveBatch[] = [];
  private readonly waiters: (() => void)[] = [];
  private scheduled = false;
  private tokenizer: Tokenizer | null = null;
  private readonly checks = new RequestChecks();
  private readonly onAbort = (request: LiveRequest): void => this.abort(request);

  constructor(
    private readonly engine: RoleEngine,
    config: NativeRolloutConfig = {},
  ) {
    this.options = nativeOptions(engine, config);
    this.bounds = boundsOf(engine, this.options, config);
    this.freesCache = config.freeCacheEngine ?? true;
    const { group, name } = engine;
    // Ranks that share every matrix, or the layers, make the same turns, and the first one speaks for them.
    const turn = async (together: readonly number[], commands: RolloutCommands): Promise<RolloutTurn> => {
      const batches = commands.batches.map((batch) => ({ ...batch, keeps: false }));
      const turns = await group.callRanks(together, name, 'rolloutTurn', (rank) => [
        rank === together[0] ? commands : { ...commands, batches },
      ]);
      return turns[0] as RolloutTurn;
    };
    this.groups = joined(engine.generatingRanks, this.options.tensorParallel);
    this.placement = new Placement(this.groups.length);
    this.ranks = this.groups.map(
      (together, rank) =>
        new RankLoop({
          turn: (commands) => turn(together, commands),
          ready: () => this.begun && this.state !== 'paused',
          hears: () => this.opened !== null && this.awaitsWeights && this.state !== 'paused',
          lost: () => {
            this.begun = false;
          },
          left: (count) => this.placement.left(rank, count),
          rests: () => this.settled(),
        }),
    );
  }

  get version(): number {
    return this.current;
  }

  /** What the cache has room for may be less than the positions; known once the engines have been opened. The last token is not kept. */
  get maxTokens(): number {
    return Math.min(this.options.maxPositions, this.cachePages * PAGE_POSITIONS + 1);
  }

  get maxConcurrency(): number {
    return this.options.maxSequences * this.ranks.length;
  }

  submit(request: RolloutRequest): RolloutHandle {
    this.checkOpen();
    const sampling = this.checks.check(request, this.bounds);
    if (request.grammar !== undefined)
      throw badOption(
        'rollout',
        `grammar: this engine takes constraints: turn the ${request.grammar.kind} into sampling.constraint first`,
      );
    if (this.options.routedExperts && sampling.stop.length > 0)
      throw badOption(
        'rollout',
        'stop: an engine with routedExperts ends responses by stopTokenIds alone: a text is found after the engine has gone on',
      );
    this.checkFits(request.promptIds.length + sampling.maxNewTokens - 1);
    const stops = sampling.stop.length === 0 ? null : new StopStrings(sampling.stop, this.loadedTokenizer());
    const live = new LiveRequest(
      this.nextId++,
      request.promptIds instanceof Int32Array ? request.promptIds : new Int32Array(request.promptIds),
      sampling,
      asSubmitted(request),
      stops,
      this.onAbort,
    );
    this.held.push(live);
    this.schedule();
    return live;
  }

  async submitBatch(request: BatchRequest): Promise<Batch> {
    this.checkOpen();
    checkBatchRequest(request);
    const { prompts, maxTokens = Number.POSITIVE_INFINITY } = request;
    const { maxNewTokens } = request.sampling;
    const shared = Array.from(prompts.promptLens, (length, i) => {
      const room = roomFor(length, { maxNewTokens, maxTokens });
      const sampling = room === maxNewTokens ? request.sampling : { ...request.sampling, maxNewTokens: room };
      const own = this.checks.check(
        { promptIds: prompts.prompt(i), sampling, priority: request.priority },
        this.bounds,
      );
      this.checkFits(length + room - 1);
      return own;
    })[0] as SharedSampling;
    const calls: BatchCalls = {
      abort: (rank, ids) => this.ranks[rank]?.abort(ids),
      take: (share, receive) => this.takeShare(share, receive),
      drop: (share) => this.dropShare(share),
    };
    // Whose tokens have versions are the parts of a batch: many, small, and copied into one.
    const memory = request.versions ? new ColumnMemory() : this.engine.memory;
    const live = new LiveBatch(request, nativeSampling({ ...shared, maxNewTokens }), calls, memory);
    this.heldBatches.push(live);
    this.schedule();
    return await live.result;
  }

  async pause(mode: PauseMode): Promise<void> {
    checkPause(mode);
    const is = (state: NativeRollout['state']): boolean => this.state === state;
    if (mode === 'abort') this.abortHeld();
    // What was submitted before is waited for, but what stands still in a pause is not.
    else if (mode === 'wait') this.start();
    if (mode === 'abort' || (mode === 'wait' && is('open'))) {
      this.state = 'draining';
      if (mode === 'abort') for (const rank of this.ranks) rank.abortAll();
      await this.until(() => !is('draining') || (this.size === 0 && !this.busy));
      if (is('open')) return; // somebody has resumed meanwhile
    }
    this.state = 'paused';
    await this.until(() => is('open') || !this.busy);
    if (is('open')) return;
    await this.park(mode === 'preempt' && this.freesCache);
  }

  async resume(): Promise<void> {
    this.state = 'open';
    this.settled();
    this.schedule();
  }

  async updateWeights(source: WeightSource, version: number): Promise<void> {
    checkWeights(source, version);
    this.updates++;
    this.updating++;
    this.begun = false;
    try {
      await takeWeights(this.engine, source);
      this.current = version;
    } finally {
      this.updating--;
      // The next turn begins with them.
      for (const rank of this.ranks) rank.wake();
      this.schedule();
    }
  }

  /** @throws the first cause once the workers have failed: what they said last is no answer. */
  async stats(): Promise<RolloutStats> {
    const { failure } = this.engine.group;
    if (failure !== null) throw failure;
    const all = this.ranks.map(({ stats }, rank) => stats ?? this.opened?.[this.firstOf(rank)] ?? null);
    return summedStats(all, this.size + this.heldSize, this.current);
  }

  async close(): Promise<void> {
    if (this.closed) return;
    this.closed = true;
    // Workers that are gone hold nothing.
    if (this.engine.isOpen) await this.pause('abort').catch(() => undefined);
  }

  private get size(): number {
    return this.ranks.reduce((sum, rank) => sum + rank.size, 0);
  }

  /** Requests that no rank has yet. */
  private get heldSize(): number {
    return this.heldBatches.reduce((sum, { size }) => sum + size, this.held.length);
  }

  private get busy(): boolean {
    return this.beginning !== null || this.ranks.some((rank) => rank.busy);
  }

  /** Of the rank that has fewest. */
  private get cachePages(): number {
    return this.opened === null
      ? Number.POSITIVE_INFINITY
      : Math.min(...this.opened.map((stats) => stats.pages));
  }

  private checkOpen(): void {
    // What comes while it takes new weights itself begins with these, or fails as what is under way does.
    if (this.updating === 0 || this.engine.replacement === null) this.engine.checkOpen();
    if (this.closed) throw new TroupeError('CLOSED', '[rollout] the engine is closed');
  }

  /** What the cache can never hold. */
  private checkFits(positions: number): void {
    const pages = this.cachePages;
    const needed = Math.ceil(positions / PAGE_POSITIONS);
    if (needed <= pages) return;
    throw badOption(
      'rollout',
      `the prompt and maxNewTokens need ${needed} pages of ${PAGE_POSITIONS} positions, and the cache has ${pages}: shorten the ` +
        'prompt or the response, or give the cache more memory (gpuMemoryUtilization)',
    );
  }

  private loadedTokenizer(): Tokenizer {
    this.tokenizer ??= Tokenizer.load(this.engine.model.dir);
    return this.tokenizer;
  }

  private abort(request: LiveRequest): void {
    const at = this.held.indexOf(request);
    if (at >= 0) {
      this.held.splice(at, 1);
      request.finish('abort');
      return;
    }
    if (request.rank !== null) this.ranks[request.rank]?.abort([request.id]);
    // It ends here with what has come, and there when the engine hears of it: after a step, which may take up a long prompt, or a pause. What the
    // engine says of experts at the end is of the tokens that it has made by then.
    if (this.state === 'paused' || !this.options.routedExperts) request.finish('abort');
  }

  /** All that a caller submits in one go runs together. */
  private schedule(): void {
    if (this.scheduled) return;
    this.scheduled = true;
    setImmediate(() => {
      this.scheduled = false;
      this.checks.forget();
      this.start();
    });
  }

  private start(): void {
    if (this.state === 'paused') return;
    if (this.state === 'open') this.admit();
    if (this.size === 0) return;
    if (!this.begun) this.begin();
    else for (const rank of this.ranks) rank.wake();
  }

  private admit(): void {
    for (const request of this.held.splice(0)) {
      request.rank = this.placement.place(request);
      try {
        this.ranks[request.rank]?.submit(request);
      } catch (error) {
        request.fail(badOption('rollout', `the request was changed after it was given: ${reasonOf(error)}`));
        this.placement.left(request.rank);
      }
    }
    for (const batch of this.heldBatches) {
      for (const share of batch.place(this.placement)) {
        this.ranks[share.rank]?.submitShare(share, this.nextId);
        this.nextId += share.samples.length;
      }
    }
    this.heldBatches = [];
  }

  private abortHeld(): void {
    for (const request of this.held) request.finish('abort');
    for (const batch of this.heldBatches) batch.abort();
    this.held = [];
    this.heldBatches = [];
  }

  /** Brings the weights into the form that steps need: all ranks together. */
  private begin(): void {
    if (this.beginning !== null) return;
    if (this.opened !== null && this.awaitsWeights)
      return void this.engine.replacement?.then(() => this.schedule());
    const { group, name } = this.engine;
    const begin = async (): Promise<void> => {
      // Also without weights: who is open can give requests up.
      this.opened ??= await oneToAll(group, name, 'openRollout', [this.options]);
      if (this.awaitsWeights) return;
      this.engine.checkOpen();
      const { updates, current } = this;
      await oneToAll(group, name, 'beginRollout', [current]).catch(async (error: unknown) => {
        // Where it has succeeded all the same, the weights are held for it.
        await oneToAll(group, name, 'parkRollout', [false]).catch(() => undefined);
        throw error;
      });
      this.begun = updates === this.updates;
    };
    this.beginning = begin()
      .catch((error: unknown) => {
        for (const rank of this.ranks) rank.fail(error);
      })
      .finally(() => {
        this.beginning = null;
        for (const rank of this.ranks) rank.wake();
        this.settled();
      });
  }

  /** An update is under way, or the weights are being replaced piece by piece: nothing begins before that is done. */
  private get awaitsWeights(): boolean {
    return this.updating > 0 || this.engine.replacement !== null;
  }

  /** A rank has come to rest, perhaps because the weights are not at hand. */
  private settled(): void {
    for (const waiter of this.waiters.splice(0)) waiter();
    if (this.state === 'paused' || this.busy) return;
    if (this.size > 0) {
      if (!this.begun) this.begin();
    } else if (this.heldSize === 0 && this.freesCache && this.begun) {
      void this.park().catch(() => undefined);
    }
  }

  /** `preempt`: what is running gives its part of the cache back, too. */
  private async park(preempt = false): Promise<void> {
    if (!this.begun && !(preempt && this.opened !== null)) return;
    this.begun = false;
    await oneToAll(this.engine.group, this.engine.name, 'parkRollout', [preempt]);
  }

  /** From the rank that speaks for those which made it. */
  private async takeShare(
    { rank, firstId }: BatchShare,
    receive: (taken: TakenResponses) => void,
  ): Promise<void> {
    const { group, name } = this.engine;
    let landed = false;
    const taken = await group.callRank(this.firstOf(rank), name, 'takeRollout', [firstId], (arrays) => {
      landed = true;
      receive(arrays);
    });
    if (!landed) receive(taken);
  }

  private dropShare({ rank, firstId }: BatchShare): void {
    const { group, name } = this.engine;
    // A worker that is gone has dropped it.
    group.callRank(this.firstOf(rank), name, 'dropRollout', [firstId]).catch(() => undefined);
  }

  private firstOf(rank: number): number {
    return this.groups[rank]?.[0] as number;
  }

  private async until(condition: () => boolean): Promise<void> {
    while (!condition()) {
      if (!this.busy && this.size + this.heldSize > 0) this.schedule();
      await new Promise<void>((resolve) => this.waiters.push(resolve));
    }
  }
}
