import { execFileSync } from 'node:child_process';
import { mkdirSync, readdirSync, readFileSync, rmSync, statfsSync, statSync, writeFileSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { allGone, Command, type Exit, listTree, runCommand, sleep, workersOf } from '../helpers/e2e_process';
import { Workspace } from '../helpers/e2e_workspace';
import { HostNetwork, noHosts } from '../helpers/host_network';

// Faults at random instants of runs on two hosts of two workers each: network namespaces with a small disk where they are permitted, else
// both this machine, and then links are not cut and no disk is full. Every run goes on by itself to the metrics of a run that nothing
// happens to, to the bit, and leaves nothing behind. Some are elastic: the last that happens to them is that a host goes for good, and they
// end on the other one, with metrics as close as other layouts have them. TROUPE_FAULTS says how many there are, TROUPE_FAULT_SEED which; each is told as a line on stderr
// where TROUPE_FAULTS is set.

const FAULTS = Number(process.env['TROUPE_FAULTS'] ?? 4);
const STEPS = 12;
/** Of one run. */
const MOST_FAULTS = 6;
/** Longer than hosts wait for each other. */
const CUT_MS = 4_500;
const FULL_MS = 1_500;
/** Of metrics that other ranks sum in another order, and of steps that follow from them; relative to what is larger than 1. */
const TOLERANCE = 1e-6;
/** The metrics of rollout correction measure rounding itself, summed over a response and taken through an exponential. */
const CORRECTION_TOLERANCE = 2e-5;
/** At the workspace's 0.01 such roundings grow to 1e-5 within twelve steps. */
const LEARNING_RATE = 1e-4;
const DISK_KIB = 32 << 10;

const KINDS = ['kill', 'kill', 'stop', 'agent', 'controller', 'corrupt', 'disk', 'link'] as const;

let state = Number(process.env['TROUPE_FAULT_SEED'] ?? 1) >>> 0;
const random = (): number => {
  state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
  return state / 2 ** 32;
};
const pick = <T>(list: readonly T[]): T | undefined => list[Math.floor(random() * list.length)];

let workspace: Workspace;
let network: HostNetwork | null = null;
let expected: string;
let theRun: Run | null = null;
/** Of all metrics of elastic runs. */
let largestError = 0;
beforeAll(async () => {
  workspace = await Workspace.create();
  mkdirSync(workspace.file('memory'));
  if (noHosts === null) {
    network = await HostNetwork.create(2);
    mkdirSync(workspace.file('disk'));
    execFileSync('mount', ['-t', 'tmpfs', '-o', `size=${DISK_KIB}k`, 'tmpfs', workspace.file('disk')]);
  }
  const exit = await runCommand([...args('undisturbed'), 'trainer.n_gpus_per_node=4']);
  expect(exit.code).toBe(0);
  expected = metrics('undisturbed');
});
afterEach(() => theRun?.kill());
afterAll(async () => {
  if (network !== null) {
    await network.remove();
    execFileSync('umount', ['-l', workspace.file('disk')]);
  }
  workspace.remove();
});

/** Where a run writes. */
const place = (name: string): string =>
  network === null ? workspace.file(name) : join(workspace.file('disk'), name);

const args = (name: string): string[] => [
  'train',
  workspace.file('train.yaml'),
  `trainer.default_local_dir=${place(name)}`,
  `trainer.total_training_steps=${STEPS}`,
  `actor_rollout_ref.actor.optim.lr=${LEARNING_RATE}`,
];

const metrics = (name: string): string => readFileSync(join(place(name), 'metrics.jsonl'), 'utf8');

/** As `expected`, but for what tells how tokens lie on the ranks, and for rounding. */
function expectClose(text: string): void {
  const parse = (lines: string) =>
    lines
      .trimEnd()
      .split('\n')
      .map((line) => JSON.parse(line) as Record<string, unknown>);
  const [actual, wanted] = [parse(text), parse(expected)];
  expect(actual).toHaveLength(wanted.length);
  for (const [i, record] of wanted.entries()) {
    expect(Object.keys(actual[i] as object)).toEqual(Object.keys(record));
    for (const [name, value] of Object.entries(record)) {
      const found = actual[i]?.[name];
      if (typeof value !== 'number' || name.startsWith('global_seqlen/')) continue;
      const error = Math.abs((found as number) - value) / Math.max(1, Math.abs(value));
      largestError = Math.max(largestError, error);
      const tolerance = name.startsWith('rollout_corr/') ? CORRECTION_TOLERANCE : TOLERANCE;
      if (!(error <= tolerance)) throw new Error(`line ${i}, ${name}: ${found}, but ${value} without faults`);
    }
  }
}

/** A run on two hosts: its controller, and the agent of the second host, which is started again when it has ended, as a scheduler does. */
class Run {
  controller: Command;
  readonly started: number[] = [];
  private agent: Command;
  private over = false;
  readonly elastic = random() < 0.3;
  /** A host has gone for good. */
  lost = false;
  /** Half of the runs hold the state after every step in memory. */
  private readonly staging =
    random() < 0.5
      ? [
          'trainer.checkpoint_staging.async=true',
          'trainer.checkpoint_staging.every_step=true',
          `trainer.checkpoint_staging.directory=${workspace.file('memory')}`,
          'trainer.save_freq=3',
        ]
      : [];

  constructor(readonly name: string) {
    this.agent = this.start(1);
    this.controller = this.start(0);
    void this.keepAgent();
  }

  /** To its end; a controller that was killed is started again. */
  async end(): Promise<Exit> {
    for (;;) {
      const exit = await this.controller.exited;
      if (exit.signal === null || this.over) {
        this.over = true;
        await this.agent.exited;
        return exit;
      }
      this.controller = this.start(0);
    }
  }

  /** Processes of workers, on both hosts. */
  workers(): number[] {
    const own = childrenOf(this.controller.pid).filter((pid) => commandLine(pid).includes('host-agent'));
    return [...own, this.agent.pid].flatMap(workersOf);
  }

  /** The second host goes, and nothing starts its agent again. */
  lose(): string {
    this.started.push(...this.workers());
    this.lost = true;
    this.agent.kill('SIGKILL');
    return 'lose';
  }

  inject(): string {
    this.started.push(...this.workers());
    // A run that cannot even begin to write is refused: it is no fault of a run.
    const possible = (kind: string): boolean =>
      network === null ? kind !== 'disk' && kind !== 'link' : kind !== 'disk' || stepsOf(this.name) > 0;
    const fault = pick(KINDS.filter(possible));
    const worker = pick(this.workers());
    if (fault === 'disk') fillDisk(place(this.name));
    else if (fault === 'link') cutLink(network as HostNetwork);
    else if (fault === 'agent') this.agent.kill('SIGKILL');
    else if (fault === 'controller') this.controller.kill('SIGKILL');
    else if (worker === undefined) return 'nothing: no worker was there';
    else if (fault === 'stop') signal(worker, 'SIGSTOP');
    else {
      if (fault === 'corrupt') flipBit(place(this.name));
      signal(worker, 'SIGKILL');
    }
    return fault as string;
  }

  private start(rank: number): Command {
    const command = new Command(
      [
        ...args(this.name),
        'trainer.nnodes=2',
        'trainer.n_gpus_per_node=2',
        `trainer.launcher.network=${network === null ? '127.0.0.1' : 'eth0'}`,
        'trainer.worker_timeouts.silence=2',
        'trainer.worker_timeouts.startup=300',
        'trainer.fault_tolerance.max_restarts=1000',
        `trainer.fault_tolerance.elastic=${this.elastic}`,
        // A controller that was killed just before has not seen the host that goes.
        ...(this.elastic ? ['trainer.launcher.wait=60'] : []),
        ...this.staging,
      ],
      {
        ...(network === null ? {} : { prefix: network.on(rank) }),
        env: {
          RANK: `${rank}`,
          WORLD_SIZE: '2',
          LOCAL_RANK: '0',
          LOCAL_WORLD_SIZE: '1',
          GROUP_RANK: `${rank}`,
        },
      },
    );
    this.started.push(command.pid);
    return command;
  }

  /** What of it is still there. */
  async kill(): Promise<void> {
    this.over = true;
    for (const command of [this.controller, this.agent]) command.kill('SIGKILL');
    await Promise.all([this.controller.exited, this.agent.exited]);
  }

  private async keepAgent(): Promise<void> {
    for (;;) {
      await this.agent.exited;
      if (this.over || this.lost) return;
      await sleep(100);
      if (this.over || this.lost) return;
      this.agent = this.start(1);
    }
  }
}

function childrenOf(pid: number): number[] {
  return readdirSync('/proc')
    .filter((name) => /^\d+$/.test(name))
    .map(Number)
    .filter((child) => parentOf(child) === pid);
}

function parentOf(pid: number): number {
  try {
    const text = readFileSync(`/proc/${pid}/stat`, 'utf8');
    return Number(text.slice(text.lastIndexOf(')') + 2).split(' ')[1]);
  } catch {
    return -1;
  }
}

function commandLine(pid: number): string {
  try {
    return readFileSync(`/proc/${pid}/cmdline`, 'utf8');
  } catch {
    return '';
  }
}

function signal(pid: number, name: NodeJS.Signals): void {
  try {
    process.kill(pid, name);
  } catch {
    // it has ended meanwhile
  }
}

/** Steps in the metrics of a run so far. */
function stepsOf(name: string): number {
  try {
    return metrics(name).split('\n').length - 1;
  } catch {
    return 0;
  }
}

/** For a while, from now on. */
function fillDisk(directory: string): void {
  const filler = join(dirname(directory), 'filler');
  const { bavail, bsize } = statfsSync(dirname(directory));
  try {
    writeFileSync(filler, Buffer.alloc(bavail * bsize));
  } catch {
    // the run has written meanwhile: full is what it is to be
  }
  setTimeout(() => rmSync(filler, { force: true }), FULL_MS);
}

function cutLink(hosts: HostNetwork): void {
  hosts.cut(1);
  setTimeout(() => hosts.mend(1), CUT_MS);
}

/** In a file of the newest checkpoint, where there is one before it. */
function flipBit(directory: string): void {
  const files = listTree(directory)
    .filter((path) => /^global_step_\d+\/.*safetensors$/.test(path))
    .sort((a, b) => Number(/\d+/.exec(b)) - Number(/\d+/.exec(a)));
  if (new Set(files.map((path) => path.split('/')[0])).size < 2) return;
  const newest = files.filter((path) => path.split('/')[0] === files[0]?.split('/')[0]);
  const chosen = pick(newest);
  if (chosen === undefined) return;
  const path = join(directory, chosen);
  const bytes = readFileSync(path) as Buffer;
  const at = Math.floor(random() * statSync(path).size);
  bytes[at] = (bytes[at] as number) ^ 4;
  writeFileSync(path, bytes);
}

test(
  `${FAULTS} faults`,
  async () => {
    const recovery: number[] = [];
    const kinds = new Map<string, number>();
    for (let faults = 0, runs = 0; faults < FAULTS; runs++) {
      const run = new Run(`faults_${runs}`);
      theRun = run;
      let over = false;
      const end = run.end().then((exit) => {
        over = true;
        return exit;
      });
      let [furthest, stuck] = [0, 0];
      for (let own = 0; own < MOST_FAULTS && faults < FAULTS && !over && !run.lost; own++) {
        await Promise.race([end, sleep(800 + 2_500 * random())]);
        // Three without a step in between would be the last, and one may be on its way.
        stuck = stepsOf(run.name) > furthest ? 0 : stuck + 1;
        while (!over && (isStuck(run.name) || (stuck > 2 && stepsOf(run.name) <= furthest))) await sleep(50);
        if (stuck > 2) stuck = 0;
        if (over) break;
        furthest = Math.max(furthest, stepsOf(run.name));
        const last = own + 1 === MOST_FAULTS || faults + 1 === FAULTS;
        // A run that never had all its hosts waits for them.
        const mayLose = run.elastic && stepsOf(run.name) > 0;
        const kind = mayLose && (last || random() < 0.3) ? run.lose() : run.inject();
        kinds.set(kind, (kinds.get(kind) ?? 0) + 1);
        if (!kind.startsWith('nothing')) faults++;
        if (process.env['TROUPE_FAULTS'])
          process.stderr.write(`${run.name} after step ${furthest}: ${kind} (fault ${faults})\n`);
        // One at a time: what is over is no fault any more.
        if (kind === 'link') await sleep(CUT_MS);
        if (kind === 'disk') await sleep(FULL_MS);
      }
      const exit = await end;
      expect(exit.code === 0 ? '' : `${run.name}: ${exit.stdout}\n${exit.stderr}`).toBe('');
      if (run.elastic) expectClose(metrics(run.name));
      else expect(metrics(run.name)).toBe(expected);
      expect(listTree(place(run.name)).filter((path) => /incomplete|rendezvous/.test(path))).toEqual([]);
      expect(listTree(workspace.file('memory'))).toEqual([]);
      expect(await allGone([...run.started, ...run.workers()], 15_000)).toBe(true);
      recovery.push(...recoveries(run.name));
      rmSync(place(run.name), { recursive: true });
    }
    recovery.sort((a, b) => a - b);
    const median = recovery[Math.floor(recovery.length / 2)];
    process.stderr.write(
      `${FAULTS} faults ${JSON.stringify(Object.fromEntries(kinds))}: median from a fault to the next step ${median?.toFixed(2)} s, worst ${recovery.at(-1)?.toFixed(2)} s; elastic runs within ${largestError.toExponential(1)}\n`,
    );
  },
  60_000 + 60_000 * FAULTS,
);

/** Whether two failures in a row, as the controller counts them, have found the run at the step at which it still is. */
function isStuck(name: string): boolean {
  const failures = faultLines(name).filter(({ event }) => event === 'fault');
  const last = failures.at(-1)?.step ?? -1;
  const steps = stepsOf(name) === 0 ? '' : (metrics(name).trimEnd().split('\n').at(-1) as string);
  const now = steps === '' ? 0 : (JSON.parse(steps) as { step: number }).step;
  return now <= last && failures.filter(({ step }) => step === last).length > 1;
}

interface FaultLine {
  event: string;
  step: number;
  seconds_to_next_step?: number;
}

function faultLines(name: string): FaultLine[] {
  const file = join(place(name), 'faults.jsonl');
  if (!listTree(place(name)).includes('faults.jsonl')) return [];
  return readFileSync(file, 'utf8')
    .trim()
    .split('\n')
    .filter((line) => line !== '')
    .map((line) => JSON.parse(line) as FaultLine);
}

/** Seconds from a failure to the next step, of those that the controller has lived through. */
const recoveries = (name: string): number[] =>
  faultLines(name).flatMap(({ event, seconds_to_next_step: seconds }) =>
    event === 'recovered' ? [seconds as number] : [],
  );
