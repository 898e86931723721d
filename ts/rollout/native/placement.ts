// Which rank serves a request: where its prefix lies, unless others have less to do.
import { createHash } from 'node:crypto';
import type { RolloutRequest } from '../request';

/** Tokens by which prompts are said to begin alike, as turns of one conversation do. */
const PREFIX = 256;
const REMEMBERED = 65_536;
/** Of a conversation, or of samples of one prompt, a rank has too many where it has so many more than twice those of the least loaded one. */
const IMBALANCE = 16;
/** Of other prompts that begin alike, where it has so many more: they may all begin with one system prompt, which every rank soon has. */
const SLACK = 4;

interface Placed {
  promptIds: Int32Array;
  request: Pick<RolloutRequest, 'session' | 'cacheSalt'>;
}

/** By what a rank is looked for. */
interface Keys {
  /** Of the conversation, or of the whole prompt. */
  own: string;
  /** Of how the prompt begins; null: nothing else is looked for. */
  prefix: string | null;
}

/** Each `count` neighbouring groups of ranks in one. */
export const joined = (groups: number[][], count: number): number[][] =>
  Array.from({ length: groups.length / count }, (_, i) => groups.slice(i * count, (i + 1) * count).flat());

export class Placement {
  private readonly live: number[];
  private readonly known = new Map<string, number>();

  private last: { promptIds: Int32Array; cacheSalt: string | undefined; keys: Keys } | null = null;

  constructor(private readonly ranks: number) {
    this.live = new Array(ranks).fill(0);
  }

  /** The rank for a request, which counts as one that it serves until {@link left}. */
  place(request: Placed): number {
    if (this.ranks === 1) return this.entered(0);
    const keys = this.keysOf(request);
    const rank = this.rankOf(keys);
    this.remember(keys.own, rank);
    if (keys.prefix !== null) this.remember(keys.prefix, rank);
    return this.entered(rank);
  }

  left(rank: number, count = 1): void {
    this.live[rank] = (this.live[rank] as number) - count;
  }

  private rankOf({ own, prefix }: Keys): number {
    const least = this.live.indexOf(Math.min(...this.live));
    const fewest = this.live[least] as number;
    const atMost = (rank: number | undefined, bound: number): boolean =>
      rank !== undefined && (this.live[rank] as number) <= bound;
    const known = this.known.get(own);
    if (known !== undefined) return atMost(known, 2 * fewest + IMBALANCE) ? known : least;
    const alike = prefix === null ? undefined : this.known.get(prefix);
    return alike !== undefined && atMost(alike, fewest + SLACK) ? alike : least;
  }

  private remember(key: string, rank: number): void {
    this.known.delete(key); // the newest are last
    this.known.set(key, rank);
    if (this.known.size > REMEMBERED) this.known.delete(this.known.keys().next().value as string);
  }

  private entered(rank: number): number {
    this.live[rank] = (this.live[rank] as number) + 1;
    return rank;
  }

  private keysOf({ promptIds, request }: Placed): Keys {
    if (request.session !== undefined) return { own: `s${request.session}`, prefix: null };
    const { cacheSalt } = request;
    // Samples of one prompt follow each other.
    if (this.last?.promptIds === promptIds && this.last.cacheSalt === cacheSalt) return this.last.keys;
    const hash = (tokens: Int32Array): string =>
      createHash('sha256')
        .update(tokens)
        .update(cacheSalt ?? '')
        .digest('base64');
    const keys = { own: `p${hash(promptIds)}`, prefix: `b${hash(promptIds.subarray(0, PREFIX))}` };
    this.last = { promptIds, cacheSalt, keys };
    return keys;
  }
}
