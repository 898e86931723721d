// A rollout engine over inference servers: requests go where their prefix lies, and to another server when theirs dies.
import { badOption } from '../../base/check_options';
import { printable } from '../../base/printable';
import { reasonOf } from '../../base/text';
import { timerMs } from '../../base/timers';
import { TroupeError } from '../../errors';
import { checkPause, checkWeights } from '../check_calls';
import { checkRequest } from '../check_request';
import type { PauseMode, RolloutEngine, RolloutHandle, RolloutStats, WeightSource } from '../engine';
import type { RolloutRequest } from '../request';
import { Fleet, type FleetOptions } from './fleet';
import { type Job, jobOf, serveJob } from './job';
import { JobQueue } from './job_queue';
import type { Member } from './members';
import { OtherWeights, ServerBusy, ServerLost } from './server_client';

export interface RemoteRolloutOptions extends FleetOptions {
  vocabSize: number;
  eosTokenIds: readonly number[];
}

/** A request that so many servers were lost under is what they die of. */
const MOST_FAILURES = 5;

export class RemoteRollout implements RolloutEngine {
  private readonly fleet: Fleet;
  private readonly jobs = new JobQueue();
  private readonly running = new Set<Job>();
  /** How it is paused; null: it is not. */
  private paused: PauseMode | null = null;
  /** Requests wait for servers: they are started again, or give memory back, or take it. */
  private shut = false;
  /** Until servers have been told of the pause, or of its end, that was asked for last. */
  private pausing: Promise<void> = Promise.resolve();
  private closed = false;
  private readonly counts = { promptTokens: 0, cachedPromptTokens: 0, generatedTokens: 0 };
  private readonly waiters: { done: () => boolean; tell: () => void }[] = [];

  /** Waits until all servers answer. @throws TroupeError COMM naming one that does not */
  static async connect(options: RemoteRolloutOptions): Promise<RemoteRollout> {
    const rollout = new RemoteRollout(options);
    try {
      await rollout.fleet.meet();
    } catch (error) {
      await rollout.close();
      throw error;
    }
    return rollout;
  }

  private constructor(private readonly options: RemoteRolloutOptions) {
    this.fleet = new Fleet(options, () => this.dispatch());
  }

  get version(): number {
    return this.fleet.version;
  }

  get maxTokens(): number {
    return this.fleet.maxTokens;
  }

  get maxConcurrency(): number {
    return this.options.maxConcurrency * this.fleet.size;
  }

  submit(request: RolloutRequest): RolloutHandle {
    if (this.closed) throw new TroupeError('CLOSED', '[rollout] the engine is closed');
    const { protocol, vocabSize, eosTokenIds } = this.options;
    if ((request.images ?? []).length > 0)
      throw badOption(
        'rollout',
        `${protocol.name} is sent token ids alone: expected prompts without images, which our own engine takes`,
      );
    const sampling = checkRequest(request, { vocabSize, maxTokens: this.maxTokens, eosTokenIds });
    const reason =
      sampling.constraint === undefined
        ? protocol.refusal(sampling, request.grammar ?? null)
        : 'it cannot ask this process before every token: give a grammar instead of a constraint';
    if (reason !== null) throw badOption('rollout', `${protocol.name} cannot serve this request: ${reason}`);
    const job = jobOf(request, sampling);
    const { handle } = job;
    this.counts.promptTokens += request.promptIds.length;
    const { deadlineMs } = request;
    const timer = deadlineMs === undefined ? null : setTimeout(() => handle.abort(), timerMs(deadlineMs));
    void handle.result
      .catch(() => undefined)
      .finally(() => {
        if (timer !== null) clearTimeout(timer);
        this.settle();
      });
    if (this.paused === null) this.jobs.push(job);
    else this.jobs.hold(job);
    setImmediate(() => this.dispatch());
    return handle;
  }

  async pause(asked: PauseMode): Promise<void> {
    checkPause(asked);
    const { protocol } = this.options;
    // Their caches are in nobody's way.
    const mode = asked === 'preempt' ? 'keep' : asked;
    if (mode === 'keep' && !protocol.pauses)
      throw badOption(
        'rollout',
        `pause: requests of ${protocol.name} cannot stand still: wait, or abort them`,
      );
    const kept = this.paused === 'keep';
    this.paused = mode;
    if (mode === 'keep') {
      try {
        await this.inOrder(() => this.fleet.pause());
      } catch (error) {
        await this.resume().catch(() => undefined);
        throw error;
      }
      return;
    }
    if (mode === 'abort') for (const { handle } of [...this.jobs.drain(), ...this.running]) handle.abort();
    if (kept) await this.inOrder(() => this.fleet.resume());
    this.dispatch();
    await this.until(() => this.paused !== mode || (this.running.size === 0 && this.jobs.empty));
  }

  async resume(): Promise<void> {
    const kept = this.paused === 'keep';
    this.paused = null;
    try {
      if (kept) await this.inOrder(() => this.fleet.resume());
    } finally {
      this.jobs.release();
      this.dispatch();
      this.settle();
    }
  }

  async updateWeights(source: WeightSource, version: number): Promise<void> {
    checkWeights(source, version);
    if (source.kind !== 'directory')
      throw badOption('rollout', `updateWeights: servers take weights from a directory, not ${source.kind}`);
    const { fleet } = this;
    fleet.setWeights(source.path, version);
    if (this.options.protocol.reloads && !fleet.asleep) await fleet.bringBack();
    else await this.shutFor(() => fleet.bringBack());
    // At least one serves the new weights before anything is asked of them.
    await fleet.untilOneServes();
  }

  /**
   * Servers give the memory of weights, keys and values back, until something is asked of them or new weights come; TGI ends. Nothing happens where requests
   * are there, or no weights yet to come back with.
   */
  async release(): Promise<void> {
    if (this.paused === 'keep' || this.shut || !this.fleet.hasWeights) return;
    if (this.running.size + this.jobs.size > 0) return;
    await this.shutFor(() => this.fleet.release());
  }

  async stats(): Promise<RolloutStats> {
    this.fleet.checkHope();
    return {
      running: this.running.size,
      waiting: this.jobs.size,
      cachePositions: 0,
      cachePositionsUsed: 0,
      ...this.counts,
      drafts: 0,
      draftedTokens: 0,
      acceptedTokens: 0,
      hostChoices: 0,
      preemptions: 0,
      version: this.version,
    };
  }

  async close(): Promise<void> {
    this.closed = true;
    for (const { handle } of [...this.jobs.drain(), ...this.running]) handle.abort();
    await this.fleet.close();
  }

  private dispatch(): void {
    const { hopeless } = this.fleet;
    if (hopeless !== null) for (const { handle } of this.jobs.drain()) handle.fail(hopeless);
    if (this.fleet.asleep && !this.shut && this.paused !== 'keep' && !this.jobs.empty) void this.wake();
    while (this.paused !== 'keep' && !this.shut) {
      const job = this.jobs.first;
      if (job === undefined) return;
      if (!job.handle.ended) {
        const member = this.fleet.choose(job.handle.request);
        if (member === null) return;
        void this.run(job, member);
      }
      this.jobs.shift();
    }
  }

  private async run(job: Job, member: Member): Promise<void> {
    const { handle } = job;
    const { life } = member;
    const start = job.whole ? 0 : handle.tokens.length;
    member.inFlight++;
    this.running.add(job);
    try {
      await serveJob(job, this.options, member, ({ tokens, cachedTokens = 0 }) => {
        member.busy = false;
        if (member.heard !== null) member.heard = performance.now();
        job.busySince = null;
        this.counts.generatedTokens += tokens.length;
        this.counts.cachedPromptTokens += cachedTokens;
      });
    } catch (error) {
      if (error instanceof OtherWeights && handle.ended) this.fleet.lose(member, error, life);
      if (handle.ended) return;
      if (!(error instanceof ServerLost)) {
        const known = error instanceof TroupeError;
        handle.fail(
          known
            ? error
            : new TroupeError('COMM', `[rollout] ${printable(reasonOf(error))}`, { cause: error }),
        );
      } else if (error instanceof ServerBusy) {
        this.fleet.rest(member, error);
        this.wait(job, error);
      } else {
        job.failures = !job.whole && handle.tokens.length > start ? 1 : job.failures + 1;
        this.fleet.lose(member, error, life);
        if (job.failures >= MOST_FAILURES) {
          handle.fail(
            new TroupeError(
              'COMM',
              `[rollout] a request was given up after ${MOST_FAILURES} servers failed: ${error.message}`,
            ),
          );
        } else this.jobs.putBack(job);
      }
    } finally {
      member.inFlight--;
      this.running.delete(job);
      this.dispatch();
      this.settle();
    }
  }

  /** For a server that takes it, as long as one may be away. */
  private wait(job: Job, error: ServerBusy): void {
    const { recoveryMs } = this.options;
    job.busySince ??= performance.now();
    if (performance.now() - job.busySince <= recoveryMs) {
      this.jobs.putBack(job);
      return;
    }
    job.handle.fail(
      new TroupeError(
        'COMM',
        `[rollout] a request was given up: servers have had too much to do for it for ${recoveryMs / 1000} s (${error.message})`,
      ),
    );
  }

  private async shutFor(work: () => Promise<void>): Promise<void> {
    this.shut = true;
    try {
      await this.until(() => this.running.size === 0);
      await work();
    } finally {
      this.shut = false;
    }
    this.dispatch();
  }

  private async wake(): Promise<void> {
    try {
      await this.shutFor(() => this.fleet.bringBack());
    } catch (error) {
      for (const { handle } of this.jobs.drain()) handle.fail(error);
    }
  }

  /** What servers are told of pauses, one after the other: a pause that is told late would have no end. */
  private inOrder(tell: () => Promise<void>): Promise<void> {
    const told = this.pausing.then(tell);
    this.pausing = told.catch(() => undefined);
    return told;
  }

  private until(done: () => boolean): Promise<void> {
    if (done()) return Promise.resolve();
    return new Promise((tell) => {
      this.waiters.push({ done, tell });
    });
  }

  /** Something has ended. */
  private settle(): void {
    for (const waiter of this.waiters.splice(0)) {
      if (waiter.done()) waiter.tell();
      else this.waiters.push(waiter);
    }
  }
}
