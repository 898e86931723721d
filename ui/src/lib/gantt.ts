// From the trace of some steps to bars on lanes: what each rank was at, and whom it waited for.
import type { TraceLine } from '../../../ts/ui/protocol';

export interface Bar {
  name: string;
  start: number;
  end: number;
  step: number;
  /** Waiting: for whom. */
  waits: string | null;
}

export interface Lane {
  name: string;
  bars: Bar[];
}

export interface Gantt {
  lanes: Lane[];
  /** Where steps begin. */
  steps: { step: number; start: number }[];
  end: number;
}

/** Colours of series: calls of ranks have those of the phases that they are of. */
const HUES: readonly [RegExp, number][] = [
  [/^gen|^rolloutTurn|Rollout of /, 0],
  [/^reward|^score/, 6],
  [/^old_log_prob|computeLogProb of 'actor'/, 5],
  [/^ref|^teacher|computeLogProb of '(ref|teacher)/, 3],
  [/^values|computeValues/, 4],
  [/^adv/, 7],
  [/^update_actor|updatePolicy|updateSft/, 1],
  [/^update_critic|updateCritic/, 2],
  [/^testing/, 2],
];

/** The number of the colour of a phase or a call: the same thing has the same one on every lane. */
export const hueOf = (name: string): number => HUES.find(([pattern]) => pattern.test(name))?.[1] ?? 7;

const laneName = (pool: string | undefined, rank: number): string => `${pool ? `${pool} ` : ''}rank ${rank}`;

/** Less than this is not worth the name of waiting, seconds. */
const NO_WAIT = 0.0005;

/** Phases that hold others are left out: their parts say more. */
function leaves(phases: TraceLine['phases']): TraceLine['phases'] {
  return phases.filter(
    ([, start, seconds], i) =>
      !phases.some(
        ([, other, length], j) =>
          j !== i && other >= start - 1e-9 && other + length <= start + seconds + 1e-9 && length < seconds,
      ),
  );
}

export function ganttOf(lines: readonly TraceLine[]): Gantt {
  const lanes = new Map<string, Bar[]>([['trainer', []]]);
  const steps: Gantt['steps'] = [];
  const zero = lines[0]?.time ?? 0;
  let end = 0;
  const add = (lane: string, bar: Bar): void => {
    lanes.set(lane, [...(lanes.get(lane) ?? []), bar]);
    end = Math.max(end, bar.end);
  };
  for (const line of lines) {
    const { step, time, phases, ranks } = line;
    const offset = time - zero;
    if (steps.at(-1)?.step !== step) steps.push({ step, start: offset });
    for (const [name, start, seconds] of leaves(phases))
      add('trainer', { name, step, start: offset + start, end: offset + start + seconds, waits: null });
    for (const { pool, rank, calls } of ranks) {
      for (const [name, start, seconds] of calls) {
        const finish = start + seconds;
        add(laneName(pool, rank), { name, step, start: offset + start, end: offset + finish, waits: null });
        // The others of its pool that were at the same thing at the same time.
        const last = ranks
          .filter((other) => other.pool === pool && other.rank !== rank)
          .flatMap((other) =>
            other.calls.map(([what, from, length]) => ({ other, what, from, to: from + length })),
          )
          .filter(({ what, from, to }) => what === name && from < finish && to > finish + NO_WAIT)
          .sort((a, b) => b.to - a.to)[0];
        const next = calls.find(([, from]) => from >= finish - 1e-9)?.[1] ?? Number.POSITIVE_INFINITY;
        const until = Math.min(last?.to ?? finish, next);
        if (last && until - finish > NO_WAIT)
          add(laneName(pool, rank), {
            name: 'waits',
            step,
            start: offset + finish,
            end: offset + until,
            waits: laneName(last.other.pool, last.other.rank),
          });
      }
    }
  }
  return { lanes: [...lanes].map(([name, bars]) => ({ name, bars })), steps, end };
}

/** Seconds by name, the longest first. */
export function totals(bars: readonly Bar[]): [string, number][] {
  const sums = new Map<string, number>();
  for (const { name, start, end } of bars) sums.set(name, (sums.get(name) ?? 0) + end - start);
  return [...sums].sort(([, a], [, b]) => b - a);
}
