import { type ChildProcess, spawn, spawnSync } from 'node:child_process';
import { once } from 'node:events';
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import { runCommand } from '../helpers/e2e_process';
import { Workspace } from '../helpers/e2e_workspace';

// A run on a real Ray of two raylets on this machine. TROUPE_RAY_PYTHON names an interpreter that has Ray; default python3.

const python = process.env['TROUPE_RAY_PYTHON'] ?? 'python3';
const there = spawnSync(python, ['-c', 'import ray'], { stdio: 'ignore' }).status === 0;
const describeWithRay = there ? describe : describe.skip;

const CLUSTER = `
import sys
from ray.cluster_utils import Cluster
memory = 80 * 1024 * 1024
cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 4, "object_store_memory": memory, "include_dashboard": False})
cluster.add_node(num_cpus=4, object_store_memory=memory)
print(cluster.address, flush=True)
sys.stdin.read()
cluster.shutdown()
`;

describeWithRay(`Ray${there ? '' : ` (${python} has no Ray)`}`, () => {
  let workspace: Workspace;
  let cluster: ChildProcess;
  let address: string;
  beforeAll(async () => {
    workspace = await Workspace.create();
    cluster = spawn(python, ['-c', CLUSTER], {
      stdio: ['pipe', 'pipe', 'ignore'],
      env: { ...process.env, RAY_USAGE_STATS_ENABLED: '0', RAY_worker_niceness: '0' },
    });
    [address] = (await once(createInterface({ input: cluster.stdout! }), 'line')) as [string];
  }, 180_000);
  afterAll(async () => {
    cluster?.stdin?.end();
    if (cluster?.exitCode === null) await once(cluster, 'exit');
    workspace?.remove();
  }, 60_000);

  test('two nodes of two workers give the metrics of one machine', async () => {
    const run = (name: string, ...overrides: string[]) =>
      runCommand([
        'train',
        workspace.file('train.yaml'),
        `trainer.default_local_dir=${workspace.file(name)}`,
        ...overrides,
      ]);
    const metrics = (name: string): string =>
      readFileSync(join(workspace.file(name), 'metrics.jsonl'), 'utf8');
    expect((await run('alone', 'trainer.n_gpus_per_node=4')).code).toBe(0);
    const exit = await run(
      'ray',
      'trainer.nnodes=2',
      'trainer.n_gpus_per_node=2',
      'trainer.launcher.type=ray',
      `trainer.launcher.ray_address=${address}`,
      `trainer.launcher.python=${python}`,
      'trainer.launcher.network=127.0.0.1',
    );
    expect(exit.code === 0 ? '' : `${exit.stdout}\n${exit.stderr}`).toBe('');
    expect(metrics('ray')).toBe(metrics('alone'));
  }, 400_000);
});
