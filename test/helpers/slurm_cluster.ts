import { type ChildProcess, spawn, spawnSync } from 'node:child_process';
import { mkdirSync, mkdtempSync, openSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { hostname, tmpdir } from 'node:os';
import { join } from 'node:path';
import { sleep } from './e2e_process';
import { endWithEnvironment, marked } from './left_over';

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

/** For one state of a job; runs here take seconds. */
const WAIT_MS = 300_000;

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
    const run = spawnSync(command, args, {
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
    return readdirSync(this.directory)
      .filter((name) => name.endsWith('.out'))
      .flatMap((name) => readFileSync(join(this.directory, name), 'utf8').split('\n'))
      .filter((line) => new RegExp(`job(id=)? ?${job}\\b`, 'i').test(line))
      .join('\n');
  }

  private daemon(program: string, ...args: string[]): void {
    const log = openSync(join(this.directory, `${args.at(-1)}.out`), 'w');
    this.daemons.push(
      spawn(program, args, {
        env: { ...process.env, ...marked(), ...this.env },
        stdio: ['ignore', log, log],
      }),
    );
  }
}
