import { readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { runCommand, sleep } from '../helpers/e2e_process';
import { Workspace } from '../helpers/e2e_workspace';
import { describeWithSlurm, SlurmCluster } from '../helpers/slurm_cluster';

// Runs on a real Slurm, of two nodes that are both this machine: two workers on each.

describeWithSlurm('Slurm', () => {
  let workspace: Workspace;
  let cluster: SlurmCluster;
  let expected: string;
  const steps = 'trainer.total_training_steps=8';

  beforeAll(async () => {
    workspace = await Workspace.create();
    cluster = await SlurmCluster.start(2, 4);
    const args = ['train', workspace.file('train.yaml'), steps, 'trainer.n_gpus_per_node=4'];
    expect((await runCommand([...args, `trainer.default_local_dir=${workspace.file('alone')}`])).code).toBe(
      0,
    );
    expected = metrics('alone');
  });
  afterAll(() => {
    cluster?.stop();
    workspace?.remove();
  });

  const metrics = (name: string): string => readFileSync(join(workspace.file(name), 'metrics.jsonl'), 'utf8');

  async function submit(name: string, ...overrides: string[]): Promise<string> {
    const exit = await runCommand(
      [
        'submit',
        workspace.file('train.yaml'),
        ...['--launcher', 'slurm', '--option=--comment=test', '--time=10'],
        `trainer.default_local_dir=${workspace.file(name)}`,
        'trainer.nnodes=2',
        'trainer.n_gpus_per_node=2',
        'trainer.launcher.network=127.0.0.1',
        steps,
        ...overrides,
      ],
      { env: cluster.env },
    );
    const job = /Submitted batch job (\d+)/.exec(exit.stdout)?.[1];
    expect([exit.stderr, job]).toEqual(['', expect.any(String)]);
    return job as string;
  }

  const log = (name: string, job: string): string =>
    readFileSync(join(workspace.file(name), `slurm-${job}.log`), 'utf8');

  async function untilSaved(name: string, step: number): Promise<void> {
    for (let i = 0; i < 1200; i++) {
      try {
        if (readdirSync(workspace.file(name)).includes(`global_step_${step}`)) return;
      } catch {
        // not there yet
      }
      await sleep(50);
    }
    throw new Error(`step ${step} of ${name} was not saved`);
  }

  test('two nodes of two workers give the metrics of one machine', async () => {
    const job = await submit('nodes');
    await cluster.until(job, /COMPLETED|FAILED|CANCELLED|TIMEOUT/);
    expect([cluster.state(job), log('nodes', job)]).toEqual([
      'COMPLETED',
      expect.stringMatching(/host 0: n1 at 127\.0\.0\.1 .*: ranks 0 to 1\nhost 1: n2 at .*: ranks 2 to 3\n/),
    ]);
    expect(metrics('nodes')).toBe(expected);
  });

  test('the notice of the time limit: saved, back in the queue, and on to the same metrics', async () => {
    const job = await submit('limited');
    await untilSaved('limited', 2);
    // As --signal=B:USR2@N sends it.
    cluster.ask('scancel', '--batch', '--signal=USR2', job);
    await cluster.until(job, /PENDING/);
    expect(log('limited', job)).toMatch(/stopped by SIGUSR2 after step \d, which is saved/);
    // Slurm lets a job that was sent back wait for two minutes.
    for (let i = 0; i < 50 && cluster.state(job) === 'PENDING'; i++) {
      cluster.ask('scontrol', 'update', `JobId=${job}`, 'StartTime=now');
      await sleep(300);
    }
    await cluster.until(job, /COMPLETED|FAILED|CANCELLED|TIMEOUT/);
    expect(cluster.state(job)).toBe('COMPLETED');
    expect(log('limited', job)).toMatch(/resuming after step [2-7]/);
    expect(metrics('limited')).toBe(expected);
  });

  test('scancel: saved within the grace, and no process is left', async () => {
    const job = await submit('cancelled', 'actor_rollout_ref.actor.ppo_epochs=20');
    await untilSaved('cancelled', 1);
    cluster.ask('scancel', job);
    await cluster.until(job, /CANCELLED/);
    for (let i = 0; i < 150 && left().length > 0; i++) await sleep(100);
    expect(left()).toEqual([]);
    expect(log('cancelled', job)).toMatch(/stopped by SIGTERM after step \d, which is saved/);
  });

  /** Processes of this test that know of the cluster; those that nobody has taken in (state Z) are none. */
  function left(): string[] {
    return readdirSync('/proc')
      .filter((name) => /^\d+$/.test(name))
      .flatMap((pid) => {
        try {
          const environment = readFileSync(`/proc/${pid}/environ`, 'utf8');
          return environment.includes('SLURM_JOB_ID=') &&
            environment.includes(cluster.env['SLURM_CONF'] as string)
            ? [readFileSync(`/proc/${pid}/cmdline`, 'utf8').replaceAll('\0', ' ')]
            : [];
        } catch {
          return [];
        }
      });
  }
});
