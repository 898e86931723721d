// The thread of loop_watch.ts. It asks the debugger of the main thread, which answers also from a loop without end.
import { writeSync } from 'node:fs';
import { type Debugger, Session } from 'node:inspector';
import { isatty } from 'node:tty';
import { fileURLToPath } from 'node:url';
import { workerData } from 'node:worker_threads';
import { printable } from '../base/printable';
import { isUsers, type Place } from '../base/thrown_at';
import type { LoopWatchData } from './loop_watch';

const MOST_CALLS = 6;
/** To a function of a file's: where microtasks follow one another V8 may stop only between them, with Node's own loop alone in sight. */
const MOST_STEPS = 16;

interface Call extends Place {
  name: string;
}

/** Asks for the calls that the main thread is in, innermost first, those within Node left out; it stands still for the answer. */
class StackQuestion {
  readonly #session = new Session();
  readonly #files = new Map<string, string>();
  #open = true;
  #steps = 0;

  /** `answer` is called once: at once where JavaScript runs; when it runs again, or never, where a native function has not returned. */
  constructor(answer: (calls: Call[]) => void) {
    this.#session.connectToMainThread();
    this.#session.on('Debugger.scriptParsed', ({ params: { scriptId, url } }) => {
      const file = url.startsWith('file:') ? fileURLToPath(url) : url;
      if (file.startsWith('/')) this.#files.set(scriptId, file);
    });
    this.#session.on('Debugger.paused', ({ params }) => {
      const calls = params.callFrames.flatMap((frame) => this.#call(frame));
      if (!this.#open) return;
      if (calls.length === 0 && this.#steps++ < MOST_STEPS) {
        this.#session.post('Debugger.stepInto');
        return;
      }
      this.end();
      answer(calls);
    });
    this.#session.post('Debugger.enable');
    this.#session.post('Debugger.pause');
  }

  get open(): boolean {
    return this.#open;
  }

  /** What is paused goes on. */
  end(): void {
    if (this.#open) this.#session.disconnect();
    this.#open = false;
  }

  #call({ functionName, location }: Debugger.CallFrame): Call[] {
    const file = this.#files.get(location.scriptId);
    return file === undefined ? [] : [{ file, line: location.lineNumber + 1, name: functionName }];
  }
}

const { turns, tickMs, userMs, anyMs } = workerData as LoopWatchData;
const told = new Set<string>();
let question: StackQuestion | null = null;
let seen = -1;
/** Of this thread, since the loop last turned: a process that is stopped has none. */
let ticks = 0;
/** That the loop does not turn. */
let isTold = false;

function look(): void {
  const now = Atomics.load(turns, 0);
  ticks = now === seen ? ticks + 1 : 0;
  seen = now;
  if (ticks === 0) {
    question?.end();
    question = null;
    isTold = false;
  } else if (ticks === Math.ceil(userMs / tickMs)) {
    question = new StackQuestion((calls) => tell(calls.filter(({ file }) => isUsers(file))));
  } else if (ticks === Math.ceil(anyMs / tickMs) && !isTold) {
    if (question?.open) tellNative();
    else question = new StackQuestion((calls) => (calls.length === 0 ? tellNative() : tell(calls)));
  }
}

/** Each function once: it may be as slow in every step. */
function tell(calls: readonly Call[]): void {
  const [first, ...others] = calls;
  if (first === undefined) return;
  isTold = true;
  const place = `${first.file} ${first.name}`;
  if (told.has(place)) return;
  told.add(place);
  const from = others.slice(0, MOST_CALLS - 1).map((call) => `, called at ${call.file}:${call.line}`);
  say(`${first.name || 'a function'} at ${first.file}:${first.line} does not return${from.join('')}`);
}

const tellNative = (): void => say('a function of Node or of a native library does not return');

/** Past `process.stderr`, whose writing is the main thread's. */
function say(what: string): void {
  const seconds = Math.round((ticks * tickMs) / 1000);
  const text = printable(`for ${seconds} s nothing else has happened in this process: ${what}`, {
    max: 2000,
  });
  try {
    writeSync(
      2,
      `${isatty(2) ? '\r\u001b[K' : ''}troupe: ${text}. All else waits for it, time-outs and the first Ctrl-C included\n`,
    );
  } catch {
    // Nobody reads it, or not now.
  }
}

setInterval(look, tickMs);
