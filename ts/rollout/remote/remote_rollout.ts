// A rollout engine over inference servers: requests go where their prefix lies, and to another server when theirs dies.
import { setTimeout as sleep } from 'node:timers/promises';
import { badOption } from '../../base/check_options';
import { printable } from '../../base/printable';
import { reasonOf } from '../../base/text';
import { TroupeError } from '../../errors';
import { timerMs } from '../../reward/contract/timers';
import { checkRequest } from '../check_request';
import type { PauseMode, RolloutEngine, RolloutHandle, RolloutStats, WeightSource } from '../engine';
import type { RolloutRequest } from '../request';
import type { InferenceServer } from './inference_server';
import { type Job, jobOf, serveJob } from './job';
import { JobQueue } from './job_queue';
import { chooseMember, type Member, memberOf } from './members';
import { ServerLost } from './server_client';
import type { ServerProtocol } from './server_protocol';

export interface RemoteRolloutOptions {
  protocol: ServerProtocol;
  servers: readonly InferenceServer[];
  vocabSize: number;
  eosTokenIds: readonly number[];
  /** Prompt and response together; a server may have less. */
  maxTokens: number;
  /** Requests at a time, of each server. */
  maxConcurrency: number;
  /** How long a server may be away before it is given up, milliseconds. */
  recoveryMs: number;
  say(line: string): void;
}

/** A request that so many servers were lost under is what they die of. */
const MOST_FAILURES = 5;
const RETRY_MS = 1000;

export class RemoteRollout implements RolloutEngine {
  private readonly members: Member[];
  private readonly jobs = new JobQueue();
  private readonly running = new Set<Job>();
  /** How it is paused; null: it is not. */
  private paused: PauseMode | null = null;
  /** Servers are started again, and requests wait. */
  private restarting = false;
  private closed = false;
  private readonly ending = new AbortController();
  private weights: { directory: string; version: number } | null = null;
  private limit: number;
  private readonly counts = { promptTokens: 0, cachedPromptTokens: 0, generatedTokens: 0 };
  private readonly waiters: { done: () => boolean; tell: () => void }[] = [];

  /** Waits until all servers answer. @throws TroupeError COMM naming one that does not */
  static async connect(options: RemoteRolloutOptions): Promise<RemoteRollout> {
    const rollout = new RemoteRollout(options);
    try {
      await Promise.all(rollout.members.map((member) => rollout.meet(member)));
    } catch (error) {
      await rollout.close();
      throw error;
    }
    return rollout;
  }

  private constructor(private readonly options: RemoteRolloutOptions) {
    this.members = options.servers.map(memberOf);
    this.limit = options.maxTokens;
  }

  get version(): number {
    return this.weights?.version ?? 0;
  }

  get maxTokens(): number {
    return this.limit;
  }

  get maxConcurrency(): number {
    return this.options.maxConcurrency * this.members.length;
  }

  submit(request: RolloutRequest): RolloutHandle {
    if (this.closed) throw new TroupeError('CLOSED', '[rollout] the engine is closed');
    const { protocol, vocabSize, eosTokenIds } = this.options;
    const sampling = checkRequest(request, { vocabSize, maxTokens: this.limit, eosTokenIds });
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

  async pause(mode: PauseMode): Promise<void> {
    const { protocol } = this.options;
    if (mode === 'keep' && !protocol.pauses)
      throw badOption(
        'rollout',
        `pause: requests of ${protocol.name} cannot stand still: wait, or abort them`,
      );
    const kept = this.paused === 'keep';
    this.paused = mode;
    if (mode === 'keep') {
      await this.eachUp(({ server }) => protocol.pause(server.client));
      return;
    }
    if (mode === 'abort') for (const { handle } of [...this.jobs.drain(), ...this.running]) handle.abort();
    if (kept) await this.letGo();
    this.dispatch();
    await this.until(() => this.paused !== mode || (this.running.size === 0 && this.jobs.empty));
  }

  async resume(): Promise<void> {
    const kept = this.paused === 'keep';
    this.paused = null;
    if (kept) await this.letGo();
    this.jobs.release();
    this.dispatch();
    this.settle();
  }

  async updateWeights(source: WeightSource, version: number): Promise<void> {
    if (source.kind !== 'directory')
      throw badOption('rollout', `updateWeights: servers take weights from a directory, not ${source.kind}`);
    this.weights = { directory: source.path, version };
    const { protocol } = this.options;
    if (!protocol.reloads) await this.startAgain();
    else await this.eachUp((member) => this.load(member));
    // At least one serves the new weights before anything is asked of them.
    while (!this.members.some(({ up }) => up)) {
      this.checkHope();
      await Promise.race(this.members.map(({ revival }) => revival ?? sleep(RETRY_MS)));
    }
  }

  async stats(): Promise<RolloutStats> {
    this.checkHope();
    return {
      running: this.running.size,
      waiting: this.jobs.size,
      cachePositions: 0,
      cachePositionsUsed: 0,
      ...this.counts,
      hostChoices: 0,
      preemptions: 0,
      version: this.version,
    };
  }

  async close(): Promise<void> {
    this.closed = true;
    for (const { handle } of [...this.jobs.drain(), ...this.running]) handle.abort();
    this.ending.abort();
    await Promise.all(this.members.map(({ revival }) => revival));
    await Promise.all(this.members.map(({ server }) => server.close()));
  }

  /** The first time: it must answer, and what it can hold counts. */
  private async meet(member: Member): Promise<void> {
    const { protocol, recoveryMs } = this.options;
    try {
      await member.server.ready(
        null,
        AbortSignal.any([this.ending.signal, AbortSignal.timeout(timerMs(recoveryMs))]),
      );
      const { maxTokens } = await protocol.info(member.server.client);
      this.limit = Math.min(this.limit, maxTokens ?? this.limit);
      member.up = true;
    } catch (error) {
      throw new TroupeError(
        'COMM',
        `[rollout] ${protocol.name} server ${member.index + 1} did not come up (it has ${recoveryMs / 1000} s): ${reasonOf(error)}`,
        { cause: error },
      );
    }
  }

  private dispatch(): void {
    if (this.members.every(({ lost }) => lost))
      for (const { handle } of this.jobs.drain()) handle.fail(this.hopeless());
    while (this.paused !== 'keep' && !this.restarting) {
      const job = this.jobs.first;
      if (job === undefined) return;
      if (!job.handle.ended) {
        const member = chooseMember(this.members, job.handle.request, this.options.maxConcurrency);
        if (member === null) return;
        void this.run(job, member);
      }
      this.jobs.shift();
    }
  }

  private async run(job: Job, member: Member): Promise<void> {
    const { handle } = job;
    const start = job.whole ? 0 : handle.tokens.length;
    member.inFlight++;
    this.running.add(job);
    try {
      await serveJob(job, this.options.protocol, member, ({ tokens, cachedTokens = 0 }) => {
        this.counts.generatedTokens += tokens.length;
        this.counts.cachedPromptTokens += cachedTokens;
      });
    } catch (error) {
      if (handle.ended) return;
      if (!(error instanceof ServerLost)) {
        const known = error instanceof TroupeError;
        handle.fail(
          known
            ? error
            : new TroupeError('COMM', `[rollout] ${printable(reasonOf(error))}`, { cause: error }),
        );
      } else {
        job.failures = !job.whole && handle.tokens.length > start ? 1 : job.failures + 1;
        this.lose(member, error);
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

  /** It is asked for its health until it is back, with the weights of now, or is given up. */
  private lose(member: Member, error: Error): void {
    member.up = false;
    member.reason = error.message;
    if (member.revival !== null || this.closed) return;
    const { protocol, recoveryMs, say } = this.options;
    say(
      `${protocol.name} server ${member.index + 1} was lost (${error.message}): its requests go to others, or wait`,
    );
    const since = performance.now();
    member.revival = this.revive(member, since + recoveryMs)
      .then(() => {
        if (member.up) say(`${protocol.name} server ${member.index + 1} is back after ${seconds(since)} s`);
      })
      .finally(() => {
        member.revival = null;
        this.dispatch();
      });
  }

  private async revive(member: Member, until: number): Promise<void> {
    const { protocol, recoveryMs, say } = this.options;
    while (!this.closed && performance.now() < until) {
      const left = AbortSignal.timeout(timerMs(Math.max(1, until - performance.now())));
      const signal = AbortSignal.any([this.ending.signal, left]);
      try {
        await member.server.ready(this.weights?.directory ?? null, signal);
        const { weights } = this;
        if (weights !== null && protocol.reloads) await this.load(member);
        if (weights !== this.weights) continue;
        member.version = this.version;
        member.up = true;
        return;
      } catch (error) {
        member.reason = reasonOf(error);
        await sleep(RETRY_MS, undefined, { signal }).catch(() => undefined);
      }
    }
    if (this.closed) return;
    member.lost = true;
    say(
      `${protocol.name} server ${member.index + 1} is given up after ${recoveryMs / 1000} s: ${member.reason}`,
    );
  }

  /** Requests in flight stand still meanwhile, and afterwards where the rollout is paused so. */
  private async load(member: Member): Promise<void> {
    const { protocol } = this.options;
    const { client } = member.server;
    const { directory, version } = this.weights as { directory: string; version: number };
    member.loading = true;
    try {
      await protocol.pause(client);
      await protocol.load(client, directory, version);
      member.version = version;
    } finally {
      member.loading = false;
      if (this.paused !== 'keep') await protocol.resume(client);
    }
  }

  /** What stands still goes on, once weights that are under way are there. */
  private letGo(): Promise<void> {
    return this.eachUp(async ({ server, loading }) => {
      if (!loading) await this.options.protocol.resume(server.client);
    });
  }

  /** For servers that take weights when they start only. */
  private async startAgain(): Promise<void> {
    this.restarting = true;
    await this.until(() => this.running.size === 0);
    // Nobody waits again for those that were given up.
    const members = this.members.filter(({ lost }) => !lost);
    for (const member of members) member.up = false;
    await Promise.all(members.map(({ server }) => server.close()));
    await Promise.all(
      members.map((member) => this.revive(member, performance.now() + this.options.recoveryMs)),
    );
    this.restarting = false;
    this.dispatch();
  }

  /** Those that are lost meanwhile are brought back; what one refuses is an error. */
  private async eachUp(work: (member: Member) => Promise<void>): Promise<void> {
    const done = this.members
      .filter(({ up }) => up)
      .map(async (member) => {
        try {
          await work(member);
        } catch (error) {
          if (!(error instanceof ServerLost))
            throw new TroupeError('COMM', `[rollout] ${reasonOf(error)}`, { cause: error });
          this.lose(member, error);
        }
      });
    await Promise.all(done);
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

  private checkHope(): void {
    if (this.members.every(({ lost }) => lost)) throw this.hopeless();
  }

  private hopeless(): TroupeError {
    const reasons = this.members.map(({ index, reason }) => `server ${index + 1}: ${reason}`).join('; ');
    return new TroupeError('COMM', `[rollout] no ${this.options.protocol.name} server is left (${reasons})`);
  }
}

const seconds = (since: number): string => ((performance.now() - since) / 1000).toFixed(1);
