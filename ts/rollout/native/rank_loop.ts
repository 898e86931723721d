// The requests of one rank: turns of its engine follow each other for as long as there are any.
import type {
  NativeRolloutCommands,
  NativeRolloutOutput,
  NativeRolloutStats,
  NativeRolloutTurn,
} from '../../native/bridge';
import type { LiveRequest } from './live_request';
import { NativeRequests } from './native_request';

/** Steps of a turn begin within so many milliseconds. */
const TURN_MS = 40;
/** Turns under way: the engine finds the next one when it has ended one. */
const TURNS = 2;

export interface RankCalls {
  turn(commands: NativeRolloutCommands): Promise<NativeRolloutTurn>;
  /** Whether turns may be made now; otherwise `wake` is called when they may. */
  ready(): boolean;
  /** The weights were not at hand for a turn. */
  lost(): void;
  /** A request has ended. */
  left(): void;
  /** No turn is under way: nothing is left to do, or turns may not be made now. */
  rests(): void;
}

export class RankLoop {
  stats: NativeRolloutStats | null = null;
  private readonly live = new Map<number, LiveRequest>();
  private readonly native = new NativeRequests();
  private commands: NativeRolloutCommands = none();
  private underWay = 0;
  /** The engine has nothing to do until something is said to it. */
  private resting = false;

  constructor(private readonly calls: RankCalls) {}

  get size(): number {
    return this.live.size;
  }

  get busy(): boolean {
    return this.underWay > 0;
  }

  submit(request: LiveRequest): void {
    this.live.set(request.id, request);
    this.commands.submit.push(this.native.of(request));
  }

  abort(request: LiveRequest): void {
    if (this.live.has(request.id)) this.commands.abort.push(request.id);
    this.wake();
  }

  requests(): LiveRequest[] {
    return [...this.live.values()];
  }

  /** Makes turns as long as there is something to do. */
  wake(): void {
    const said = (): boolean => {
      const { submit, abort, masks } = this.commands;
      return submit.length + abort.length + masks.length > 0;
    };
    while (this.underWay < TURNS && this.calls.ready() && (said() || (this.live.size > 0 && !this.resting)))
      void this.turn();
    if (this.underWay === 0) this.calls.rests();
  }

  fail(error: unknown): void {
    this.commands = none();
    for (const request of this.requests()) {
      request.fail(error);
      this.drop(request);
    }
  }

  private async turn(): Promise<void> {
    const { commands } = this;
    this.commands = none();
    this.resting = false;
    this.underWay++;
    try {
      const { outputs, stats, ready, idle } = await this.calls.turn(commands);
      this.stats = stats;
      for (const output of outputs) this.take(output);
      if (!ready) this.calls.lost();
      // A turn behind this one may have been told more.
      else if (this.underWay === 1) this.resting = idle;
    } catch (error) {
      this.fail(error);
    } finally {
      this.underWay--;
      this.wake();
    }
  }

  private take(output: NativeRolloutOutput): void {
    const request = this.live.get(output.id);
    if (request === undefined) return;
    const progress = request.take(output);
    if (progress === 'stopped') this.commands.abort.push(request.id);
    if (progress !== 'runs') this.drop(request);
    else if (output.needsMask) void this.mask(request, output.tokens);
  }

  private async mask(request: LiveRequest, tokens: Int32Array): Promise<void> {
    try {
      const words = await request.sampling.constraint?.next(tokens);
      if (request.ended) return;
      if (words?.every((word) => word === 0)) throw new Error('[rollout] the constraint allows no token');
      this.commands.masks.push({ id: request.id, words: Int32Array.from(words ?? []) });
    } catch (error) {
      if (this.live.has(request.id)) this.commands.abort.push(request.id);
      request.fail(error);
      this.drop(request);
    }
    this.wake();
  }

  private drop(request: LiveRequest): void {
    if (this.live.delete(request.id)) this.calls.left();
  }
}

const none = (): NativeRolloutCommands => ({ submit: [], abort: [], masks: [], milliseconds: TURN_MS });
