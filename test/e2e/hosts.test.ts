import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { allGone, Command, runCommand, workersOf } from '../helpers/e2e_process';
import { Workspace } from '../helpers/e2e_workspace';

// A run on two hosts that are both this machine: the processes, connections and checks of a real one. One `troupe train` per host,
// placed by variables as torchrun sets them.

let workspace: Workspace;
beforeAll(async () => {
  workspace = await Workspace.create();
});
afterAll(() => workspace.remove());

const torchrun = (rank: number): Record<string, string> => ({
  RANK: String(rank),
  WORLD_SIZE: '2',
  LOCAL_RANK: '0',
  LOCAL_WORLD_SIZE: '1',
  GROUP_RANK: String(rank),
});

function start(name: string, ...overrides: string[]): Command[] {
  const args = [
    'train',
    workspace.file('train.yaml'),
    `trainer.default_local_dir=${workspace.file(name)}`,
    'trainer.nnodes=2',
    'trainer.n_gpus_per_node=2',
    'trainer.launcher.network=127.0.0.1',
    ...overrides,
  ];
  // The agent first: it waits for the controller.
  return [1, 0].map((rank) => new Command(args, { env: torchrun(rank) }));
}

const metrics = (name: string): string => readFileSync(join(workspace.file(name), 'metrics.jsonl'), 'utf8');

test('two hosts of two workers give the metrics of one host of four', async () => {
  const alone = await runCommand([
    'train',
    workspace.file('train.yaml'),
    `trainer.default_local_dir=${workspace.file('alone')}`,
    'trainer.n_gpus_per_node=4',
  ]);
  expect(alone.code).toBe(0);
  const [agent, controller] = await Promise.all(start('hosts').map(({ exited }) => exited));
  expect([agent?.code, controller?.code]).toEqual([0, 0]);
  expect(controller?.stdout).toMatch(/host 1: \S+ at 127\.0\.0\.1 \(lo\), \d+ cores, .*: ranks 2 to 3/);
  expect(metrics('hosts')).toBe(metrics('alone'));
});

test('the agent of a host is killed: the run ends with the name of the host, and nothing stays', async () => {
  const [agent, controller] = start('killed', 'actor_rollout_ref.actor.ppo_epochs=500') as [Command, Command];
  await controller.until('the first step', () => workersOf(agent.pid).length === 2);
  const workers = workersOf(agent.pid);
  await controller.until('training', () => controller.said(/training for 4 steps/));
  agent.kill('SIGKILL');
  const { code, stderr } = await controller.exited;
  expect(code).toBe(1);
  expect(stderr).toMatch(
    /WORKER_DIED.*worker rank [23] on \S+ died in phase [\s\S]*its host \S+ \(127\.0\.0\.1\) was lost: its agent ended the connection/,
  );
  expect(await allGone([...workers, ...workersOf(controller.pid)], 5_000)).toBe(true);
});
