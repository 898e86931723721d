// Runs the stages of the check on a GPU: each at most once with success, each with its own time limit, the results of each
// handed over as soon as it ends, so that a check that is killed keeps what it found and the next call goes on behind it.
import { spawn, spawnSync } from 'node:child_process';
import {
  appendFileSync,
  existsSync,
  mkdirSync,
  readFileSync,
  renameSync,
  rmSync,
  writeFileSync,
} from 'node:fs';
import { join } from 'node:path';

/** How often a stage is tried that was ended by its time limit or with the whole check. */
const ATTEMPTS = 2;
/** Between asking a stage to end and killing it. */
const GRACE_MS = 5_000;

/**
 * @typedef {object} Stage
 * @property {string} name
 * @property {string[]} command program and arguments
 * @property {number} limit seconds it may take
 * @property {number} [least] seconds below which it is not worth starting; default: half its limit, at most 60
 * @property {string[]} [needs] stages without whose success it makes no sense
 * @property {string} [product] a file without which it counts as not done
 * @property {Record<string, string>} [env]
 * @property {(log: string) => string | null} [refuse] what is wrong with its output although it ended well
 * @property {(log: string) => string[]} [results] lines of its output for the summary
 */

/** What is known of each stage: state.json, in the working directory and, after each stage, where results go. */
export class State {
  #file;
  /** @param {{ pack: string, device: string }} of what the results are results of */
  constructor(directory, of) {
    this.#file = join(directory, 'state.json');
    this.of = of;
    this.stages = {};
    if (existsSync(this.#file)) this.take(this.#file);
  }

  /** Takes over what an earlier check found, here or on another machine. @throws Error when it is of something else */
  take(file) {
    const { pack, device, stages } = JSON.parse(readFileSync(file, 'utf8'));
    if (pack !== this.of.pack || device !== this.of.device)
      throw new Error(
        `${file}: expected results of pack ${this.of.pack} on ${this.of.device} but these are of ${pack} on ${device}; ` +
          'leave them out, or name another --work directory',
      );
    for (const [name, found] of Object.entries(stages)) {
      // It was running when everything ended.
      const killed = { ...found, outcome: 'killed', reason: 'the whole check was ended while it ran' };
      this.stages[name] = found.outcome === 'running' ? killed : found;
    }
  }

  set(name, found) {
    this.stages[name] = found;
    writeFileSync(`${this.#file}.partial`, this.text());
    renameSync(`${this.#file}.partial`, this.#file);
  }

  text() {
    return `${JSON.stringify({ ...this.of, stages: this.stages }, null, 2)}\n`;
  }
}

/** Runs a program in a process group of its own, which ends with it. */
async function runLimited(command, { seconds, env, onText }) {
  const [program, ...args] = command;
  const child = spawn(program, args, { env, stdio: ['ignore', 'pipe', 'pipe'], detached: true });
  const signalAll = (signal) => {
    try {
      process.kill(-child.pid, signal);
    } catch {
      // All have ended.
    }
  };
  let late = false;
  let kill;
  const timer = setTimeout(() => {
    late = true;
    signalAll('SIGTERM');
    kill = setTimeout(() => signalAll('SIGKILL'), GRACE_MS);
  }, 1000 * seconds);
  const stop = () => {
    signalAll('SIGKILL');
    process.exit(143);
  };
  process.on('SIGTERM', stop);
  process.on('SIGINT', stop);
  for (const stream of [child.stdout, child.stderr]) stream.on('data', onText);
  const end = await new Promise((done) => {
    child.on('error', (error) => done({ problem: error.message }));
    // Not `close`: what a stage left running may hold its output open for ever.
    child.on('exit', (code, signal) =>
      done({ problem: code === 0 ? null : `it ended with ${signal ?? `exit code ${code}`}` }),
    );
  });
  clearTimeout(timer);
  clearTimeout(kill);
  await new Promise((soon) => setTimeout(soon, 50));
  signalAll('SIGKILL');
  for (const stream of [child.stdout, child.stderr]) stream.destroy();
  process.off('SIGTERM', stop);
  process.off('SIGINT', stop);
  return { ...end, late };
}

export class Runner {
  #logs;
  #started = performance.now();

  /**
   * @param {{ out: string, work: string, seconds: number, state: State, stages: Stage[], env: Record<string, string>,
   *   title: string, say?: (line: string) => void }} options
   */
  constructor(options) {
    Object.assign(this, options);
    this.say ??= (line) => console.log(line);
    this.#logs = join(this.work, 'results');
    for (const directory of [this.out, this.#logs]) mkdirSync(directory, { recursive: true });
  }

  get #left() {
    return this.seconds - (performance.now() - this.#started) / 1000;
  }

  #found(name) {
    return this.state.stages[name] ?? { outcome: 'not run', attempts: 0 };
  }

  /** Done, and what it made is still there: a machine that is bare again has lost it. */
  #done(stage) {
    const made = stage.product === undefined || existsSync(stage.product);
    return this.#found(stage.name).outcome === 'ok' && made;
  }

  /** Why a stage is not started now; null: it is. */
  #reasonAgainst(stage, again) {
    const { outcome, attempts = 0 } = this.#found(stage.name);
    if (again.includes(stage.name)) return null;
    if (outcome === 'failed') return 'it failed before';
    if (outcome === 'killed' && attempts >= ATTEMPTS) return `it was killed ${attempts} times`;
    return null;
  }

  /**
   * Runs what is not done of `names`, in the order of the stages; `again`: also although they were done or failed.
   * @returns {Promise<number>} 0: all of them are done; 1: some failed; 3: some are left for another call
   */
  async run(names, again = []) {
    for (const name of again) this.state.set(name, { ...this.#found(name), outcome: 'not run', attempts: 0 });
    for (const stage of this.stages.filter(({ name }) => names.includes(name))) {
      if (this.#done(stage) || this.#reasonAgainst(stage, again)) continue;
      const missing = (stage.needs ?? []).filter(
        (need) => !this.#done(this.stages.find(({ name }) => name === need)),
      );
      const least = Math.min(stage.limit, stage.least ?? Math.min(60, stage.limit / 2));
      if (missing.length > 0) this.#leave(stage, `it needs ${missing.join(', ')}`);
      else if (this.#left < least)
        this.#leave(stage, `${Math.max(0, Math.floor(this.#left))} s were left, and it wants ${least}`);
      else await this.#runOne(stage);
    }
    this.#publish();
    this.say(`\n${this.summary(names)}`);
    const outcomes = names.map((name) => this.#found(name).outcome);
    if (outcomes.includes('failed')) return 1;
    return outcomes.every((outcome) => outcome === 'ok') ? 0 : 3;
  }

  #leave(stage, reason) {
    const { attempts, outcome } = this.#found(stage.name);
    // Killed before: that says more.
    if (outcome === 'killed') return;
    this.state.set(stage.name, { outcome: 'not run', attempts, reason });
    this.say(`[gpu-check] ${stage.name}: not run, ${reason}`);
  }

  async #runOne(stage) {
    const { name } = stage;
    const attempts = (this.#found(name).attempts ?? 0) + 1;
    const seconds = Math.min(stage.limit, this.#left);
    const log = join(this.#logs, `${name}.log`);
    const running = join(this.out, 'running.log');
    this.state.set(name, { outcome: 'running', attempts });
    this.#publish();
    for (const file of [log, running]) writeFileSync(file, '');
    this.say(`[gpu-check] ${name}: started, at most ${Math.round(seconds)} s`);
    const from = performance.now();
    const end = await runLimited(stage.command, {
      seconds,
      env: { ...process.env, ...this.env, ...stage.env },
      onText: (text) => {
        for (const file of [log, running]) appendFileSync(file, text);
      },
    });
    const took = Math.round((performance.now() - from) / 1000);
    const text = readFileSync(log, 'utf8');
    const problem = end.problem ?? stage.refuse?.(text) ?? null;
    const found = end.late
      ? { outcome: 'killed', reason: `not done after ${Math.round(seconds)} s` }
      : { outcome: problem === null ? 'ok' : 'failed', ...(problem === null ? {} : { reason: problem }) };
    const lines = stage.results?.(text) ?? [];
    this.state.set(name, { ...found, attempts, seconds: took, lines });
    rmSync(running, { force: true });
    this.#publish();
    this.say(`[gpu-check] ${name}: ${found.outcome}${found.reason ? `, ${found.reason}` : ''} (${took} s)`);
  }

  /** State, summary and all logs to where results go: few files, because a machine may hand few back. */
  #publish() {
    writeFileSync(join(this.out, 'state.json'), this.state.text());
    writeFileSync(join(this.out, 'summary.txt'), this.summary(this.stages.map(({ name }) => name)));
    const archive = join(this.out, 'results.tar.gz');
    const tar = spawnSync('tar', ['-czf', `${archive}.partial`, '-C', this.work, 'results']);
    if (tar.status === 0) renameSync(`${archive}.partial`, archive);
    else rmSync(`${archive}.partial`, { force: true });
  }

  /** One line per stage, and below each what it found. */
  summary(names) {
    const lines = [this.title];
    for (const name of names) {
      const { outcome, seconds, reason, lines: found = [] } = this.#found(name);
      const time = seconds === undefined ? '' : `${seconds} s`;
      const log = seconds === undefined && outcome !== 'killed' ? '' : `  results/${name}.log`;
      lines.push(
        `${name.padEnd(22)} ${outcome.padEnd(8)} ${time.padStart(6)}${log}${reason ? `  (${reason})` : ''}`,
        ...found.map((line) => `    ${line}`),
      );
    }
    const count = (wanted) => names.filter((name) => this.#found(name).outcome === wanted).length;
    lines.push(
      `${count('ok')} ok, ${count('failed')} failed, ${count('killed')} killed, ${count('not run')} not run; logs are in results.tar.gz`,
    );
    return `${lines.join('\n')}\n`;
  }
}
