// The phases of the trainer as a trace that opens beside those of the workers.
import type { Interval } from './trace_log';

/** A phase in the Trace Event format: microseconds. */
interface TraceEvent {
  ph: 'X';
  cat: 'user_annotation';
  name: string;
  pid: number;
  tid: number;
  ts: number;
  dur: number;
}

/** JSON of the Trace Event format. `zero`: what its times count from, as those of the workers do; milliseconds since 1970. */
export function phaseTrace(phases: readonly Interval[], zero: number): string {
  const pid = process.pid;
  const wallClock = Date.now() - performance.now() - zero;
  const micros = (milliseconds: number): number => Math.round(milliseconds * 1e3);
  const events = inLanes(phases).map(
    ([{ name, start, end }, lane]): TraceEvent => ({
      ph: 'X',
      cat: 'user_annotation',
      name,
      pid,
      tid: lane,
      ts: micros(start + wallClock),
      dur: micros(end - start),
    }),
  );
  const named = { ph: 'M', name: 'process_name', pid, tid: 0, args: { name: 'trainer' } };
  // Nanoseconds since 1970 are more than a number of JavaScript holds exactly.
  const base = `"baseTimeNanoseconds":${BigInt(micros(zero)) * 1000n}`;
  return `{"schemaVersion":1,"displayTimeUnit":"ms",${base},"traceEvents":${JSON.stringify([named, ...events])}}\n`;
}

/** Spans of one lane lie within each other or side by side, as viewers expect of a thread: what overlaps goes to the next lane. */
function inLanes(phases: readonly Interval[]): [Interval, number][] {
  // What is open at the place that has been reached, of each lane.
  const lanes: Interval[][] = [];
  return [...phases]
    .sort((a, b) => a.start - b.start || b.end - a.end)
    .map((phase) => {
      const fits = (open: Interval[]): boolean => {
        while (open.length > 0 && (open.at(-1) as Interval).end <= phase.start) open.pop();
        return open.length === 0 || (open.at(-1) as Interval).end >= phase.end;
      };
      const found = lanes.findIndex(fits);
      const lane = found < 0 ? lanes.push([]) - 1 : found;
      lanes[lane]?.push(phase);
      return [phase, lane];
    });
}
