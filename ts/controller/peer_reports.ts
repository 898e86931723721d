import { setTimeout as sleep } from 'node:timers/promises';
import { type TroupeError, WorkerDiedError } from '../errors';
import type { Member } from './member';

/** The peers of a dead rank may take this long to leave their collectives and to say which these were. */
const REPORT_MS = 1_000;
/** Of a hang: on a machine that is short of time, or just out of a debugger, those that wait for the one that hangs need longer to say so. */
const HANG_REPORT_MS = 15_000;
const POLL_MS = 10;

/** How a rank says that it was aborted, or that it has found out by itself that a peer is gone. */
const LOST =
  /^\[comm\] (?:aborted in (.+?): |rank \d+: (.+?) (?:failed because a peer is gone|did not complete within))/;

/** Around a failure, where the collectives of the other ranks ended. */
export class PeerReports {
  readonly #byRank = new Map<number, string>();

  /** `error`: what the rank's call ended with. */
  note(rank: number, error: unknown): void {
    const match = LOST.exec(error instanceof Error ? error.message : '');
    const where = match?.[1] ?? match?.[2];
    if (where !== undefined) this.#byRank.set(rank, where);
  }

  /** Waits until the aborted peers of what failed (null: all ranks) have answered all they were asked. */
  private async collect(members: readonly Member[], cause: TroupeError | null): Promise<void> {
    const lost = cause instanceof WorkerDiedError ? cause.rank : null;
    const busy = ({ rank, client, exit }: Member): boolean =>
      rank !== lost && exit === null && client.current !== null;
    for (let waited = 0; waited < REPORT_MS && members.some(busy); waited += POLL_MS) await sleep(POLL_MS);
  }

  /** The same where one rank hangs, who will not answer: waits for the others, and then a moment for that one. */
  async collectAfterHang(members: readonly Member[]): Promise<void> {
    const silent = (): number =>
      members.filter(({ client, exit }) => exit === null && client.current !== null).length;
    for (let waited = 0; waited < HANG_REPORT_MS && silent() > 1; waited += POLL_MS) await sleep(POLL_MS);
    await this.collect(members, null);
  }

  /** Which collective the rank was in, counted from the first; null: in none that is known. */
  sequenceOf(rank: number): number | null {
    const match = / #(\d+) /.exec(this.#byRank.get(rank) ?? '');
    return match === null ? null : Number(match[1]);
  }

  /** When the peers of what failed have answered. */
  async addTo(error: TroupeError, members: readonly Member[]): Promise<void> {
    await this.collect(members, error);
    if (this.#byRank.size === 0) return;
    const ranks = [...this.#byRank].sort(([a], [b]) => a - b);
    error.message += `\nIts peers were in a collective: ${ranks.map(([rank, where]) => `rank ${rank}: ${where}`).join('; ')}.`;
  }
}
