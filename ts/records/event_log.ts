// events.jsonl: what happened to a run, and when, beside its numbers.
import { hostname } from 'node:os';
import { join } from 'node:path';
import { appendWhole } from '../logging/append';
import type { MetricLogger, Metrics, RunOutcome } from '../logging/logger';
import type { EventKind, RunEvent } from './schema';

/** Metrics that say that something went wrong in a step, when they are above 0. */
const TROUBLE: Readonly<Record<string, string>> = {
  'actor/update_skipped': 'updates of the actor left out: the loss or the gradient was not finite',
  'critic/update_skipped': 'updates of the critic left out: the loss or the gradient was not finite',
  'train/update_skipped': 'updates left out: the loss or the gradient was not finite',
  'reward/failures': 'responses scored 0 because the reward function failed',
};

export class EventLog implements MetricLogger {
  readonly name = 'events.jsonl';
  private readonly path: string;
  private step: number;
  private left = false;

  /** `step`: steps done so far. */
  constructor(directory: string, step: number) {
    this.path = join(directory, this.name);
    this.step = step;
  }

  /** Adds a line. Throws what the disk says. */
  add(kind: EventKind, message: string, data?: Record<string, unknown>, step = this.step): void {
    if (this.left) return;
    const event: RunEvent = { time: Date.now() / 1000, step, kind, message, ...(data ? { data } : {}) };
    appendWhole(
      this.path,
      `${JSON.stringify(event)}
`,
    );
  }

  /** The same where a failure must not matter, as while another one is handled. */
  tryAdd(kind: EventKind, message: string, data?: Record<string, unknown>, step = this.step): void {
    try {
      this.add(kind, message, data, step);
    } catch {
      // Loggers warn of a disk that takes nothing.
    }
  }

  /** The file is another run's now. */
  leave(): void {
    this.left = true;
  }

  start(message: string, data: Record<string, unknown>): void {
    this.tryAdd('start', message, { pid: process.pid, host: hostname(), ...data });
  }

  log(metrics: Metrics, step: number): void {
    this.step = step;
    for (const [name, what] of Object.entries(TROUBLE))
      if ((metrics[name] ?? 0) > 0) this.add('warning', `${metrics[name]} ${what}`);
  }

  close(outcome: RunOutcome): void {
    this.add('end', outcome, { outcome });
  }
}
