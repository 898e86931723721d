// Requests that no server has.
import type { Job } from './job';

export class JobQueue {
  private admitted: Job[] = [];
  /** Came in a pause, and wait for its end. */
  private held: Job[] = [];

  get size(): number {
    return this.admitted.length + this.held.length;
  }

  /** Whether nothing is left that may go now. */
  get empty(): boolean {
    this.admitted = this.admitted.filter(({ handle }) => !handle.ended);
    return this.admitted.length === 0;
  }

  /** Which goes next. */
  get first(): Job | undefined {
    return this.admitted[0];
  }

  shift(): void {
    this.admitted.shift();
  }

  push(job: Job): void {
    // From the end: most requests are as urgent as the one before, and a batch has a hundred thousand.
    const before = this.admitted.findLastIndex(({ priority }) => priority >= job.priority);
    this.admitted.splice(before + 1, 0, job);
  }

  /** One that was interrupted goes before all others. */
  putBack(job: Job): void {
    this.admitted.unshift(job);
  }

  hold(job: Job): void {
    this.held.push(job);
  }

  release(): void {
    for (const job of this.held.splice(0)) this.push(job);
  }

  /** Takes all of them out. */
  drain(): Job[] {
    return [...this.admitted.splice(0), ...this.held.splice(0)];
  }
}
