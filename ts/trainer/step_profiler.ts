// Traces of the steps that a run profiles: of its workers, and of the phases of the trainer.
import { join } from 'node:path';
import { gzipSync } from 'node:zlib';
import { writeFileAtomic } from '../base/atomic_file';
import type { ProfilePlan } from '../config/derived/profile';
import { phaseTrace } from '../records/phase_trace';
import type { Interval } from '../records/trace_log';
import type { PhaseTimer } from './metrics/metrics';
import type { RankTrace, Recorder } from './profiled_pools';

/** In names of files, as verl has it: of local time, to the millisecond. */
function stamp(time: number): string {
  const local = new Date(time - new Date(time).getTimezoneOffset() * 60_000);
  return local.toISOString().replace(/\D/g, '');
}

export class StepProfiler {
  /** The first step of what is being recorded. */
  private first: number | null = null;
  private phases: Interval[] = [];

  constructor(
    private readonly plan: ProfilePlan,
    private readonly recorder: Recorder,
  ) {}

  /** Before step `step`. */
  async begin(step: number, timer: PhaseTimer): Promise<void> {
    if (this.first !== null || !this.plan.profiles(step)) return;
    await timer.time('start_profile', () => this.recorder.begin());
    this.first = step;
  }

  /** After it. @throws TroupeError NO_SPACE, IO naming the trace that could not be written */
  async end(step: number, timer: PhaseTimer): Promise<void> {
    if (this.first === null) return;
    this.phases.push(...timer.intervals);
    if (this.plan.continuous && this.plan.profiles(step + 1)) return;
    await timer.time('stop_profile', () => this.finish());
  }

  /** The step was given up. */
  async abandon(step: number): Promise<void> {
    if (this.first !== step) return;
    this.first = null;
    await this.recorder.drop();
  }

  /** There are no more steps: what is still recorded is written. */
  async finish(): Promise<void> {
    if (this.first === null) return;
    const { first, phases } = this;
    this.first = null;
    this.phases = [];
    const traces = await this.recorder.end();
    const names = new Set<string>();
    for (const trace of traces) {
      const name = unused(nameOf(trace, first), names);
      writeFileAtomic(join(this.plan.directory, `${name}.json.gz`), trace.bytes);
    }
    const own = phaseTrace(phases, traces[0]?.zero ?? 0);
    const name = `trainer_step${first}_pid${process.pid}_${stamp(Date.now())}`;
    writeFileAtomic(join(this.plan.directory, `${name}.json.gz`), gzipSync(own));
  }
}

function nameOf({ roles, scope, piece, rank, ranks, pid, time }: RankTrace, step: number): string {
  return `${roles}_${piece ?? scope}_step${step}_rank${rank}-of-${ranks}_pid${pid}_${stamp(time)}`;
}

/** Pieces of work that begin in the same millisecond. */
function unused(name: string, names: Set<string>): string {
  let free = name;
  for (let part = 1; names.has(free); part++) free = `${name}_part${part}`;
  names.add(free);
  return free;
}
