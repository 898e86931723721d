// Responses that are worked on while the policy learns: a bounded queue of prompts, from which steps take what is done.
import { checkSomeWorked } from '../agent/collect';
import type { Trajectory } from '../agent/trajectory/trajectory';
import { StoppableTimers } from '../base/stoppable_timers';
import type { Asynchrony } from '../config/derived/asynchrony';
import { type CollectContext, type Collector, type Phase, scored, type Taken } from './collect';
import { differs, tooFew } from './dynamic_sampling';
import { collectGroup } from './group_rollout';
import { DraftMetrics } from './metrics/draft_metrics';
import { addSummary, type Metrics } from './metrics/metrics';
import { offPolicyMetrics } from './metrics/off_policy_metrics';
import { newestEpoch, type PromptStream, type StreamedPrompt } from './prompt_stream';
import { type QueuedGroup, ReplayQueue, type TakenGroup } from './replay_queue';
import { concatScored, type Scored } from './rollout';
import type { Position } from './session';

/** The share of a step in which no response was worked on. */
export const ROLLOUT_IDLE = 'rollouter/idle_ratio';

/** A prompt's scored responses. */
interface Done {
  scored: Scored;
  trajectories: readonly Trajectory[];
}

type Group = QueuedGroup<StreamedPrompt, Done>;

/** What no step learns from. */
const noneEvicted = () => ({
  /** Steps that prompts had seen which were not done in time. */
  stale: [] as number[],
  /** Prompts whose responses are alike. */
  filtered: 0,
  tokens: 0,
  /** Of reward functions. */
  failures: 0,
  trajectories: [] as Trajectory[],
});

export interface AsyncOptions extends Asynchrony {
  /** Steps of the whole run. */
  totalSteps: number;
  /** Batches of one pass over the data. */
  batchesPerEpoch: number;
}

/**
 * Before a step takes the oldest prompts that are done, so many are begun that all which were, less what was taken or left out, are one step's and `ahead` more: nothing is
 * begun between two steps, so that what a step waits for was begun with the newest weights or those of the steps before. With nothing ahead
 * that is what {@link BatchCollector} does, to the last bit.
 */
export class AsyncCollector implements Collector {
  private readonly queue: ReplayQueue<StreamedPrompt, Done>;
  private readonly stop = new AbortController();
  /** Each for one group; none of them rejects. */
  private readonly works = new Set<Promise<void>>();
  /** Of groups that are worked on: what ends one of them. */
  private readonly givenUp = new Map<Group, AbortController>();
  private failure: { error: unknown } | null = null;
  private wake: () => void = () => undefined;
  /** Milliseconds since the last step took its own in which nothing was worked on. */
  private idle = 0;
  private idleSince: number | null = performance.now();
  private takenAt = performance.now();
  private paused = false;
  /** Of trajectories: they stand still while their engine does. */
  private readonly timers = new StoppableTimers();
  private readonly drafts: DraftMetrics;
  /** Since the last step took its own. */
  private evicted = noneEvicted();
  /** Prompts in a row, of these and earlier steps, whose responses are alike; and of the last of them, those whose agent always failed. */
  private fruitless = { prompts: 0, failed: [] as (readonly Trajectory[])[] };

  constructor(
    private readonly context: CollectContext,
    private readonly stream: PromptStream,
    private readonly options: AsyncOptions,
  ) {
    this.drafts = new DraftMetrics(context.engines.rollout);
    const { data } = context.config;
    const { ahead, maxSpan, strategy, totalSteps } = options;
    this.queue = new ReplayQueue({
      wanted: data.train_batch_size,
      ahead,
      maxSpan,
      strategy,
      lastStep: totalSteps,
    });
  }

  async take(step: number, phase: Phase, pause: () => void): Promise<Taken> {
    const { taken, whole } = await phase('gen', async () => {
      const taken = await this.next(step, pause);
      return { taken, whole: concatScored(taken.map(({ result }) => result.scored)) };
    });
    pause();
    for (const { prompt } of taken) this.stream.done(prompt);
    const trajectories = taken.flatMap(({ result }) => result.trajectories);
    const { agents } = this.context;
    if (agents) checkSomeWorked(agents.agent, trajectories);
    const { critic_warmup: firstUpdate } = this.context.config.trainer;
    const metrics = {
      ...offPolicyMetrics(whole.batch, this.version, firstUpdate),
      ...this.evictions(taken.length),
    };
    const { evicted } = this;
    this.evicted = noneEvicted();
    // What was left out has been generated and scored, too.
    const failures = whole.rewards.failures + evicted.failures;
    return {
      prompts: taken.map(({ prompt }) => prompt.prompt),
      epoch: newestEpoch(taken.map(({ prompt }) => prompt)),
      scored: { ...whole, rewards: { ...whole.rewards, failures } },
      metrics,
      timings: { [ROLLOUT_IDLE]: this.idleRatio(), ...(await this.drafts.take()) },
      generatedTokens: whole.batch.numResponseTokens + evicted.tokens,
      trajectories: [...trajectories, ...evicted.trajectories],
    };
  }

  nudge(): void {
    this.wake();
  }

  async beforeLearning(): Promise<void> {
    if (!this.options.colocated) return;
    this.timers.stop();
    await this.context.engines.rollout.pause('preempt');
    this.paused = true;
    this.watch();
  }

  async learnt(): Promise<void> {
    if (!this.options.colocated) return;
    await this.context.engines.rollout.resume();
    this.timers.go();
    this.paused = false;
    this.watch();
  }

  position(): Pick<Position, 'loader' | 'queue'> {
    return this.stream.position();
  }

  async close(): Promise<void> {
    const ended = new Error('the run has ended');
    this.failure ??= { error: ended };
    this.stop.abort(ended);
    this.wake();
  }

  async settled(): Promise<void> {
    await Promise.all(this.works);
  }

  private get version(): number {
    return this.context.engines.rollout.version;
  }

  /** The oldest prompts that are done, when there are as many as a step takes. */
  private async next(step: number, pause: () => void): Promise<TakenGroup<StreamedPrompt, Done>[]> {
    this.dropStale(step);
    for (;;) {
      // There before anything is looked at, so that what ends behind the look is not waited for in vain.
      const woken = new Promise<void>((resolve) => {
        this.wake = resolve;
      });
      await this.fill(step);
      pause();
      if (this.queue.ready(step)) return this.queue.take();
      await woken;
    }
  }

  private throwIfFailed(): void {
    if (this.failure !== null) throw this.failure.error;
  }

  private async fill(step: number): Promise<void> {
    for (;;) {
      // Prompts may be left out as fast as they are begun.
      this.throwIfFailed();
      this.throwIfHopeless();
      if (this.queue.room(step) <= 0) break;
      const prompt = await this.stream.next();
      const work = this.work(this.queue.begin(prompt, step));
      this.works.add(work);
      void work.finally(() => this.works.delete(work));
    }
    this.watch();
  }

  private async work(group: Group): Promise<void> {
    const own = new AbortController();
    this.givenUp.set(group, own);
    const signal = AbortSignal.any([this.stop.signal, own.signal]);
    try {
      const collected = await collectGroup(this.context, group.prompt, { signal, timers: this.timers });
      const result = await scored(this.context, collected);
      if (own.signal.aborted) return;
      const done = { scored: result, trajectories: collected.trajectories ?? [] };
      if (this.teaches(result)) {
        this.fruitless = { prompts: 0, failed: [] };
        this.queue.finish(group, done);
      } else this.filter(group, done);
    } catch (error) {
      if (!own.signal.aborted) this.failure ??= { error };
    } finally {
      this.givenUp.delete(group);
      this.watch();
      this.wake();
    }
  }

  /** Dynamic sampling: a prompt whose responses all earn the same makes room for another one. */
  private teaches(result: Scored): boolean {
    const { algorithm, reward } = this.context.config;
    const { enable, metric } = algorithm.filter_groups;
    return !enable || metric === null || differs(result, { metric, onError: reward.on_error });
  }

  private filter(group: Group, done: Done): void {
    this.queue.leaveOut(group);
    this.evict(group.prompt, done);
    this.evicted.filtered++;
    this.fruitless.prompts++;
    const { trajectories } = done;
    const failed = trajectories.length > 0 && trajectories.every(({ error }) => error !== null);
    this.fruitless.failed = failed ? [...this.fruitless.failed, trajectories] : [];
  }

  /** Dynamic sampling: no step finds as many prompts as it takes where agents always fail, or where none teaches anything. */
  private throwIfHopeless(): void {
    const { data, algorithm } = this.context.config;
    const { train_batch_size: wanted, gen_batch_size: perBatch } = data;
    const { metric, max_num_gen_batches: most } = algorithm.filter_groups;
    const { prompts: fruitless, failed } = this.fruitless;
    const { done: kept } = this.queue;
    if (metric === null || kept >= wanted) return;
    const { agents } = this.context;
    if (agents && failed.length >= perBatch) checkSomeWorked(agents.agent, failed.flat());
    const prompts = kept + this.evicted.filtered;
    const all = { batches: Math.ceil(prompts / perBatch), prompts, kept };
    const limit = { wanted, metric, maxGenBatches: most };
    if (most > 0 && wanted + this.evicted.filtered > most * perBatch)
      throw tooFew(all, limit, 'max_num_gen_batches');
    if (fruitless >= Math.max(this.options.batchesPerEpoch, 1) * perBatch)
      throw tooFew(all, limit, 'a whole epoch');
  }

  /** Nobody learns from it. */
  private evict(prompt: StreamedPrompt, { scored: { batch, rewards }, trajectories }: Done): void {
    this.stream.done(prompt);
    this.evicted.tokens += batch.numResponseTokens;
    this.evicted.failures += rewards.failures;
    for (const trajectory of trajectories) this.evicted.trajectories.push(trajectory);
  }

  private dropStale(step: number): void {
    for (const group of this.queue.dropStale(step)) {
      this.evicted.stale.push(step - group.step + 1);
      if (group.result !== null) {
        this.evict(group.prompt, group.result);
        continue;
      }
      this.stream.done(group.prompt);
      this.givenUp.get(group)?.abort(new Error('it would come too late'));
    }
  }

  /** What was left out since the last step, under verl's names, and of dynamic sampling ours. */
  private evictions(taken: number): Metrics {
    const { stale, filtered } = this.evicted;
    const metrics: Metrics = {};
    if (stale.length > 0) metrics['training/off_policy/evicted_samples'] = stale.length;
    addSummary(metrics, 'training/off_policy/evicted_samples_staleness', stale);
    if (!this.context.config.algorithm.filter_groups.enable) return metrics;
    const all = taken + filtered;
    return {
      ...metrics,
      'training/filter_groups/evicted_samples': filtered,
      'train/num_gen_prompts': all,
      'train/kept_prompt_ratio': taken / all,
    };
  }

  /** Notes when work stops and begins. */
  private watch(): void {
    const works = !this.paused && this.queue.running > 0;
    const now = performance.now();
    if (works && this.idleSince !== null) {
      this.idle += now - this.idleSince;
      this.idleSince = null;
    } else if (!works) this.idleSince ??= now;
  }

  /** The share of the time since the last step took its own in which nothing was worked on. */
  private idleRatio(): number {
    const now = performance.now();
    const idle = this.idle + (this.idleSince === null ? 0 : now - this.idleSince);
    const ratio = idle / Math.max(now - this.takenAt, 1e-3);
    this.takenAt = now;
    this.idle = 0;
    if (this.idleSince !== null) this.idleSince = now;
    return ratio;
  }
}
