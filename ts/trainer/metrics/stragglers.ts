// Which rank the others wait for, by phase of a step.
import type { PoolName } from '../../config/derived/pools';
import type { EngineCall } from '../../controller/call';
import type { Metrics } from './metrics';

/** "update_actor of step 3" */
const PHASE = /^(.+) of step \d+$/;
/** Of phases whose work may have a pool of its own: its name. All else is the work of the pool of the policy. */
const OWN_POOL: Readonly<Record<string, PoolName>> = { gen: 'rollout', gen_max: 'rollout', reward: 'reward' };

interface RankTime {
  rank: number;
  /** Milliseconds from the calls to their answers. */
  wall: number;
  /** Those of them for which it did not wait; null: it never said. */
  busy: number | null;
}

/** By rank. */
type PoolTimes = Map<number, RankTime>;

/**
 * Where ranks work together each call ends for all of them at once, however long each has computed: what tells them apart is the time
 * for which a rank was busy. Where ranks cannot tell that (on GPUs), the times of the calls are compared. Pools wait for each other in no call, and
 * one may be at work of its own in every phase: ranks are compared with those of their pool, of the one whose phase it is.
 */
export class RankTimes {
  /** By phase, and by the name of the pool; of a single one ''. */
  private readonly phases = new Map<string, Map<string, PoolTimes>>();

  readonly add = ({ phase, rank, pool, start, end, busyMs }: EngineCall): void => {
    const name = PHASE.exec(phase ?? '')?.[1];
    if (name === undefined) return;
    const pools = this.phases.get(name) ?? new Map<string, PoolTimes>();
    this.phases.set(name, pools);
    const ranks: PoolTimes = pools.get(pool ?? '') ?? new Map<number, RankTime>();
    pools.set(pool ?? '', ranks);
    const time = ranks.get(rank) ?? { rank, wall: 0, busy: null };
    ranks.set(rank, time);
    time.wall += end - start;
    if (busyMs !== null) time.busy = (time.busy ?? 0) + busyMs;
  };

  /** straggler/{phase}/{ratio,rank} since it was last asked: the slowest rank's time over the median, and which rank that is. */
  take(): Metrics {
    const metrics: Metrics = {};
    for (const [phase, pools] of this.phases) {
      const ranks = pools.get(OWN_POOL[phase] ?? '') ?? pools.get('policy') ?? pools.get('');
      const times = [...(ranks?.values() ?? [])];
      const allSay = times.every(({ busy }) => busy !== null);
      const of = ({ wall, busy }: RankTime): number => (allSay ? (busy as number) : wall);
      times.sort((a, b) => of(a) - of(b));
      if (times.length < 2) continue;
      const middle = (times.length - 1) / 2;
      const at = (i: number): number => of(times[i] as RankTime);
      const median = (at(Math.floor(middle)) + at(Math.ceil(middle))) / 2;
      const slowest = times.at(-1) as RankTime;
      if (!(median > 0)) continue;
      metrics[`straggler/${phase}/ratio`] = of(slowest) / median;
      metrics[`straggler/${phase}/rank`] = slowest.rank;
    }
    this.phases.clear();
    return metrics;
  }
}
