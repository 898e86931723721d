// A rollout engine over inference servers: requests go where their prefix lies, and to another server when theirs dies.
import { setTimeout as sleep } from 'node:timers/promises';
import { badOption } from '../../base/check_options';
import { printable } from '../../base/printable';
import { reasonOf } from '../../base/text';
import { TroupeError } from '../../errors';
import { checkRequest } from '../check_request';
import type { PauseMode, RolloutEngine, RolloutHandle, RolloutStats, WeightSource } from '../engine';
import type { RolloutRequest } from '../request';
import type { InferenceServer } from './inference_server';
import { type Job, jobOf, serveJob } from './job';
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
  private waiting: Job[] = [];
  private readonly running = new Map<Job, Member>();
  private paused = false;
  private kept = false;
  private closed = false;
  private readonly ending = new AbortController();
  private weights: { directory: string; version: number } | null = null;
  private limit: number;
  private readonly counts = { promptTokens: 0, cachedPromptTokens: 0, generatedTokens: 0 };
  private idle: (() => void)[] = [];

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
    if (request.deadlineMs !== undefined) {
      const timer = setTimeout(() => handle.abort(), request.deadlineMs);
      void handle.result.catch(() => undefined).finally(() => clearTimeout(timer));
    }
    this.enqueue(job);
    setImmediate(() => this.dispatch());
    return handle;
  }

  async pause(mode: PauseMode): Promise<void> {
    this.paused = true;
    if (mode === 'abort') {
      for (const { handle } of [...this.waiting, ...this.running.keys()]) handle.abort();
      this.waiting = [];
    }
    if (mode === 'keep') {
      this.kept = true;
      await this.eachUp(({ server }) => this.options.protocol.pause(server.client, 'keep'));
    } else await this.allDone();
  }

  async resume(): Promise<void> {
    if (this.kept) await this.eachUp(({ server }) => this.options.protocol.resume(server.client));
    this.paused = false;
    this.kept = false;
    this.dispatch();
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
      waiting: this.waiting.length,
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
    for (const { handle } of [...this.waiting, ...this.running.keys()]) handle.abort();
    this.waiting = [];
    this.ending.abort();
    await Promise.all(this.members.map(({ revival }) => revival));
    await Promise.all(this.members.map(({ server }) => server.close()));
  }

  /** The first time: it must answer, and what it can hold counts. */
  private async meet(member: Member): Promise<void> {
    const { protocol, recoveryMs } = this.options;
    try {
      await member.server.ready(null, AbortSignal.any([this.ending.signal, AbortSignal.timeout(recoveryMs)]));
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

  private enqueue(job: Job): void {
    const at = this.waiting.findIndex(({ priority }) => priority < job.priority);
    if (at < 0) this.waiting.push(job);
    else this.waiting.splice(at, 0, job);
  }

  private dispatch(): void {
    while (!this.paused && this.waiting.length > 0) {
      const [job] = this.waiting as [Job];
      if (!job.handle.ended) {
        const member = chooseMember(this.members, job.handle.request, this.options.maxConcurrency);
        if (member === null) return;
        void this.run(job, member);
      }
      this.waiting.shift();
    }
  }

  private async run(job: Job, member: Member): Promise<void> {
    const { handle } = job;
    const start = job.whole ? 0 : handle.tokens.length;
    member.inFlight++;
    this.running.set(job, member);
    try {
      await serveJob(job, this.options.protocol, member, (tokens) => {
        this.counts.cachedPromptTokens += tokens;
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
        } else if (this.members.every(({ lost }) => lost)) handle.fail(this.hopeless());
        else this.waiting.unshift(job);
      }
    } finally {
      member.inFlight--;
      this.running.delete(job);
      this.counts.generatedTokens += handle.tokens.length - start;
      this.dispatch();
      if (this.running.size === 0) for (const tell of this.idle.splice(0)) tell();
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
      const left = AbortSignal.timeout(Math.max(1, Math.ceil(until - performance.now())));
      const signal = AbortSignal.any([this.ending.signal, left]);
      try {
        await member.server.ready(this.weights?.directory ?? null, signal);
        const { weights } = this;
        if (weights !== null && protocol.reloads)
          await protocol.load(member.server.client, weights.directory, weights.version);
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
    if (!this.members.every(({ lost }) => lost)) return;
    for (const { handle } of this.waiting.splice(0)) handle.fail(this.hopeless());
  }

  private async load(member: Member): Promise<void> {
    const { directory, version } = this.weights as { directory: string; version: number };
    await this.options.protocol.load(member.server.client, directory, version);
    member.version = version;
  }

  /** For servers that take weights when they start only. */
  private async startAgain(): Promise<void> {
    this.paused = true;
    await this.allDone();
    // Nobody waits again for those that were given up.
    const members = this.members.filter(({ lost }) => !lost);
    for (const member of members) member.up = false;
    await Promise.all(members.map(({ server }) => server.close()));
    await Promise.all(
      members.map((member) => this.revive(member, performance.now() + this.options.recoveryMs)),
    );
    this.paused = false;
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

  private allDone(): Promise<void> {
    if (this.running.size === 0) return Promise.resolve();
    return new Promise((resolve) => {
      this.idle.push(resolve);
    });
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
