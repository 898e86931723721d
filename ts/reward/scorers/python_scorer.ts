import { type ChildProcess, spawn } from 'node:child_process';
import { EventEmitter } from 'node:events';
import type { Socket } from 'node:net';
import path from 'node:path';
import { printable } from '../../base/printable';
import { reasonOf } from '../../base/text';
import { packageRoot } from '../../install/package_root';
import { fromLine, toLine } from './json_lines';
import { MAX_REASON, type ScorerMessage, type ScorerRequest, type UserModule } from './scorer_protocol';

/** Whether a module is one that Python runs. */
export const isPython = (module: string): boolean => module.endsWith('.py');

interface Sample {
  dataSource: string;
  response: string;
  groundTruth: unknown;
  extraInfo?: object;
  numTurns?: number;
  toolRewards?: readonly number[];
}

/** What verl's managers put there beside the row's own. */
const extraInfo = ({ extraInfo, numTurns, toolRewards }: Sample, more?: object): object => ({
  ...extraInfo,
  ...(toolRewards && { turn_scores: [], tool_rewards: toolRewards }),
  num_turns: numTurns ?? null,
  rollout_reward_scores: {},
  ...more,
});

/** The arguments of verl's reward functions. */
function keywords(job: Sample | readonly Sample[], more?: object): object {
  if ('response' in job) {
    const { dataSource, response, groundTruth = null } = job;
    return {
      data_source: dataSource,
      solution_str: response,
      ground_truth: groundTruth,
      extra_info: extraInfo(job, more),
    };
  }
  return {
    data_sources: job.map(({ dataSource }) => dataSource),
    solution_strs: job.map(({ response }) => response),
    ground_truths: job.map(({ groundTruth = null }) => groundTruth),
    extra_infos: job.map((sample) => extraInfo(sample, more)),
  };
}

/**
 * A process that runs a user's function in Python (python/reward_worker.py), with the events and methods of one that runs a function in
 * JavaScript. What it is told, and tells, goes over sockets of their own: the function may print. They are two, because one to a process that
 * has ended is closed by the next write, and what that process had said before must still be read.
 */
export class PythonScorer extends EventEmitter {
  readonly #child: ChildProcess;
  readonly #requests: Socket | null;
  /** The sockets keep this process alive as long as it is wanted. */
  readonly channel: { ref(): void; unref(): void };
  readonly #more: object | undefined;
  #connected = true;
  #partial: string[] = [];
  /** It said what is no message, and nothing that follows is believed. */
  #broken = false;
  /** It has not said yet that it is there. */
  #awaited = true;

  constructor({ python = 'python3', extraInfo }: UserModule, env: Readonly<Record<string, string>>) {
    super();
    this.#more = extraInfo;
    const program = path.join(packageRoot, 'python', 'reward_worker.py');
    this.#child = spawn(python, ['-u', program], {
      env: { ...process.env, ...env },
      // What it prints is for people, and may be no part of what this process writes to its output.
      stdio: ['ignore', 2, 2, 'pipe', 'pipe'],
      // A Ctrl-C goes to the whole process group of the terminal; the trainer still wants its rewards then.
      detached: true,
    });
    const [requests = null, replies = null] = (this.#child.stdio?.slice(3) ?? []) as (Socket | null)[];
    const sockets = [requests, replies];
    this.#requests = requests;
    const hold = (way: 'ref' | 'unref'): void => {
      for (const socket of sockets) if (socket?.destroyed === false) socket[way]();
    };
    this.channel = { ref: () => hold('ref'), unref: () => hold('unref') };
    for (const socket of sockets) socket?.on('error', () => undefined); // writing says it to who writes
    requests?.resume();
    replies?.setEncoding('latin1');
    replies?.on('data', (text: string) => this.#read(text));
    replies?.on('close', () => {
      this.#connected = false;
      if (this.#awaited)
        this.#refuse(
          `${python}, which is to run the reward function, ended before it began to: expected Python 3.8 or newer`,
        );
      this.emit('disconnect');
    });
    this.#child.on('exit', (code, signal) => this.emit('exit', code, signal));
    this.#child.on('error', (error: NodeJS.ErrnoException) => {
      if (this.#child.pid === undefined)
        this.#refuse(
          `could not start ${python}, which is to run the reward function (${reasonOf(error)}): install it, or give another`,
        );
      this.emit('error', error);
    });
  }

  get pid(): number | undefined {
    return this.#child.pid;
  }

  get connected(): boolean {
    return this.#connected;
  }

  send(request: ScorerRequest, sent: (error: Error | null) => void): void {
    const message =
      request.type === 'job'
        ? { ...request, job: keywords(request.job as Sample | readonly Sample[], this.#more) }
        : request;
    this.#requests?.write(toLine(message), (error) => sent(error ?? null));
  }

  kill(signal: 'SIGKILL'): void {
    // Whoever kills it knows why it ends.
    this.#awaited = false;
    this.#child.kill(signal);
  }

  ref(): void {
    this.#child.ref();
  }

  unref(): void {
    this.#child.unref();
  }

  #read(text: string): void {
    if (this.#broken) return;
    this.#awaited = false;
    const lines = text.split('\n');
    this.#partial.push(lines[0] as string);
    if (lines.length === 1) return;
    const ended = [this.#partial.join(''), ...lines.slice(1, -1)];
    this.#partial = [lines.at(-1) as string];
    for (const line of ended) {
      let message: ScorerMessage;
      try {
        message = fromLine(line) as ScorerMessage;
      } catch {
        this.#broken = true;
        this.emit('error', new Error('it wrote to the socket of its process (file descriptor 4)'));
        this.kill('SIGKILL');
        return;
      }
      if ('error' in message) message.error = printable(message.error, { max: MAX_REASON });
      this.emit('message', message);
    }
  }

  /** As if it had answered its setup. */
  #refuse(reason: string): void {
    this.#awaited = false;
    this.emit('message', {
      type: 'reply',
      id: 0,
      ok: false,
      error: `reward.custom_reward_function.python: ${reason}`,
      configuration: true,
    } satisfies ScorerMessage);
  }
}
