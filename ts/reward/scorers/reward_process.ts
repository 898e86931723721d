import { GroupGuard } from '../../base/group_guard';
import { timerMs } from '../../base/timers';
import { boundsItself } from '../contract/bounded';
import {
  endError,
  hold,
  isLostChannel,
  replyError,
  type ScorerChild,
  START_MS,
  startScorer,
  strayError,
} from './fork';
import type { ScorerMessage, ScorerSetup } from './scorer_protocol';

interface Call {
  readonly job: unknown;
  resolve(result: unknown): void;
  reject(error: Error): void;
  timer: NodeJS.Timeout | null;
  /** begun: the function is running and has not returned; waiting: for its promise. */
  state: 'sent' | 'begun' | 'waiting';
}

const SETUP = 0;
/** What an ended process has sent is waited for so long, milliseconds. */
const DRAIN_MS = 1000;

/**
 * One child process in which a user's function runs, any number of calls at once, as they would in this one. A function that loops
 * is killed at its time-out, one that ends its process or throws where nothing catches it fails for its response; the process is
 * started anew and the other calls are made again. What this process does, above all its signals, goes on meanwhile.
 */
export class RewardProcess {
  readonly #setup: ScorerSetup;
  readonly #timeoutMs: number;
  readonly #guard = new GroupGuard();
  #child: ScorerChild | null = null;
  #startTimer: NodeJS.Timeout | null = null;
  /** It was asked whether it does anything at all. */
  #asked: NodeJS.Timeout | null = null;
  readonly #calls = new Map<number, Call>();
  #next = SETUP + 1;
  #lastBegun = SETUP;
  /** Why the process ends, where its exit code does not tell. */
  #reason: Error | null = null;
  /** An end with no call under way: the next one is told. */
  #late: Error | null = null;
  /** The call that the process ends for has its answer. */
  #settled = false;
  #closed = false;

  /** `timeoutMs`: from when a call begins to its answer. */
  constructor(setup: ScorerSetup, timeoutMs: number) {
    this.#setup = setup;
    this.#timeoutMs = timeoutMs;
  }

  /**
   * The function's answer.
   * @throws ConfigError when the function cannot be had; Error when it failed, was late or ended its process
   */
  call(job: unknown): Promise<unknown> {
    const answer = new Promise<unknown>((resolve, reject) => {
      if (this.#closed) return reject(new Error('the process of the reward function was closed'));
      const late = this.#late;
      this.#late = null;
      if (late !== null) return reject(late);
      this.#calls.set(this.#next, { job, resolve, reject, timer: null, state: 'sent' });
      this.#send(this.#next++);
    });
    // The time-out is kept here, where it is known when the function began.
    return boundsItself(answer);
  }

  /** Kills the process; calls under way fail. */
  close(): void {
    this.#closed = true;
    this.#reason = new Error('the process of the reward function was closed');
    this.#child?.kill('SIGKILL');
    this.#failAll(this.#reason);
  }

  /**
   * Loads the module, so that what is wrong with it shows now.
   * @throws ConfigError when there is no such module or function; Error when loading it ends the process, or takes too long
   */
  async start(): Promise<void> {
    await new Promise<void>((resolve, reject) => {
      this.#calls.set(SETUP, { job: null, resolve: () => resolve(), reject, timer: null, state: 'sent' });
      hold(this.#child ?? this.#start(), true);
    });
  }

  #send(id: number): void {
    const child = this.#child ?? this.#start();
    hold(child, true);
    const failed = (error: Error | null): void => {
      // A dying process is no reason: its end says more.
      if (error && child.connected && !isLostChannel(error)) this.#fail(id, error);
    };
    try {
      child.send({ type: 'job', id, job: this.#calls.get(id)?.job }, failed);
    } catch (error) {
      failed(error as Error);
    }
  }

  #start(): ScorerChild {
    const child = startScorer(this.#setup, { memoryMb: null, output: true, env: {} }, this.#guard);
    this.#child = child;
    this.#lastBegun = SETUP;
    this.#reason = null;
    this.#settled = false;
    let up = false;
    this.#startTimer = setTimeout(() => {
      this.#reason = new Error(`${START_MS / 1000} s went by`);
      child.kill('SIGKILL');
    }, START_MS);
    child.on('message', (message: ScorerMessage) => {
      if (message.type === 'reply' && message.id === SETUP) {
        if (this.#startTimer) clearTimeout(this.#startTimer);
        up = true;
        if (message.ok) this.#remove(SETUP)?.resolve(null);
        else {
          this.#failAll(replyError(message));
          this.#settled = true;
          child.kill('SIGKILL');
        }
      } else this.#read(message);
    });
    child.on('error', (error) => {
      this.#reason ??= error;
      // One that never started does not end either.
      if (child.pid === undefined) this.#ended(error, up);
    });
    child.on('exit', (code, signal) => {
      let over = false;
      const end = (): void => {
        if (over) return;
        over = true;
        this.#ended(this.#reason ?? endError(code, signal), up);
      };
      // What it said before it ended may still be on its way.
      if (!child.connected) return end();
      child.once('disconnect', end);
      setTimeout(end, DRAIN_MS);
    });
    child.send({ type: 'setup', id: SETUP, setup: this.#setup }, () => undefined);
    return child;
  }

  #read(message: ScorerMessage): void {
    if (message.type === 'stray') {
      this.#reason ??= strayError(message.error);
      return;
    }
    // Calls that were sent before are served before.
    this.#asked?.refresh();
    if (message.type === 'here') {
      if (this.#asked) clearTimeout(this.#asked);
      this.#asked = null;
      return;
    }
    const { id } = message;
    const call = this.#calls.get(id);
    if (message.type === 'begin') this.#lastBegun = id;
    if (call === undefined) return;
    if (message.type === 'begin') {
      call.state = 'begun';
      call.timer = setTimeout(() => this.#expire(id), timerMs(this.#timeoutMs));
    } else if (message.type === 'waiting') {
      call.state = 'waiting';
      if (message.bounded && call.timer) clearTimeout(call.timer);
    } else if (message.ok) {
      this.#remove(id)?.resolve(message.result);
    } else {
      this.#fail(id, replyError(message));
    }
  }

  #expire(id: number): void {
    const call = this.#calls.get(id);
    const loops = call?.state === 'begun';
    // While another call does not return, this one's answer cannot come.
    if (call && !loops && [...this.#calls.values()].some(({ state }) => state === 'begun')) {
      call.timer = setTimeout(() => this.#expire(id), timerMs(this.#timeoutMs));
      return;
    }
    this.#fail(id, new Error(`no answer within ${this.#timeoutMs / 1000} s`));
    if (loops) this.#end();
    else this.#ask();
  }

  /** Of code that does not return; its call has failed. */
  #end(): void {
    this.#settled = true;
    this.#child?.kill('SIGKILL');
  }

  /** After a promise that came too late: code behind an `await` may be what does not return, and then no other call would begin. */
  #ask(): void {
    const child = this.#child;
    if (child === null || this.#asked !== null) return;
    this.#asked = setTimeout(() => this.#end(), timerMs(this.#timeoutMs)).unref();
    if (child.connected) child.send({ type: 'ask' }, () => undefined);
  }

  #remove(id: number): Call | undefined {
    const call = this.#calls.get(id);
    if (call?.timer) clearTimeout(call.timer);
    this.#calls.delete(id);
    if (this.#calls.size === 0 && this.#child) hold(this.#child, false);
    return call;
  }

  #fail(id: number, error: Error): void {
    this.#remove(id)?.reject(error);
  }

  #failAll(error: Error): void {
    for (const id of [...this.#calls.keys()]) this.#fail(id, error);
  }

  /** `up`: its module was loaded. */
  #ended(reason: Error, up: boolean): void {
    for (const timer of [this.#startTimer, this.#asked]) if (timer) clearTimeout(timer);
    this.#asked = null;
    this.#child = null;
    if (this.#closed) return;
    if (!up) {
      this.#failAll(new Error(`while its module was loaded, ${reason.message}`));
      return;
    }
    if (!this.#settled) {
      // Who did it is known for certain only of code that had not returned; else it is the call that began last, or any.
      const guilty = [this.#lastBegun, ...this.#calls.keys()].find((id) => this.#calls.has(id));
      if (guilty === undefined) this.#late = reason;
      else this.#fail(guilty, reason);
    }
    for (const [id, call] of this.#calls) {
      if (call.timer) clearTimeout(call.timer);
      Object.assign(call, { timer: null, state: 'sent' });
      this.#send(id);
    }
  }
}
