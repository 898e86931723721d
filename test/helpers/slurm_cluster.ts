import { type ChildProcess, spawn, spawnSync } from 'node:child_process';
import { mkdirSync, mkdtempSync, openSync, rmSync, writeFileSync } from 'node:fs';
import { hostname, tmpdir } from 'node:os';
import { join } from 'node:path';
import { sleep } from './e2e_process';

// A cluster of Slurm of its own: a controller and several nodes, all of them on this machine.

const installed = (program: string): boolean =>
  spawnSync('sh', ['-c', `command -v ${program}`], { stdio: 'ignore' }).status === 0;

export const slurmThere =
  process.getuid?.() === 0 && ['slurmctld', 'slurmd', 'srun', 'sbatch', 'scontrol'].every(installed);

/** `describe`, or skipped with the reason in its name. */
export const describeWithSlurm = (name: string, tests: () => void): void =>
  slurmThere
    ? describe(name, tests)
    : describe.skip(`${name} (slurm-wlm is not installed, or this is not root)`, tests);

export class SlurmCluster {
  readonly env: Record<string, string>;
  private readonly directory = mkdtempSync(join(tmpdir(), 'troupe-slurm-'));
  private readonly daemons: ChildProcess[] = [];

  static async start(nodes: number, cpus: number): Promise<SlurmCluster> {
    const cluster = new SlurmCluster(nodes, cpus);
    for (let i = 0; i < 200; i++) {
      if (cluster.ask('sinfo', '-h', '-o', '%t %D').trim() === `idle ${nodes}`) return cluster;
      await sleep(50);
    }
    const said = cluster.ask('sinfo');
    cluster.stop();
    throw new Error(`the nodes of Slurm did not come: ${said}`);
  }

  private constructor(nodes: number, cpus: number) {
    const { directory } = this;
    const host = hostname().split('.')[0];
    const port = 20_000 + (process.pid % 10_000);
    const settings: [string, string][] = [
      ['ClusterName', 'c'],
      ['SlurmctldHost', `${host}(127.0.0.1)`],
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
    ];
    const lines = settings.map(([key, value]) => `${key}=${value}`);
    const range = `[1-${nodes}]`;
    const ports = `[${port + 1}-${port + nodes}]`;
    lines.push(
      `NodeName=n${range} NodeHostname=${host} NodeAddr=127.0.0.1 Port=${ports} CPUs=${cpus}`,
      'PartitionName=p Nodes=ALL Default=YES MaxTime=INFINITE State=UP',
    );
    mkdirSync(join(directory, 'state'));
    writeFileSync(join(directory, 'slurm.conf'), `${lines.join('\n')}\n`);
    this.env = { SLURM_CONF: join(directory, 'slurm.conf') };
    this.daemon('slurmctld', '-D');
    for (let i = 1; i <= nodes; i++) this.daemon('slurmd', '-D', '-N', `n${i}`);
  }

  /** What a command of Slurm prints. */
  ask(command: string, ...args: string[]): string {
    const run = spawnSync(command, args, { env: { ...process.env, ...this.env }, encoding: 'utf8' });
    return run.status === 0 ? run.stdout : `${run.stdout}${run.stderr}`;
  }

  /** PENDING, RUNNING, ... of a job. */
  state(job: string): string {
    return /JobState=(\w+)/.exec(this.ask('scontrol', 'show', 'job', job))?.[1] ?? 'GONE';
  }

  /** @throws Error when it does not come within 90 s */
  async until(job: string, wanted: RegExp): Promise<void> {
    for (let i = 0; !wanted.test(this.state(job)); i++) {
      if (i > 450)
        throw new Error(`job ${job} is ${this.state(job)}: ${this.ask('scontrol', 'show', 'job', job)}`);
      await sleep(200);
    }
  }

  stop(): void {
    for (const daemon of this.daemons) daemon.kill('SIGKILL');
    rmSync(this.directory, { recursive: true, force: true });
  }

  private daemon(program: string, ...args: string[]): void {
    const log = openSync(join(this.directory, `${args.at(-1)}.out`), 'w');
    this.daemons.push(
      spawn(program, args, { env: { ...process.env, ...this.env }, stdio: ['ignore', log, log] }),
    );
  }
}

/** Process ids of all processes whose environment or command line names `text`. */
export function processesWith(text: string): number[] {
  const run = spawnSync('pgrep', ['-f', text], { encoding: 'utf8' });
  return run.stdout.trim().split('\n').filter(Boolean).map(Number);
}
