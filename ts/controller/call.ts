// A call that a worker has answered, for whoever watches where the time goes.

export interface EngineCall {
  rank: number;
  /** null: the run has one pool. */
  pool: string | null;
  /** generate, updatePolicy, ... of which engine: "updatePolicy of 'actor'". */
  name: string;
  /** When it was asked for and when its answer was there, in milliseconds of performance.now(). */
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
