// Runs test files through Jest, some of them in each process, so that what Jest keeps of a file does not add up. A file that
// is not done in time is named, with the processes that it runs, and ended with them; the files after it run all the same.
// Jest's own time limits cannot do that: they need the thread that a blocked test holds.
import { spawn, spawnSync } from 'node:child_process';
import { mkdirSync, readdirSync, readFileSync, rmSync } from 'node:fs';
import { createRequire } from 'node:module';
import path from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';

const require = createRequire(import.meta.url);
const FILES_PER_PROCESS = 12;
const SECONDS_PER_FILE = 600;
const SECONDS_TO_START = 120;
const SECONDS_TO_EXIT = 60;

/** All test files of the project in `root`, absolute. */
export function listTestFiles(root) {
  const run = spawnSync(process.execPath, [require.resolve('jest/bin/jest'), '--listTests', '--json'], {
    cwd: root,
    encoding: 'utf8',
  });
  if (run.status !== 0) throw new Error(`jest --listTests: exit code ${run.status}\n${run.stderr}`);
  return JSON.parse(run.stdout).sort();
}

/**
 * Runs `files` in their order, by as many lanes as are called: each takes some at a time until none is left. `sums`: the numbers of tests {passed,
 * failed, skipped}; a file that could not be run, ended its process or was not done within `secondsPerFile` counts as one failed test.
 */
export class TestRun {
  sums = { passed: 0, failed: 0, skipped: 0 };
  #root;
  #left;
  #limits;
  #processes = 0;

  constructor(root, files, { secondsPerFile = SECONDS_PER_FILE, secondsToExit = SECONDS_TO_EXIT } = {}) {
    this.#root = root;
    this.#left = [...files];
    this.#limits = { secondsPerFile, secondsToExit };
  }

  async lane() {
    while (this.#left.length > 0) {
      const files = this.#left.splice(0, FILES_PER_PROCESS);
      const progress = path.join(this.#root, 'build', `jest${this.#processes++}.jsonl`);
      const { ended, broken } = await runProcess(this.#root, files, progress, this.#limits);
      for (const counts of ended) for (const key of Object.keys(this.sums)) this.sums[key] += counts[key];
      if (broken !== undefined) {
        console.error(`FAIL ${path.relative(this.#root, broken.file)}: ${broken.reason}`);
        this.sums.failed++;
      }
      const done = new Set([...ended.map(({ file }) => file), broken?.file]);
      const again = files.filter((file) => !done.has(file));
      if (again.length === files.length)
        throw new Error('Jest ended before it came to a test file, see above');
      this.#left.unshift(...again);
    }
  }
}

/** One Jest process. `ended`: the counts of each file that it got through; `broken`: the file that it did not. */
async function runProcess(root, files, progress, { secondsPerFile, secondsToExit }) {
  mkdirSync(path.dirname(progress), { recursive: true });
  rmSync(progress, { force: true });
  const reporters = ['default', require.resolve('./jest_reporter.cjs')];
  // Certificates that a machine adds to Node's own are read at every start, for 50 ms: tests start thousands of processes, and none goes to
  // a host that needs them. Idle OpenMP threads of tests that load the addon, and of workers, sleep at once.
  const { NODE_EXTRA_CA_CERTS: _, ...env } = process.env;
  const child = spawn(
    process.execPath,
    [
      require.resolve('jest/bin/jest'),
      ...reporters.map((reporter) => `--reporters=${reporter}`),
      '--runTestsByPath',
      ...files.map((file) => path.relative(root, file)),
    ],
    {
      cwd: root,
      stdio: ['ignore', 'inherit', 'inherit'],
      env: { GOMP_SPINCOUNT: '0', ...env, TROUPE_JEST_PROGRESS: progress },
    },
  );
  const exited = new Promise((resolve) => {
    child.once('error', (error) => resolve(error.message));
    child.once('exit', (code, signal) => resolve(signal ?? `exit code ${code}`));
  });
  let outcome;
  void exited.then((how) => {
    outcome = how;
  });
  // Since when the number of lines is what it is: one file is running then, or none any more.
  let lines = [];
  let since = performance.now();
  let reason;
  while (outcome === undefined) {
    await Promise.race([exited, sleep(500)]);
    const now = readProgress(progress);
    if (now.length !== lines.length) since = performance.now();
    lines = now;
    const seconds = (performance.now() - since) / 1000;
    const allEnded = lines.filter(hasEnded).length === files.length;
    const limit = lines.length === 0 ? SECONDS_TO_START : allEnded ? secondsToExit : secondsPerFile;
    if (outcome !== undefined || seconds < limit) continue;
    const family = descendants(child.pid);
    if (allEnded) console.error('Jest had run all files and did not exit: one of them left something open');
    else
      reason = `not done after ${secondsPerFile} s, and ended; its processes:\n${family.map(describe).join('\n')}`;
    for (const pid of family) kill(pid);
    await exited;
  }
  lines = readProgress(progress);
  const ended = lines.filter(hasEnded);
  const names = new Set(ended.map(({ file }) => file));
  const running = lines.find(({ file }) => !names.has(file))?.file;
  return {
    ended,
    broken: running && { file: running, reason: reason ?? `Jest ended while it ran: ${outcome}` },
  };
}

const hasEnded = (line) => line.passed !== undefined;

function readProgress(file) {
  try {
    const text = readFileSync(file, 'utf8');
    return text
      .slice(0, text.lastIndexOf('\n') + 1)
      .split('\n')
      .filter(Boolean)
      .map((line) => JSON.parse(line));
  } catch (error) {
    if (error.code === 'ENOENT') return [];
    throw error;
  }
}

/** Process `root` and those below it, from /proc; the first is `root`. */
function descendants(root) {
  const children = new Map();
  for (const name of readdirSync('/proc').filter((entry) => /^\d+$/.test(entry))) {
    const parent = procStat(name)?.parent;
    if (parent !== undefined) children.set(parent, [...(children.get(parent) ?? []), Number(name)]);
  }
  const found = [root];
  for (let i = 0; i < found.length; i++) found.push(...(children.get(found[i]) ?? []));
  return found;
}

function procStat(pid) {
  try {
    const text = readFileSync(`/proc/${pid}/stat`, 'utf8');
    const [state, parent] = text.slice(text.lastIndexOf(')') + 2).split(' ');
    return { state, parent: Number(parent) };
  } catch {
    return undefined;
  }
}

function describe(pid) {
  const read = (name) => {
    try {
      return readFileSync(`/proc/${pid}/${name}`, 'utf8').replaceAll('\0', ' ').trim();
    } catch {
      return '?';
    }
  };
  const { state, parent } = procStat(pid) ?? { state: 'gone', parent: '?' };
  return `  ${pid} of ${parent}, ${state}, waits in ${read('wchan')}: ${read('cmdline').slice(0, 200)}`;
}

function kill(pid) {
  try {
    process.kill(pid, 'SIGKILL');
  } catch (error) {
    if (error.code !== 'ESRCH') throw error;
  }
}
