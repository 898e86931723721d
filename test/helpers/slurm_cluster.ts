import { type ChildProcess, spawn, spawnSync } from 'node:child_process';
import { mkdirSync, mkdtempSync, openSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { hostname, tmpdir } from 'node:os';
import { join } from 'node:path';
import { sleep } from './e2e_process';
import type { HostNetwork } from './host_network';
import { endWithEnvironment, marked } from './left_over';

// A cluster of Slurm of its own: a controller and several nodes, all of them this machine, or each in a network namespace.

const installed = (program: string): boolean =>
  spawnSync('sh', ['-c', `command -v ${program}`], { stdio: 'ignore' }).status === 0;

export const slurmThere =
  process.getuid?.() === 0 && ['slurmctld', 'slurmd', 'srun', 'sbatch', 'scontrol'].every(installed);

/** `describe`, or skipped with the reason in its name. */
export const describeWithSlurm = (name: string, tests: () => void): void =>
  slurmThere
    ? describe(name, tests)
    : describe.skip(`${name} (slurm-wlm is not installed, or this is not root)`, tests);

/** For one state of a job; runs here take seconds. */
const WAIT_MS = 300_000;

/** A partition whose jobs give way to those of `p`, and go back to the queue: they have so long to save. */
const GRACE_S = 60;

export class SlurmCluster {
  readonly env: Record<string, string>;
  /** What starts a program where jobs are submitted: on the first node. */
  readonly prefix: readonly string[];
  private readonly directory = mkdtempSync(join(tmpdir(), 'troupe-slurm-'));
  private readonly daemons: ChildProcess[] = [];

  /** Nodes n1, n2, ... on 127.0.0.1; with a network its hosts node0, node1, ..., of which the first has the controller as well. */
  static async start(nodes: number, cpus: number, network: HostNetwork | null = null): Promise<SlurmCluster> {
    const cluster = new SlurmCluster(nodes, cpus, network);
    for (let i = 0; i < 200; i++) {
      if (cluster.ask('sinfo', '-h', '-p', 'p', '-o', '%t %D').trim() === `idle ${nodes}`) return cluster;
      await sleep(50);
    }
    const said = `${cluster.ask('sinfo')}\n${cluster.outputs().join('\n')}`;
    cluster.stop();
    throw new Error(`the nodes of Slurm did not come: ${said}`);
  }

  private constructor(nodes: number, cpus: number, network: HostNetwork | null) {
    const { directory } = this;
    this.prefix = network?.on(0) ?? [];
    const host = network === null ? hostname().split('.')[0] : 'node0';
    const port = 20_000 + (process.pid % 10_000);
    const settings: [string, string][] = [
      ['ClusterName', 'c'],
      ['SlurmctldHost', `${host}(${network?.address(0) ?? '127.0.0.1'})`],
      ['SlurmctldPort', `${port}`],
      ['SlurmUser', 'root'],
      ['AuthType', 'auth/none'],
      ['CredType', 'cred/none'],
      ['ProctrackType', 'proctrack/linuxproc'],
      ['SelectType', 'select/cons_tres'],
      // The nodes have more CPUs than the machine.
      ['SlurmdParameters', 'config_overrides'],
      ['StateSaveLocation', `${directory}/state`],
      ['SlurmdSpoolDir', `${directory}/%n`],
      ['SlurmctldPidFile', `${directory}/c.pid`],
      ['SlurmdPidFile', `${directory}/%n.pid`],
      ['KillWait', '5'],
      ['SchedulerParameters', 'sched_interval=1'],
      ['PreemptType', 'preempt/partition_prio'],
      ['PreemptMode', 'REQUEUE'],
    ];
    const lines = settings.map(([key, value]) => `${key}=${value}`);
    if (network === null) {
      const ports = `[${port + 1}-${port + nodes}]`;
      lines.push(`NodeName=n[1-${nodes}] NodeHostname=${host} NodeAddr=127.0.0.1 Port=${ports} CPUs=${cpus}`);
    } else {
      for (let i = 0; i < nodes; i++)
        lines.push(`NodeName=node${i} NodeAddr=${network.address(i)} Port=${port + 1} CPUs=${cpus}`);
    }
    lines.push(
      'PartitionName=p Nodes=ALL Default=YES MaxTime=INFINITE State=UP PriorityTier=2',
      `PartitionName=low Nodes=ALL MaxTime=INFINITE State=UP PriorityTier=1 GraceTime=${GRACE_S}`,
    );
    mkdirSync(join(directory, 'state'));
    writeFileSync(join(directory, 'slurm.conf'), `${lines.join('\n')}\n`);
    this.env = { SLURM_CONF: join(directory, 'slurm.conf') };
    this.daemon('slurmctld', [...this.prefix, 'slurmctld', '-D']);
    for (let i = 0; i < nodes; i++) {
      const name = network === null ? `n${i + 1}` : `node${i}`;
      this.daemon(name, [...(network?.on(i) ?? []), 'slurmd', '-D', '-N', name]);
    }
  }

  /** What a command of Slurm prints. */
  ask(...words: string[]): string {
    const [program, ...args] = [...this.prefix, ...words] as [string, ...string[]];
    const run = spawnSync(program, args, {
      env: { ...process.env, ...this.env },
      encoding: 'utf8',
      // Without its controller a command of Slurm would ask for minutes.
      timeout: 30_000,
    });
    return run.status === 0 ? run.stdout : `${run.error ?? ''}${run.stdout}${run.stderr}`;
  }

  /** PENDING, RUNNING, ... of a job. */
  state(job: string): string {
    return /JobState=(\w+)/.exec(this.ask('scontrol', 'show', 'job', job))?.[1] ?? 'GONE';
  }

  /** @throws Error with what Slurm and `log` say when it does not come within five minutes */
  async until(job: string, wanted: RegExp, log: () => string): Promise<void> {
    for (const end = Date.now() + WAIT_MS; !wanted.test(this.state(job)); ) {
      if (Date.now() > end)
        throw new Error(`job ${job}: ${this.ask('scontrol', 'show', 'job', job)}\n${log()}`);
      await sleep(200);
    }
  }

  /** How a job has ended, and its log. @throws as until */
  async ended(job: string, log: () => string): Promise<[state: string, log: string]> {
    await this.until(job, /COMPLETED|FAILED|CANCELLED|TIMEOUT|NODE_FAIL/, log);
    const state = this.state(job);
    const why = state === 'COMPLETED' ? '' : this.logs(job);
    return [state, `${log()}${why}`];
  }

  /**
   * Starts a job that was sent back to the queue without the two minutes that Slurm lets it wait, but not in the second in which it was
   * ended: the nodes take the credential of that second for the one that was revoked, and the job fails.
   */
  async startAgain(job: string, log: () => string): Promise<void> {
    await this.until(job, /PENDING/, log);
    await sleep(2_100);
    for (let i = 0; this.state(job) === 'PENDING'; i++) {
      const said = this.ask('scontrol', 'update', `JobId=${job}`, 'StartTime=now');
      if (i > 100) throw new Error(`job ${job} was not started again: ${said}\n${this.logs(job)}\n${log()}`);
      await sleep(300);
    }
  }

  /** Ends the daemons, and the jobs that are left. */
  stop(): void {
    for (const daemon of this.daemons) daemon.kill('SIGKILL');
    endWithEnvironment(this.env['SLURM_CONF'] as string);
    rmSync(this.directory, { recursive: true, force: true });
  }

  /** What the daemons have said of a job. */
  private logs(job: string): string {
    const ofJob = new RegExp(`job(id=)? ?${job}\\b`, 'i');
    return this.outputs()
      .flatMap((text) => text.split('\n'))
      .filter((line) => ofJob.test(line))
      .join('\n');
  }

  private outputs(): string[] {
    return readdirSync(this.directory)
      .filter((name) => name.endsWith('.out'))
      .map((name) => readFileSync(join(this.directory, name), 'utf8'));
  }

  private daemon(name: string, command: string[]): void {
    const log = openSync(join(this.directory, `${name}.out`), 'w');
    this.daemons.push(
      spawn(command[0] as string, command.slice(1), {
        env: { ...process.env, ...marked(), ...this.env },
        stdio: ['ignore', log, log],
      }),
    );
  }
}
