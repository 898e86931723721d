// What servers owe: an answer in time, or at least to the question whether they are well.
import { setTimeout as sleep } from 'node:timers/promises';
import { limited, timerMs } from '../../base/timers';
import type { Member } from './members';
import { ServerLost } from './server_client';
import type { ServerProtocol } from './server_protocol';

export interface WatchOptions {
  protocol: ServerProtocol;
  members: readonly Member[];
  /** How long a server may owe an answer, milliseconds. */
  patienceMs: number;
  /** Whether requests in flight stand still: what asks for a token to say that it is well would wait for ever. */
  standing(): boolean;
  lose(member: Member, error: Error): void;
  /** A server may be asked again. */
  rested(): void;
}

/** What has too much to do is asked again so much later. */
const REST_MS = 1000;
/** What has requests is asked for its health so often, or four times in its patience. */
const LOOK_MS = 30_000;
const LATE = Symbol();

export class ServerWatch {
  private readonly ending = new AbortController();
  private readonly looking: NodeJS.Timeout;

  constructor(private readonly options: WatchOptions) {
    const every = timerMs(Math.min(LOOK_MS, options.patienceMs / 4));
    this.looking = setInterval(() => this.look(), every).unref();
  }

  close(): void {
    clearInterval(this.looking);
    this.ending.abort();
  }

  /** `asked` of a server: where it takes long, the server must be well. @throws ServerLost, and what `asked` throws */
  async answered<T>(member: Member, asked: Promise<T>): Promise<T> {
    for (;;) {
      const over = new AbortController();
      const signal = AbortSignal.any([over.signal, this.ending.signal]);
      const late = sleep(timerMs(this.options.patienceMs), LATE, { signal }).catch(() => LATE);
      try {
        const first = await Promise.race([asked, late]);
        if (first !== LATE) return first as T;
      } finally {
        over.abort();
      }
      if (this.ending.signal.aborted) throw new ServerLost('the engine is closed');
      if (!(await this.isWell(member))) throw this.silence(member);
    }
  }

  /** It has too much to do: nothing is asked of it for a moment, and if it is not well it is lost. */
  rest(member: Member): void {
    if (member.resting || !member.up) return;
    member.resting = true;
    const { protocol, lose, rested } = this.options;
    void sleep(REST_MS, undefined, { signal: this.ending.signal })
      .then(() => protocol.health(member.server.client, this.inTime()))
      .catch((error) => {
        if (member.up) lose(member, error as Error);
      })
      .finally(() => {
        member.resting = false;
        rested();
      });
  }

  /** One that is gone without a word, or hangs, would keep its requests for ever. */
  private look(): void {
    for (const member of this.options.members) {
      const works = member.up && member.inFlight > 0 && !member.loading && !this.options.standing();
      if (!works) member.heard = null;
      else void this.lookAt(member);
    }
  }

  private async lookAt(member: Member): Promise<void> {
    const asked = performance.now();
    member.heard ??= asked;
    if (await this.isWell(member)) member.heard = Math.max(member.heard ?? 0, asked);
    else if (
      member.up &&
      member.heard !== null &&
      performance.now() - member.heard >= this.options.patienceMs
    )
      this.options.lose(member, this.silence(member));
  }

  private isWell(member: Member): Promise<boolean> {
    return this.options.protocol.health(member.server.client, this.inTime()).then(
      () => true,
      () => false,
    );
  }

  /** Whatever is being asked of the server is broken off. */
  private silence(member: Member): ServerLost {
    const { client } = member.server;
    member.silent = true;
    client.close();
    return new ServerLost(`${client.url} has not answered for ${this.options.patienceMs / 1000} s`);
  }

  private inTime(): AbortSignal {
    return limited(this.ending.signal, this.options.patienceMs);
  }
}
