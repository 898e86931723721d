// Our own engine in the worker processes of a role: every rank, or the ranks that hold a model together, serves requests of its own.
import {
  badOption,
  checkOptionNames,
  choiceOption,
  countOption,
  flagOption,
  numberOption,
} from '../../base/check_options';
import { RUN_LIMITS } from '../../base/limits';
import { oneToAll } from '../../controller/dispatch';
import { Tokenizer } from '../../data/tokenizer';
import type { RoleEngine } from '../../engine/role_engine';
import { expertBytes } from '../../engine/routed_experts';
import { TroupeError } from '../../errors';
import type {
  NativeQuantization,
  NativeRolloutCommands,
  NativeRolloutOptions,
  NativeRolloutStats,
  NativeRolloutTurn,
} from '../../native/bridge';
import { RequestChecks } from '../check_request';
import type { PauseMode, RolloutEngine, RolloutHandle, RolloutStats, WeightSource } from '../engine';
import type { RolloutRequest } from '../request';
import { LiveRequest } from './live_request';
import { Placement } from './placement';
import { RankLoop } from './rank_loop';
import { StopStrings } from './stop_strings';

/** None of them changes a token, but the last. */
export interface NativeRolloutConfig {
  /** Requests that run at the same time on a rank, 256. */
  maxNumSeqs?: number;
  /** Tokens of a step, prompts and decodes together, 8192. */
  maxNumBatchedTokens?: number;
  /** Tokens of a prompt and its response; default: the positions of the model. */
  maxModelLen?: number;
  /** Share of the device's memory for keys and values, less what is in use, 0.5; on a CPU a quarter of it, shared by the ranks. */
  gpuMemoryUtilization?: number;
  /** Bytes for keys and values of a rank, in place of a share. */
  kvCacheBytes?: number;
  /** Cut prompts over steps, true. */
  enableChunkedPrefill?: boolean;
  /** Keep what was computed for later requests that begin alike, true. */
  enablePrefixCaching?: boolean;
  /** Give the memory of keys and values, and of the weights in the form for decoding, back whenever nothing runs, true. */
  freeCacheEngine?: boolean;
  /**
   * Weights of the layers with 8 bits and a scale per output, without embeddings and head: whole numbers, or floating point (e4m3). Default: the
   * compute dtype. Not of mixtures of experts.
   */
  quantization?: 'int8' | 'fp8';
  /** Also say which experts of a mixture the tokens went to, false: `routedExperts` of results, and that column of batches. */
  routedExperts?: boolean;
}

const KEYS = [
  'maxNumSeqs',
  'maxNumBatchedTokens',
  'maxModelLen',
  'gpuMemoryUtilization',
  'kvCacheBytes',
  'enableChunkedPrefill',
  'enablePrefixCaching',
  'freeCacheEngine',
  'quantization',
  'routedExperts',
];

const PAGE_POSITIONS = 32;

function nativeOptions(engine: RoleEngine, o: NativeRolloutConfig): NativeRolloutOptions {
  const where = 'rollout options';
  checkOptionNames(where, o, KEYS);
  const ranks = engine.device === 'cpu' ? engine.group.worldSize : 1;
  const utilization = numberOption(where, 'gpuMemoryUtilization', o.gpuMemoryUtilization, 0.5, {
    above: 0,
    max: 1,
  });
  return {
    maxSequences: countOption(where, 'maxNumSeqs', o.maxNumSeqs, RUN_LIMITS.sequences, 256),
    maxStepTokens: countOption(where, 'maxNumBatchedTokens', o.maxNumBatchedTokens, RUN_LIMITS.tokens, 8192),
    maxPositions: numberOption(where, 'maxModelLen', o.maxModelLen, engine.model.config.maxPositions, {
      integer: true,
      min: 2,
      max: engine.model.config.maxPositions,
    }),
    kvCacheBytes: numberOption(where, 'kvCacheBytes', o.kvCacheBytes, 0, { integer: true, min: 0 }),
    memoryShare: utilization / ranks,
    chunkedPrefill: flagOption(where, 'enableChunkedPrefill', o.enableChunkedPrefill, true),
    prefixCaching: flagOption(where, 'enablePrefixCaching', o.enablePrefixCaching, true),
    quantization: quantizationOf(where, engine, o.quantization),
    routedExperts: routedExpertsOf(where, engine, o.routedExperts),
  };
}

function routedExpertsOf(where: string, { model }: RoleEngine, given: unknown): boolean {
  const wanted = flagOption(where, 'routedExperts', given, false);
  if (wanted) expertBytes(`${where}.routedExperts`, model.config);
  return wanted;
}

function quantizationOf(where: string, { model }: RoleEngine, given: unknown): NativeQuantization {
  if (given === undefined) return 'none';
  if (model.config.moe !== null)
    throw badOption(
      where,
      'quantization: the weights of mixtures of experts cannot be quantised: leave it out',
    );
  return choiceOption(where, 'quantization', given, ['int8', 'fp8'], 'int8');
}

export class NativeRollout implements RolloutEngine {
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
  private opened: NativeRolloutStats[] | null = null;
  private paused = false;
  private closed = false;
  /** Submitted in a pause. */
  private held: LiveRequest[] = [];
  private waiters: (() => void)[] = [];
  private scheduled = false;
  private tokenizer: Tokenizer | null = null;
  private readonly checks = new RequestChecks();
  private readonly onAbort = (request: LiveRequest): void => this.abort(request);

  constructor(
    private readonly engine: RoleEngine,
    config: NativeRolloutConfig = {},
  ) {
    this.options = nativeOptions(engine, config);
    this.freesCache = config.freeCacheEngine ?? true;
    const { group, name } = engine;
    // Ranks that share every matrix, or the layers, make the same turns, and the first one speaks for them.
    const turn = async (
      together: readonly number[],
      commands: NativeRolloutCommands,
    ): Promise<NativeRolloutTurn> => {
      const turns = await Promise.all(
        together.map((rank) => group.callRank(rank, name, 'rolloutTurn', [commands])),
      );
      return turns[0] as NativeRolloutTurn;
    };
    this.groups = engine.generatingRanks;
    this.placement = new Placement(this.groups.length);
    this.ranks = this.groups.map(
      (together, rank) =>
        new RankLoop({
          turn: (commands) => turn(together, commands),
          ready: () => this.begun && !this.paused,
          lost: () => {
            this.begun = false;
          },
          left: () => this.placement.left(rank),
          rests: () => this.settled(),
        }),
    );
  }

  get version(): number {
    return this.current;
  }

  get maxTokens(): number {
    return this.options.maxPositions;
  }

  get maxConcurrency(): number {
    return this.options.maxSequences * this.ranks.length;
  }

  submit(request: RolloutRequest): RolloutHandle {
    this.engine.checkOpen();
    if (this.closed) throw new TroupeError('CLOSED', '[rollout] the engine is closed');
    const { config, eosTokenIds } = this.engine.model;
    const model = { vocabSize: config.vocabSize, maxTokens: this.maxTokens, eosTokenIds };
    const sampling = this.checks.check(request, model);
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
      request,
      stops,
      this.onAbort,
    );
    this.held.push(live);
    this.schedule();
    return live;
  }

  async pause(mode: PauseMode): Promise<void> {
    if (mode === 'wait') await this.until(() => this.held.length + this.size === 0 && !this.busy);
    this.paused = true;
    if (mode === 'abort') {
      for (const request of this.held) request.finish('abort');
      this.held = [];
      this.paused = false;
      for (const rank of this.ranks) for (const request of rank.requests()) rank.abort(request);
      await this.until(() => this.size === 0 && !this.busy);
      this.paused = true;
    }
    await this.until(() => !this.busy);
    await this.park();
  }

  async resume(): Promise<void> {
    this.paused = false;
    this.schedule();
  }

  async updateWeights(source: WeightSource, version: number): Promise<void> {
    if (source.kind === 'directory') await this.engine.reload(source.path);
    this.current = version;
    // The next turn begins with them.
    this.begun = false;
    for (const rank of this.ranks) rank.wake();
    this.schedule();
  }

  async stats(): Promise<RolloutStats> {
    const all = this.ranks.map(
      ({ stats }, rank) => stats ?? this.opened?.[this.groups[rank]?.[0] as number] ?? null,
    );
    const sum = (pick: (stats: NativeRolloutStats) => number): number =>
      all.reduce((total, stats) => total + (stats === null ? 0 : pick(stats)), 0);
    const running = sum((stats) => stats.running);
    return {
      running,
      waiting: Math.max(0, this.size + this.held.length - running),
      cachePositions: PAGE_POSITIONS * sum(({ pages }) => pages),
      cachePositionsUsed: PAGE_POSITIONS * sum(({ pagesHeld }) => pagesHeld),
      promptTokens: sum(({ promptTokens }) => promptTokens),
      cachedPromptTokens: sum(({ cachedPromptTokens }) => cachedPromptTokens),
      generatedTokens: sum(({ generatedTokens }) => generatedTokens),
      preemptions: sum(({ preemptions }) => preemptions),
      version: this.current,
    };
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

  private get busy(): boolean {
    return this.beginning !== null || this.ranks.some((rank) => rank.busy);
  }

  /** What the cache can never hold; known once the engines have been opened. */
  private checkFits(positions: number): void {
    if (this.opened === null) return;
    const pages = Math.min(...this.opened.map((stats) => stats.pages));
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
    if (request.rank !== null) this.ranks[request.rank]?.abort(request);
    // Nothing is asked of the workers in a pause: it ends here, and there when they go on.
    if (this.paused) request.finish('abort');
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
    if (this.paused) return;
    for (const request of this.held) {
      request.rank = this.placement.place(request);
      this.ranks[request.rank]?.submit(request);
    }
    this.held = [];
    if (this.size === 0) return;
    if (this.begun) {
      for (const rank of this.ranks) rank.wake();
    } else {
      this.begin();
    }
  }

  /** Brings the weights into the form that steps need: all ranks together. */
  private begin(): void {
    if (this.beginning !== null) return;
    const { group, name } = this.engine;
    const begin = async (): Promise<void> => {
      this.opened ??= await oneToAll(group, name, 'openRollout', [this.options]);
      await oneToAll(group, name, 'beginRollout', [this.current, false]);
      this.begun = true;
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

  /** A rank has come to rest, perhaps because the weights are not at hand. */
  private settled(): void {
    const waiters = this.waiters;
    this.waiters = [];
    for (const waiter of waiters) waiter();
    if (this.paused || this.busy) return;
    if (this.size > 0) {
      if (!this.begun) this.begin();
    } else if (this.held.length === 0 && this.freesCache && this.begun) {
      void this.park().catch(() => undefined);
    }
  }

  private async park(): Promise<void> {
    if (!this.begun) return;
    this.begun = false;
    await oneToAll(this.engine.group, this.engine.name, 'parkRollout', []);
  }

  private async until(condition: () => boolean): Promise<void> {
    while (!condition()) {
      if (!this.busy && this.size + this.held.length > 0 && !this.paused) this.schedule();
      await new Promise<void>((resolve) => this.waiters.push(resolve));
    }
  }
}
