// A call that a worker has answered, for whoever watches where the time goes.

export interface EngineCall {
  rank: number;
  /** null: the run has one pool. */
  pool: string | null;
  /** generate, updatePolicy, ... of which engine: "updatePolicy of 'actor'". */
  name: string;
  /** What the trainer was at: "update_actor of step 3"; null: nothing in particular. */
  phase: string | null;
  /** Milliseconds of it for which the worker computed, or wanted to; the rest it waited, for its peers mostly. null: not known. */
  busyMs: number | null;
  /** When its rank could begin with it and when its answer was there, in milliseconds of performance.now(). */
  start: number;
  end: number;
}

/** The calls since somebody last looked. */
export class CallLog {
  private calls: EngineCall[] = [];

  readonly add = (call: EngineCall): void => {
    this.calls.push(call);
  };

  take(): EngineCall[] {
    const taken = this.calls;
    this.calls = [];
    return taken;
  }
}
