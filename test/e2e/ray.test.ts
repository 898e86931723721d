import { type ChildProcess, spawn, spawnSync } from 'node:child_process';
import { once } from 'node:events';
import { existsSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import { Command, sleep } from '../helpers/e2e_process';
import { Workspace } from '../helpers/e2e_workspace';
import { marked } from '../helpers/left_over';

// A run on a real Ray of two raylets on this machine. TROUPE_RAY_PYTHON names an interpreter that has Ray; default python3.

const python = process.env['TROUPE_RAY_PYTHON'] ?? 'python3';
const there = spawnSync(python, ['-c', 'import ray'], { stdio: 'ignore' }).status === 0;
const describeWithRay = there ? describe : describe.skip;

const CLUSTER = `
import sys
from ray.cluster_utils import Cluster
memory = 80 * 1024 * 1024
cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 4, "object_store_memory": memory, "include_dashboard": False})
node = cluster.add_node(num_cpus=4, object_store_memory=memory)
print(cluster.address, flush=True)
if sys.stdin.readline() == "kill\\n":
    cluster.remove_node(node, allow_graceful=False)
    sys.stdin.read()
cluster.shutdown()
`;

test('an interpreter without Ray is named, with the key that chooses it', async () => {
  const workspace = await Workspace.create();
  try {
    const bare = workspace.file('python');
    writeFileSync(bare, '#!/bin/sh\necho "ModuleNotFoundError: No module named \'ray\'" >&2\nexit 1\n', {
      mode: 0o755,
    });
    const { stderr } = await new Command([
      'train',
      workspace.file('train.yaml'),
      'trainer.launcher.type=ray',
      `trainer.launcher.python=${bare}`,
    ]).exited;
    expect(stderr).toContain(
      `No module named 'ray': expected trainer.launcher.python to be an interpreter that has Ray, got ${bare}`,
    );
  } finally {
    workspace.remove();
  }
});

describeWithRay(`Ray${there ? '' : ` (${python} has no Ray)`}`, () => {
  let workspace: Workspace;
  let cluster: ChildProcess;
  let address: string;
  beforeAll(async () => {
    workspace = await Workspace.create();
    cluster = spawn(python, ['-c', CLUSTER], {
      stdio: ['pipe', 'pipe', 'ignore'],
      env: { ...process.env, ...marked(), RAY_USAGE_STATS_ENABLED: '0', RAY_worker_niceness: '0' },
    });
    const told = once(createInterface({ input: cluster.stdout! }), 'line');
    const ended = once(cluster, 'exit').then(([code]) => {
      throw new Error(`the cluster of Ray ended with ${code} before it was there`);
    });
    [address] = (await Promise.race([told, ended])) as [string];
  }, 180_000);
  afterAll(async () => {
    cluster?.stdin?.end();
    // In order where that works; what is left ends with this file.
    if (cluster?.exitCode === null) await Promise.race([once(cluster, 'exit'), sleep(30_000)]);
    workspace?.remove();
  }, 60_000);

  const run = (name: string, ...overrides: string[]): Command =>
    new Command([
      'train',
      workspace.file('train.yaml'),
      `trainer.default_local_dir=${workspace.file(name)}`,
      'trainer.worker_timeouts.startup=300',
      ...overrides,
    ]);
  const onRay = (): string[] => [
    'trainer.nnodes=2',
    'trainer.n_gpus_per_node=2',
    'trainer.launcher.type=ray',
    `trainer.launcher.ray_address=${address}`,
    `trainer.launcher.python=${python}`,
    'trainer.launcher.network=127.0.0.1',
  ];
  const metrics = (name: string): string => readFileSync(join(workspace.file(name), 'metrics.jsonl'), 'utf8');
  /** Lines of its steps. */
  const rows = (name: string): Record<string, number>[] =>
    metrics(name)
      .trim()
      .split('\n')
      .map((line) => JSON.parse(line) as Record<string, number>);

  test('two nodes of two workers give the metrics of one machine', async () => {
    expect((await run('alone', 'trainer.n_gpus_per_node=4').exited).code).toBe(0);
    const exit = await run('ray', ...onRay()).exited;
    expect(exit.code === 0 ? '' : `${exit.stdout}\n${exit.stderr}`).toBe('');
    expect(metrics('ray')).toBe(metrics('alone'));
  }, 400_000);

  test('a raylet is killed in the middle: the run goes on with one node, to the same numbers', async () => {
    const elastic = ['trainer.fault_tolerance.max_restarts=3', 'trainer.fault_tolerance.elastic=true'];
    const longer = ['trainer.total_training_steps=8', 'trainer.test_freq=-1'];
    const whole = await run('whole', 'trainer.n_gpus_per_node=4', ...longer).exited;
    expect(whole.code === 0 ? '' : whole.stderr).toBe('');
    const torn = run('torn', ...onRay(), ...elastic, ...longer);
    await torn.until('the second step', () => existsSync(join(workspace.file('torn'), 'global_step_2')));
    cluster.stdin?.write('kill\n');
    const exit = await torn.exited;
    expect(exit.code === 0 ? '' : `${exit.stdout}\n${exit.stderr}`).toBe('');
    expect(exit.stdout).toMatch(/failed after step \d+: .*its host \S+ \(127\.0\.0\.1\) was lost/);
    expect(exit.stdout).toMatch(/restart 1 /);
    const [got, expected] = [rows('torn'), rows('whole')];
    expect(got.map(({ step }) => step)).toEqual(expected.map(({ step }) => step));
    for (const [i, row] of got.entries())
      for (const key of ['reward/acc/mean', 'actor/pg_loss', 'actor/grad_norm', 'actor/entropy']) {
        const [found, wanted] = [row[key] ?? 0, expected[i]?.[key] ?? 0];
        expect([i, key, Math.abs(found - wanted) < 1e-5 * (1 + Math.abs(wanted)) ? wanted : found]).toEqual([
          i,
          key,
          wanted,
        ]);
      }
    const fault = JSON.parse(
      readFileSync(join(workspace.file('torn'), 'faults.jsonl'), 'utf8').split('\n')[0] as string,
    ) as Record<string, unknown>;
    expect(fault).toMatchObject({ event: 'fault', code: 'WORKER_DIED', restart: true });
  }, 400_000);
});
