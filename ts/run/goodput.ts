// How much of the time of a run has made it go on, over its failures and starts.

export class Goodput {
  private readonly begun: number;
  private good = 0;
  private furthest = 0;
  private again = 0;

  /** Milliseconds, as all times here. */
  constructor(now: number) {
    this.begun = now;
  }

  /** The step that the run has got to. */
  get step(): number {
    return this.furthest;
  }

  /** Steps that were made once more, for what they had done before was lost. */
  get lostSteps(): number {
    return this.again;
  }

  /** A step is done, `ms` after the one before it, or after the beginning of its session. */
  stepDone(step: number, ms: number): void {
    if (step <= this.furthest) {
      this.again++;
      return;
    }
    this.furthest = step;
    this.good += ms;
  }

  /** Share of the time since the beginning that went into steps that count: not into starts, failures and steps made again. */
  share(now: number): number {
    const all = now - this.begun;
    return all <= 0 ? 0 : Math.min(1, this.good / all);
  }
}
