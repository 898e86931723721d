// What a session of a run writes down beside its metrics. Nothing of it may end a run, or change a number of it.
import { rmSync } from 'node:fs';
import { join } from 'node:path';
import { writeFileAtomic } from '../base/atomic_file';
import { reasonOf } from '../base/text';
import type { EngineCall } from '../controller/call';
import type { MemberMemory } from '../controller/resource_pools';
import { EventLog } from './event_log';
import type { PlanFile, TokenRecord } from './schema';
import { writeTokens } from './token_log';
import { type Interval, TraceLog, traceLine } from './trace_log';

/** What the ranks did in a step, and their memory after it. */
export interface Observed {
  calls: readonly EngineCall[];
  memory: readonly MemberMemory[];
}

export interface RunRecordsOptions {
  directory: string;
  /** Steps done before this session; 0: events of an earlier run in this directory go. */
  firstStep: number;
  /** Whether a trace is written. */
  trace: boolean;
  warn: (line: string) => void;
}

export class RunRecords {
  readonly events: EventLog;
  private readonly trace: TraceLog | null;
  private readonly directory: string;
  private readonly warn: (line: string) => void;
  private tokensFailed = false;

  constructor({ directory, firstStep, trace, warn }: RunRecordsOptions) {
    this.directory = directory;
    this.warn = (line) => {
      this.events.tryAdd('warning', line);
      warn(line);
    };
    this.events = new EventLog(directory, firstStep);
    this.trace = trace ? new TraceLog(directory, this.warn) : null;
    if (firstStep === 0) rmSync(join(directory, this.events.name), { force: true });
  }

  step(step: number, phases: readonly Interval[], observed: Observed | null): void {
    if (this.trace === null || phases.length === 0) return;
    this.trace.write(traceLine(step, phases, observed?.calls ?? [], observed?.memory ?? []));
  }

  /** `work` may fail: of what it works with, only the tokenizer knows what it takes. */
  tokens(step: number, work: () => readonly TokenRecord[]): void {
    try {
      writeTokens(this.directory, step, work());
    } catch (error) {
      if (this.tokensFailed) return;
      this.tokensFailed = true;
      this.warn(`tokens/${step}.jsonl failed, the run goes on without it: ${reasonOf(error)}`);
    }
  }

  /** `work` reads the shapes of the models; where it cannot, there is no plan to compare with. */
  async plan(work: () => Promise<PlanFile>): Promise<void> {
    try {
      writeFileAtomic(join(this.directory, 'plan.json'), `${JSON.stringify(await work())}\n`);
    } catch (error) {
      this.events.tryAdd('note', `there is no memory plan: ${reasonOf(error)}`);
    }
  }
}
