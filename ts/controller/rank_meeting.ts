// How the ranks of a worker group find each other: one opens a meeting point, all join the group of the collectives there.
import { createHash } from 'node:crypto';
import type { BindingArgs } from '../worker/protocol';
import type { Launcher } from './launcher';
import type { Member } from './member';
import type { RankPlaces } from './rank_places';

export interface RankMeeting {
  members: readonly Member[];
  places: RankPlaces;
  launcher: Launcher | null;
  backend: 'gloo' | 'nccl';
  /** Of the worker group; the one of the collectives is made from it. */
  token: string;
  collectiveTimeoutMs: number;
}

/** The arguments of `joinGroup`, by rank, for a meeting point that rank 0 has opened on `port` of its host. */
export async function joinArguments(meeting: RankMeeting, port: number): Promise<BindingArgs<'joinGroup'>[]> {
  const { members, backend, collectiveTimeoutMs } = meeting;
  const token = createHash('sha256').update(`${meeting.token}/ranks`).digest('hex');
  return await Promise.all(
    members.map(async ({ rank, process }) => [
      {
        backend,
        size: members.length,
        token,
        timeoutMs: collectiveTimeoutMs,
        rank,
        host: process.address ?? '127.0.0.1',
        port: await portSeenBy(meeting, rank, port),
      },
    ]),
  );
}

/** Hosts that do not reach each other are led to the meeting point by the launcher. */
async function portSeenBy({ places, launcher }: RankMeeting, rank: number, port: number): Promise<number> {
  const [of, at] = [places.hostOf(0), places.hostOf(rank)];
  return of === at ? port : ((await launcher?.forward?.(port, of, at)) ?? port);
}
