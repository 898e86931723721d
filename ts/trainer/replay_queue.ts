// What is worked on and what is done, between those who collect responses and the policy that learns from them.

export interface QueueOptions {
  /** Groups that a step takes. */
  wanted: number;
  /** Groups that may be worked on, or be done, beside these. */
  ahead: number;
  /** Steps from the one in which work on a group begins to the one that takes it, both counted, at most. */
  maxSpan: number;
  /** drop: a group that is not taken in time is left out. wait: a step waits for older groups as long as those that it would leave could not all be taken in time. */
  strategy: 'drop' | 'wait';
  /** After which nothing is taken. */
  lastStep: number;
}

/** A group of responses to one prompt. */
export interface QueuedGroup<P, R> {
  readonly prompt: P;
  /** In which work on it began. */
  readonly step: number;
  /** null: it is being worked on. */
  readonly result: R | null;
}

/** A group that is done, and no longer in the queue. */
export type TakenGroup<P, R> = Omit<QueuedGroup<P, R>, 'result'> & { readonly result: R };

/** Groups in the order in which work on them began. Nothing here waits: a caller looks again when something has changed. */
export class ReplayQueue<P, R> {
  private groups: QueuedGroup<P, R>[] = [];
  /** Of these the ones without a result: who works on them asks how many there are whenever one is done. */
  private readonly working = new Set<QueuedGroup<P, R>>();

  constructor(private readonly options: QueueOptions) {}

  /** Groups that are being worked on. */
  get running(): number {
    return this.working.size;
  }

  /** Groups that a step may take. */
  get done(): number {
    return this.groups.length - this.running;
  }

  /** How many more may begin before step `step` takes its own: never more than the run is going to take. */
  room(step: number): number {
    const { wanted, ahead, lastStep } = this.options;
    return Math.min(wanted + ahead, wanted * (lastStep - step + 1)) - this.groups.length;
  }

  begin(prompt: P, step: number): QueuedGroup<P, R> {
    const group: QueuedGroup<P, R> = { prompt, step, result: null };
    this.groups.push(group);
    this.working.add(group);
    return group;
  }

  /** Of one that is in the queue: it is done. */
  finish(group: QueuedGroup<P, R>, result: R): void {
    Object.assign(group, { result });
    this.working.delete(group);
  }

  /** It will never be taken. */
  leaveOut(group: QueuedGroup<P, R>): void {
    this.groups = this.groups.filter((one) => one !== group);
    this.working.delete(group);
  }

  /** Leaves out what is older than step `step` may take, done or not: what is not would take the place of what can be. */
  dropStale(step: number): QueuedGroup<P, R>[] {
    const { maxSpan, strategy } = this.options;
    if (strategy !== 'drop') return [];
    const stale = this.groups.filter((group) => this.span(group, step) > maxSpan);
    this.groups = without(this.groups, stale);
    for (const group of stale) this.working.delete(group);
    return stale;
  }

  /** Whether step `step` has what it takes. */
  ready(step: number): boolean {
    const { wanted, maxSpan, strategy } = this.options;
    if (this.done < wanted) return false;
    if (strategy === 'drop') return true;
    const next = this.nextTaken();
    // Of those that stay, older ones go first: so many to a step. All of them are in time where all are done, because no more begin than
    // `maxSpan` steps take.
    return without(this.groups, next).every(
      (group, i) => this.span(group, step + 1 + Math.floor(i / wanted)) <= maxSpan,
    );
  }

  /** The oldest that are done. */
  take(): TakenGroup<P, R>[] {
    const taken = this.nextTaken();
    this.groups = without(this.groups, taken);
    return taken.map(({ prompt, step, result }) => ({ prompt, step, result: result as R }));
  }

  private nextTaken(): QueuedGroup<P, R>[] {
    return this.groups.filter(({ result }) => result !== null).slice(0, this.options.wanted);
  }

  private span({ step: begun }: QueuedGroup<P, R>, step: number): number {
    return step - begun + 1;
  }
}

function without<T>(all: readonly T[], some: readonly T[]): T[] {
  const out = new Set(some);
  return all.filter((one) => !out.has(one));
}
