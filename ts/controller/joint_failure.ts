// What the errors of some ranks mean for a call that all of them make.
import { firstCause, lostPeers, refusedByPeer } from './group_errors';
import { within } from './within';

/** When one rank fails in a call, the others may have failed with it, or may be waiting for it. */
const settleMs = 2_000;

export interface JointFailure {
  /** Whose error is the first cause. */
  rank: number;
  cause: unknown;
  /** Some ranks are of no more use: they wait in a collective, have lost one, or have gone on without one that they need. */
  fatal: boolean;
  /** One rank alone was refused, by its peers: its error needs its name. */
  alone: boolean;
}

/**
 * Waits a moment for the other ranks of a call of which one has failed. `inStep`: the ranks of the calls, which can only go on together;
 * default: all ranks, of which one may have a result without another.
 */
export async function jointFailure(
  calls: readonly Promise<unknown>[],
  inStep?: readonly number[],
): Promise<JointFailure> {
  const errors = new Map<number, unknown>();
  const watched = calls.map((call, i) => call.catch((e: unknown) => errors.set(inStep?.[i] ?? i, e)));
  const settled = await within(settleMs, Promise.all(watched));
  const [rank, cause] = firstCause(errors);
  const all = [...errors.values()];
  return {
    rank,
    cause,
    fatal: !settled || all.some(lostPeers) || (inStep !== undefined && all.length < calls.length),
    alone: !refusedByPeer(cause) && all.some(refusedByPeer),
  };
}
