import { readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { runCommand, sleep } from '../helpers/e2e_process';
import { Workspace } from '../helpers/e2e_workspace';
import { describeWithHosts, HostNetwork } from '../helpers/host_network';
import { withEnvironment } from '../helpers/left_over';
import { describeWithSlurm, SlurmCluster } from '../helpers/slurm_cluster';

/** Of one test, of which the waits inside end sooner and say more. */
const LIMIT_MS = 600_000;

// Runs on a real Slurm of two nodes, two workers on each: nodes that are both this machine, and nodes that are network namespaces.

/** The usual reward; while the file "slow" is there each takes five seconds, so that a run lasts until Slurm looks at its time limit. */
const SLOW_REWARD = `const { existsSync } = require('node:fs');
const { join } = require('node:path');
const quick = require('./reward.cjs').compute_score;
exports.compute_score = async (sample) => {
  for (let i = 0; i < 50 && existsSync(join(__dirname, 'slow')); i++) await new Promise((done) => setTimeout(done, 100));
  return quick(sample);
};
`;

describeWithSlurm('Slurm', () => {
  let workspace: Workspace;
  let cluster: SlurmCluster;
  let expected: string;
  const steps = 'trainer.total_training_steps=8';

  beforeAll(async () => {
    workspace = await Workspace.create();
    writeFileSync(workspace.file('slow.cjs'), SLOW_REWARD);
    const args = ['train', workspace.file('train.yaml'), steps, 'trainer.n_gpus_per_node=4'];
    const alone = await runCommand([...args, `trainer.default_local_dir=${workspace.file('alone')}`]);
    expect(alone.code === 0 ? '' : `${alone.stdout}\n${alone.stderr}`).toBe('');
    expected = metrics('alone');
  }, LIMIT_MS);
  afterAll(() => workspace?.remove());

  const metrics = (name: string): string => readFileSync(join(workspace.file(name), 'metrics.jsonl'), 'utf8');

  async function submit(name: string, ...more: string[]): Promise<string> {
    const exit = await runCommand(
      [
        'submit',
        workspace.file('train.yaml'),
        ...['--launcher', 'slurm', '--option=--comment=test', '--time=10', '--notice=60'],
        `trainer.default_local_dir=${workspace.file(name)}`,
        'trainer.nnodes=2',
        'trainer.n_gpus_per_node=2',
        `trainer.launcher.network=${cluster.prefix.length > 0 ? 'eth0' : '127.0.0.1'}`,
        steps,
        ...more,
      ],
      { env: cluster.env, prefix: cluster.prefix },
    );
    const job = /Submitted batch job (\d+)/.exec(exit.stdout)?.[1];
    expect([exit.stderr, job]).toEqual(['', expect.any(String)]);
    return job as string;
  }

  function log(name: string, job: string): string {
    try {
      return readFileSync(join(workspace.file(name), `slurm-${job}.log`), 'utf8');
    } catch {
      return 'the job has no log';
    }
  }

  async function untilSaved(name: string, job: string, step: number): Promise<void> {
    for (let i = 0; i < 3600; i++) {
      try {
        if (readdirSync(workspace.file(name)).includes(`global_step_${step}`)) return;
      } catch {
        // not there yet
      }
      await sleep(50);
    }
    throw new Error(
      `step ${step} of job ${job} (${cluster.state(job)}) was not saved within 180 s:\n${log(name, job)}`,
    );
  }

  describe('of nodes that are this machine', () => {
    beforeAll(async () => {
      cluster = await SlurmCluster.start(2, 4);
    }, LIMIT_MS);
    afterAll(() => cluster?.stop());

    test(
      'two nodes of two workers give the metrics of one machine',
      async () => {
        const job = await submit('nodes');
        expect(await cluster.ended(job, () => log('nodes', job))).toEqual([
          'COMPLETED',
          expect.stringMatching(
            /host 0: n1 at 127\.0\.0\.1 .*: ranks 0 to 1\nhost 1: n2 at .*: ranks 2 to 3\n/,
          ),
        ]);
        expect(metrics('nodes')).toBe(expected);
      },
      LIMIT_MS,
    );

    test(
      'the time limit: notice, saved, back in the queue, and on to the same metrics',
      async () => {
        writeFileSync(workspace.file('slow'), '');
        const job = await submit(
          'limited',
          `reward.custom_reward_function.path=${workspace.file('slow.cjs')}`,
        );
        const said = (): string => log('limited', job);
        await untilSaved('limited', job, 1);
        // The notice of a minute is due; Slurm looks every half minute.
        cluster.ask('scontrol', 'update', `JobId=${job}`, 'TimeLimit=1');
        await cluster.until(job, /PENDING/, said);
        rmSync(workspace.file('slow'));
        expect(said()).toMatch(/stopped by SIGUSR2 after step [1-7], which is saved/);
        cluster.ask('scontrol', 'update', `JobId=${job}`, 'TimeLimit=10');
        await cluster.startAgain(job, said);
        expect(await cluster.ended(job, said)).toEqual([
          'COMPLETED',
          expect.stringMatching(/resuming after step [1-7]/),
        ]);
        expect(metrics('limited')).toBe(expected);
      },
      LIMIT_MS,
    );

    test(
      'scancel: saved within the grace, and no process is left',
      async () => {
        const job = await submit('cancelled', 'actor_rollout_ref.actor.ppo_epochs=20');
        await untilSaved('cancelled', job, 1);
        cluster.ask('scancel', job);
        await cluster.until(job, /CANCELLED/, () => log('cancelled', job));
        for (let i = 0; i < 150 && left().length > 0; i++) await sleep(100);
        expect([left(), log('cancelled', job)]).toEqual([
          [],
          expect.stringMatching(/stopped by SIGTERM after step \d, which is saved/),
        ]);
      },
      LIMIT_MS,
    );
  });

  describeWithHosts('of nodes that are network namespaces', () => {
    let network: HostNetwork;
    beforeAll(async () => {
      network = await HostNetwork.create(2);
      cluster = await SlurmCluster.start(2, 4, network);
    }, LIMIT_MS);
    afterAll(async () => {
      cluster?.stop();
      await network?.remove();
    });

    test(
      'two nodes of two workers give the metrics of one machine',
      async () => {
        const job = await submit('apart');
        expect(await cluster.ended(job, () => log('apart', job))).toEqual([
          'COMPLETED',
          expect.stringMatching(
            /host 0: node0 at 10\.77\.0\.1 \(eth0\).*: ranks 0 to 1\nhost 1: node1 at 10\.77\.0\.2 \(eth0\).*: ranks 2 to 3\n/,
          ),
        ]);
        expect(metrics('apart')).toBe(expected);
      },
      LIMIT_MS,
    );

    test(
      'a job that takes its nodes: saved within the grace time, and on to the same metrics',
      async () => {
        writeFileSync(workspace.file('slow'), '');
        const job = await submit(
          'preempted',
          '--option=--partition=low',
          `reward.custom_reward_function.path=${workspace.file('slow.cjs')}`,
        );
        const said = (): string => log('preempted', job);
        await untilSaved('preempted', job, 1);
        const options = ['--parsable', '--exclusive', '--nodes=2', '--output=/dev/null', '--wrap=true'];
        const other = cluster.ask('sbatch', ...options).trim();
        await cluster.until(job, /PENDING/, said);
        rmSync(workspace.file('slow'));
        expect(said()).toMatch(
          /SIGTERM at host node[01]: saving[\s\S]*stopped by SIGTERM after step [1-7], which is saved/,
        );
        await cluster.until(other, /COMPLETED/, said);
        await cluster.startAgain(job, said);
        expect(await cluster.ended(job, said)).toEqual([
          'COMPLETED',
          expect.stringMatching(/resuming after step [1-7]/),
        ]);
        expect(metrics('preempted')).toBe(expected);
      },
      LIMIT_MS,
    );
  });

  /** Command lines of the processes of jobs. */
  function left(): string[] {
    const ofCluster = withEnvironment(cluster.env['SLURM_CONF'] as string);
    return withEnvironment('SLURM_JOB_ID=')
      .filter((pid) => ofCluster.includes(pid))
      .flatMap((pid) => {
        try {
          return [readFileSync(`/proc/${pid}/cmdline`, 'utf8').replaceAll('\0', ' ')];
        } catch {
          return [];
        }
      });
  }
});
