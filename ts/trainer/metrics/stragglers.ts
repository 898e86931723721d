// Which rank the others wait for, by phase of a step.
import type { EngineCall } from '../../controller/call';
import type { Metrics } from './metrics';

/** "update_actor of step 3" */
const PHASE = /^(.+) of step \d+$/;

interface RankTime {
  rank: number;
  /** Milliseconds from the calls to their answers. */
  wall: number;
  /** Those of them for which it did not wait; null: it never said. */
  busy: number | null;
}

/**
 * Where ranks work together each call ends for all of them at once, however long each has computed: what tells them apart is the time
 * for which a rank was busy. Where ranks cannot tell that (on GPUs), the times of the calls are compared.
 */
export class RankTimes {
  private readonly phases = new Map<string, Map<string, RankTime>>();

  readonly add = ({ phase, rank, pool, start, end, busyMs }: EngineCall): void => {
    const name = PHASE.exec(phase ?? '')?.[1];
    if (name === undefined) return;
    const ranks = this.phases.get(name) ?? new Map<string, RankTime>();
    this.phases.set(name, ranks);
    const key = `${pool}/${rank}`;
    const time = ranks.get(key) ?? { rank, wall: 0, busy: null };
    ranks.set(key, time);
    time.wall += end - start;
    if (busyMs !== null) time.busy = (time.busy ?? 0) + busyMs;
  };

  /** straggler/{phase}/{ratio,rank} since it was last asked: the slowest rank's time over the median, and which rank that is. */
  take(): Metrics {
    const metrics: Metrics = {};
    for (const [phase, ranks] of this.phases) {
      const times = [...ranks.values()];
      const allSay = times.every(({ busy }) => busy !== null);
      const of = ({ wall, busy }: RankTime): number => (allSay ? (busy as number) : wall);
      times.sort((a, b) => of(a) - of(b));
      const middle = (times.length - 1) / 2;
      const at = (i: number): number => of(times[i] as RankTime);
      const median = (at(Math.floor(middle)) + at(Math.ceil(middle))) / 2;
      const slowest = times.at(-1) as RankTime;
      if (times.length < 2 || !(median > 0)) continue;
      metrics[`straggler/${phase}/ratio`] = of(slowest) / median;
      metrics[`straggler/${phase}/rank`] = slowest.rank;
    }
    this.phases.clear();
    return metrics;
  }
}
