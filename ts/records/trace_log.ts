// trace.jsonl: when each phase of a step ran, what each rank was at meanwhile, and the memory it had then.
import { freemem, totalmem } from 'node:os';
import { join } from 'node:path';
import type { EngineCall } from '../controller/call';
import type { MemberMemory } from '../controller/resource_pools';
import { appendWhole } from '../logging/append';
import type { Span, TraceLine } from './schema';

/** A phase, in milliseconds of performance.now(). */
export interface Interval {
  name: string;
  start: number;
  end: number;
}

/** Tenths of a millisecond, in seconds. */
const seconds = (milliseconds: number): number => Math.round(milliseconds * 10) / 10_000;

const keyOf = ({ rank, pool }: { rank: number; pool: string | null }): string => `${pool ?? ''}/${rank}`;

/** The line of one step. Calls of a rank run one after another, whenever they were asked for: its engine thread is one. */
export function traceLine(
  step: number,
  phases: readonly Interval[],
  calls: readonly EngineCall[],
  memory: readonly MemberMemory[],
): TraceLine {
  const zero = Math.min(...phases.map(({ start }) => start));
  const ranks = new Map<string, TraceLine['ranks'][number]>();
  const rankOf = (of: { rank: number; pool: string | null }): TraceLine['ranks'][number] => {
    const found = ranks.get(keyOf(of)) ?? {
      rank: of.rank,
      ...(of.pool === null ? {} : { pool: of.pool }),
      calls: [],
    };
    ranks.set(keyOf(of), found);
    return found;
  };
  const free = new Map<string, number>();
  // What was over before is of a validation before the first step.
  const within = calls.filter(({ end }) => end > zero);
  for (const call of within.sort((a, b) => a.end - b.end)) {
    const start = Math.max(call.start, free.get(keyOf(call)) ?? zero);
    free.set(keyOf(call), call.end);
    rankOf(call).calls.push([call.name, seconds(start - zero), seconds(call.end - start)]);
  }
  for (const { rank, pool, peakRss, allocated, maxAllocated } of memory)
    rankOf({ rank, pool }).memory = { peakRss, allocated, maxAllocated };
  const spans = phases.map(
    ({ name, start, end }): Span => [name, seconds(start - zero), seconds(end - start)],
  );
  return {
    step,
    time: (performance.timeOrigin + zero) / 1000,
    phases: spans.sort((a, b) => a[1] - b[1] || b[2] - a[2]),
    ranks: [...ranks.values()].sort((a, b) => (a.pool ?? '').localeCompare(b.pool ?? '') || a.rank - b.rank),
    host: { used: totalmem() - freemem(), total: totalmem() },
  };
}

/** Where the lines go. A disk that does not take one is no reason to end a run: `warn` hears of the first. */
export class TraceLog {
  private readonly path: string;
  private failed = false;

  constructor(
    directory: string,
    private readonly warn: (line: string) => void,
  ) {
    this.path = join(directory, 'trace.jsonl');
  }

  write(line: TraceLine): void {
    try {
      appendWhole(this.path, `${JSON.stringify(line)}\n`);
    } catch (error) {
      if (this.failed) return;
      this.failed = true;
      this.warn(`trace.jsonl failed, the run goes on without what it missed: ${(error as Error).message}`);
    }
  }
}
