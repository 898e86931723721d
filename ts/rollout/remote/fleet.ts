// The servers of a rollout together: up, lost and brought back, asleep, and with the weights of now.
import { setTimeout as sleep } from 'node:timers/promises';
import { reasonOf } from '../../base/text';
import { limited } from '../../base/timers';
import { TroupeError } from '../../errors';
import type { RolloutRequest } from '../request';
import type { InferenceServer } from './inference_server';
import { chooseMember, type Member, memberOf } from './members';
import { type ServerBusy, ServerLost } from './server_client';
import type { ServerProtocol } from './server_protocol';
import { ServerWatch } from './server_watch';

export interface FleetOptions {
  protocol: ServerProtocol;
  servers: readonly InferenceServer[];
  /** Prompt and response together; a server may have less. */
  maxTokens: number;
  /** Requests at a time, of each server. */
  maxConcurrency: number;
  /** How long a server may be away, and owe an answer, before it is given up, milliseconds. */
  recoveryMs: number;
  say(line: string): void;
}

const RETRY_MS = 1000;
/** Who waits longer for servers wants to know for what. */
const TELL_MS = 5000;

export class Fleet {
  private readonly members: Member[];
  private weights: { directory: string; version: number } | null = null;
  private limit: number;
  /** Requests in flight stand still. */
  private standing = false;
  private closed = false;
  private readonly ending = new AbortController();
  private readonly watch: ServerWatch;

  constructor(
    private readonly options: FleetOptions,
    /** A server that was lost is back, or given up. */
    private readonly changed: () => void,
  ) {
    this.members = options.servers.map(memberOf);
    this.limit = options.maxTokens;
    this.watch = new ServerWatch({
      protocol: options.protocol,
      members: this.members,
      patienceMs: options.recoveryMs,
      standing: () => this.standing,
      lose: (member, error) => this.lose(member, error),
      rested: changed,
    });
  }

  get size(): number {
    return this.members.length;
  }

  /** What all of them can hold. */
  get maxTokens(): number {
    return this.limit;
  }

  get version(): number {
    return this.weights?.version ?? 0;
  }

  get hasWeights(): boolean {
    return this.weights !== null;
  }

  /** Whether some have to take their memory again. */
  get asleep(): boolean {
    return this.members.some(({ asleep, revival, lost }) => asleep && revival === null && !lost);
  }

  /** Why no server will ever answer; null: one may. */
  get hopeless(): TroupeError | null {
    if (!this.members.every(({ lost }) => lost)) return null;
    const reasons = this.members.map(({ index, reason }) => `server ${index + 1}: ${reason}`).join('; ');
    return new TroupeError('COMM', `[rollout] no ${this.options.protocol.name} server is left (${reasons})`);
  }

  checkHope(): void {
    const { hopeless } = this;
    if (hopeless !== null) throw hopeless;
  }

  /** Waits until all of them answer. @throws TroupeError COMM naming one that does not */
  async meet(): Promise<void> {
    await Promise.all(this.members.map((member) => this.meetOne(member)));
  }

  /** The server for a request; null: none has room. */
  choose(request: RolloutRequest): Member | null {
    return chooseMember(this.members, request, this.options.maxConcurrency);
  }

  async pause(): Promise<void> {
    this.standing = true;
    await this.eachUp(async (member) => {
      if (!member.asleep)
        await this.watch.answered(member, this.options.protocol.pause(member.server.client));
    });
  }

  /** What stands still goes on, once weights that are under way are there. */
  async resume(): Promise<void> {
    this.standing = false;
    await this.eachUp(async (member) => {
      const { server, asleep, loading } = member;
      if (!asleep && !loading) await this.watch.answered(member, this.options.protocol.resume(server.client));
    });
  }

  /** What `bringBack`, and those that come back by themselves, take. */
  setWeights(directory: string, version: number): void {
    this.weights = { directory, version };
  }

  /** All of them serve with the weights of now then: those that sleep, too, and those that take weights when they start only. */
  async bringBack(): Promise<void> {
    if (this.options.protocol.reloads) {
      await this.eachUp((member) => this.load(member));
      return;
    }
    // Nobody waits again for those that were given up.
    const members = this.members.filter(({ lost }) => !lost);
    for (const member of members) member.up = false;
    await Promise.all(members.map(({ server }) => server.close()));
    await Promise.all(members.map((member) => this.startReviving(member)));
  }

  /** @throws TroupeError COMM when none ever will, CLOSED */
  async untilOneServes(): Promise<void> {
    while (!this.members.some(({ up }) => up)) {
      if (this.closed) throw new TroupeError('CLOSED', '[rollout] the engine is closed');
      this.checkHope();
      await Promise.race(this.members.map(({ revival }) => revival ?? sleep(RETRY_MS)));
    }
  }

  /** They give their memory back, as far as they can; no request is in flight. */
  async release(): Promise<void> {
    const { protocol } = this.options;
    await this.eachUp(async (member) => {
      member.asleep = true;
      if (protocol.reloads) {
        await this.watch.answered(member, protocol.release(member.server.client));
        return;
      }
      member.up = false;
      await member.server.close();
    });
  }

  async close(): Promise<void> {
    this.closed = true;
    this.watch.close();
    this.ending.abort();
    await Promise.all(this.members.map(({ revival }) => revival));
    await Promise.all(this.members.map(({ server }) => server.close()));
  }

  /** It is asked for its health until it is back, with the weights of now, or is given up. `life`: of the member when it was asked what it failed at. */
  lose(member: Member, error: Error, life = member.life): void {
    if (life !== member.life) return;
    member.up = false;
    member.heard = null;
    member.reason = error.message;
    if (member.revival !== null || this.closed) return;
    const { protocol, say } = this.options;
    say(
      `${protocol.name} server ${member.index + 1} was lost (${error.message}): its requests go to others, or wait`,
    );
    const since = performance.now();
    void this.startReviving(member).then(() => {
      if (member.up) say(`${protocol.name} server ${member.index + 1} is back after ${seconds(since)} s`);
    });
  }

  /** Of a member once at a time; one that is under way gets its time anew. */
  private startReviving(member: Member): Promise<void> {
    member.until = performance.now() + this.options.recoveryMs;
    member.revival ??= this.revive(member).finally(() => {
      member.revival = null;
      this.changed();
    });
    return member.revival;
  }

  /** It has too much to do. */
  rest(member: Member, error: ServerBusy): void {
    const { protocol, say } = this.options;
    if (!member.busy)
      say(`${protocol.name} server ${member.index + 1} is asked again later (${error.message})`);
    member.busy = true;
    this.watch.rest(member);
  }

  /** The first time: it must answer, and what it can hold counts. */
  private async meetOne(member: Member): Promise<void> {
    const { protocol, recoveryMs, say } = this.options;
    const who = `${protocol.name} server ${member.index + 1}`;
    const told = setTimeout(
      () => {
        say(
          `waiting for ${who}, which does not answer yet: up to ${recoveryMs / 1000} s (actor_rollout_ref.rollout.server.recovery_timeout)`,
        );
      },
      Math.min(TELL_MS, recoveryMs / 2),
    ).unref();
    try {
      await member.server.ready(null, limited(this.ending.signal, recoveryMs));
      const { maxTokens } = await this.watch.answered(member, protocol.info(member.server.client));
      this.limit = Math.min(this.limit, maxTokens ?? this.limit);
      member.up = true;
    } catch (error) {
      throw new TroupeError(
        'COMM',
        `[rollout] ${who} did not come up (it has ${recoveryMs / 1000} s): ${reasonOf(error)}`,
        { cause: error },
      );
    } finally {
      clearTimeout(told);
    }
  }

  private async revive(member: Member): Promise<void> {
    const { protocol, recoveryMs, say } = this.options;
    while (!this.closed && performance.now() < member.until) {
      const signal = limited(this.ending.signal, Math.max(1, member.until - performance.now()));
      try {
        // Whether it has its memory is not known, or whether it will ever answer.
        if (member.asleep || member.silent) await member.server.close();
        member.asleep = false;
        member.silent = false;
        await member.server.ready(this.weights?.directory ?? null, signal);
        const { weights } = this;
        if (weights !== null && protocol.reloads) await this.load(member);
        if (weights !== this.weights) continue;
        member.version = this.version;
        member.life++;
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

  /** Requests in flight stand still meanwhile, and afterwards where they did so before. */
  private async load(member: Member): Promise<void> {
    const { protocol } = this.options;
    const { client } = member.server;
    const { directory, version } = this.weights as { directory: string; version: number };
    if (member.asleep) {
      await this.watch.answered(member, protocol.wake(client, directory, version));
      member.asleep = false;
      member.version = version;
      member.given = true;
      return;
    }
    member.loading = true;
    try {
      await this.watch.answered(member, protocol.pause(client));
      await this.watch.answered(member, protocol.load(client, directory, version));
      member.version = version;
      member.given = true;
    } finally {
      member.loading = false;
      if (!this.standing && !member.silent) await this.watch.answered(member, protocol.resume(client));
    }
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
}

const seconds = (since: number): string => ((performance.now() - since) / 1000).toFixed(1);
