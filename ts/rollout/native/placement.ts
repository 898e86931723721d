// Which rank serves a request: where its prefix lies, unless others have far less to do.
import { createHash } from 'node:crypto';
import type { RolloutRequest } from '../request';

/** Tokens by which prompts are said to begin alike: those of one prompt, and turns of one conversation. */
const PREFIX = 256;
const REMEMBERED = 65_536;
/** A rank has too many requests where it has so many more than twice those of the least loaded one. */
const IMBALANCE = 16;

interface Placed {
  promptIds: Int32Array;
  request: Pick<RolloutRequest, 'session' | 'cacheSalt'>;
}

/** Each `count` neighbouring groups of ranks in one. */
export const joined = (groups: number[][], count: number): number[][] =>
  Array.from({ length: groups.length / count }, (_, i) => groups.slice(i * count, (i + 1) * count).flat());

export class Placement {
  private readonly live: number[];
  private readonly known = new Map<string, number>();

  private last: { promptIds: Int32Array; cacheSalt: string | undefined; key: string } | null = null;

  constructor(private readonly ranks: number) {
    this.live = new Array(ranks).fill(0);
  }

  /** The rank for a request, which counts as one that it serves until {@link left}. */
  place(request: Placed): number {
    if (this.ranks === 1) return this.entered(0);
    const key = this.keyOf(request);
    const least = this.live.indexOf(Math.min(...this.live));
    const preferred = this.known.get(key) ?? least;
    const full = (this.live[preferred] as number) > 2 * (this.live[least] as number) + IMBALANCE;
    const rank = full ? least : preferred;
    this.known.delete(key); // the newest are last
    this.known.set(key, rank);
    if (this.known.size > REMEMBERED) this.known.delete(this.known.keys().next().value as string);
    return this.entered(rank);
  }

  left(rank: number, count = 1): void {
    this.live[rank] = (this.live[rank] as number) - count;
  }

  private entered(rank: number): number {
    this.live[rank] = (this.live[rank] as number) + 1;
    return rank;
  }

  private keyOf({ promptIds, request }: Placed): string {
    if (request.session !== undefined) return `s${request.session}`;
    const { cacheSalt } = request;
    // Samples of one prompt follow each other.
    if (this.last?.promptIds === promptIds && this.last.cacheSalt === cacheSalt) return this.last.key;
    const hash = createHash('sha256').update(promptIds.subarray(0, PREFIX));
    const key = hash.update(cacheSalt ?? '').digest('base64');
    this.last = { promptIds, cacheSalt, key };
    return key;
  }
}
