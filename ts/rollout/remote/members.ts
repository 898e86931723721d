// The servers of a rollout: which are up, which one a request goes to.
import type { RolloutRequest } from '../request';
import type { InferenceServer } from './inference_server';

export interface Member {
  readonly server: InferenceServer;
  readonly index: number;
  up: boolean;
  inFlight: number;
  /** Of its weights. */
  version: number;
  /** It has been given weights, and not only started with some. */
  given: boolean;
  /** New weights are on their way to it. */
  loading: boolean;
  /** It has given its memory back. */
  asleep: boolean;
  /** It has too much to do: nothing is asked of it for a moment. */
  resting: boolean;
  /** It has said so since its last token. */
  busy: boolean;
  /** It owed an answer for too long: a process of ours is started again. */
  silent: boolean;
  /** When it was last well, or sent a token, while it had requests, of performance.now(); null: it has not been asked. */
  heard: number | null;
  /** Why it is not up. */
  reason: string;
  /** Under way while it is brought back; it never rejects. */
  revival: Promise<void> | null;
  /** How often it has come back: what was asked of it before says nothing of it now. */
  life: number;
  /** Until when it may be brought back, of performance.now(). */
  until: number;
  /** Given up. */
  lost: boolean;
}

export const memberOf = (server: InferenceServer, index: number): Member => ({
  server,
  index,
  up: false,
  inFlight: 0,
  version: 0,
  given: false,
  loading: false,
  asleep: false,
  resting: false,
  busy: false,
  silent: false,
  heard: null,
  reason: 'it has not answered yet',
  revival: null,
  life: 0,
  until: 0,
  lost: false,
});

/** Requests that a server may have more than another one for the sake of what lies in its cache. */
const SLACK = 16;
/** Tokens of a prompt that tell where its prefix lies. */
const PREFIX = 256;

/**
 * The server for a request among those that are up and have room: where its session, or the beginning of its prompt, has been before
 * (rendezvous hashing, so that a server that comes or goes moves no others), unless that one has far more to do than another.
 */
export function chooseMember(
  members: readonly Member[],
  request: RolloutRequest,
  capacity: number,
): Member | null {
  const open = members.filter(({ up, resting, inFlight }) => up && !resting && inFlight < capacity);
  if (open.length < 2) return open[0] ?? null;
  const key = request.session === undefined ? hashIds(request.promptIds) : hashText(request.session);
  const preferred = open.reduce((a, b) => (mix(key, b.index) > mix(key, a.index) ? b : a));
  const idle = open.reduce((a, b) => (b.inFlight < a.inFlight ? b : a));
  return preferred.inFlight > idle.inFlight + SLACK ? idle : preferred;
}

/** FNV-1a. */
function hashIds(ids: ArrayLike<number>): number {
  let hash = 0x811c9dc5;
  for (let i = 0; i < Math.min(ids.length, PREFIX); i++)
    hash = Math.imul(hash ^ (ids[i] as number), 0x01000193);
  return hash >>> 0;
}

function hashText(text: string): number {
  return hashIds(Array.from(text, (character) => character.codePointAt(0) as number));
}

/** The finaliser of MurmurHash3. */
function mix(key: number, index: number): number {
  let h = key ^ Math.imul(index + 1, 0x9e3779b1);
  h = Math.imul(h ^ (h >>> 16), 0x85ebca6b);
  h = Math.imul(h ^ (h >>> 13), 0xc2b2ae35);
  return (h ^ (h >>> 16)) >>> 0;
}
