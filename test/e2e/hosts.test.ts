import { existsSync, mkdirSync, readFileSync, truncateSync } from 'node:fs';
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

// The agent first: it waits for the controller.
const start = (name: string, ...overrides: string[]): Command[] =>
  [1, 0].map((rank) => startOne(rank, name, overrides));

const controller = (name: string, ...overrides: string[]): Command => startOne(0, name, overrides);

function startOne(rank: number, name: string, overrides: readonly string[]): Command {
  const args = [
    'train',
    workspace.file('train.yaml'),
    `trainer.default_local_dir=${workspace.file(name)}`,
    'trainer.nnodes=2',
    'trainer.n_gpus_per_node=2',
    'trainer.launcher.network=127.0.0.1',
    ...overrides,
  ];
  return new Command(args, { env: torchrun(rank) });
}

const metrics = (name: string): string => readFileSync(join(workspace.file(name), 'metrics.jsonl'), 'utf8');

/** The last step in the metrics of a run so far. */
function stepOf(name: string): number {
  if (!existsSync(join(workspace.file(name), 'metrics.jsonl'))) return 0;
  const last = metrics(name).trimEnd().split('\n').at(-1) as string;
  return last === '' ? 0 : (JSON.parse(last) as { step: number }).step;
}

/** The step of the newest checkpoint of a run so far. */
function savedStep(name: string): number {
  const file = join(workspace.file(name), 'latest_checkpointed_iteration.txt');
  return existsSync(file) ? Number(readFileSync(file, 'utf8')) : 0;
}

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

test('the controller is killed: another one takes the hosts over, and one step is repeated at most', async () => {
  const memory = workspace.file('memory');
  mkdirSync(memory);
  const overrides = [
    'trainer.total_training_steps=10',
    'trainer.test_freq=-1',
    'trainer.save_freq=-1',
    'trainer.worker_timeouts.startup=300',
    'trainer.fault_tolerance.orphan_wait=300',
    'trainer.checkpoint_staging.every_step=true',
    `trainer.checkpoint_staging.directory=${memory}`,
  ];
  const undisturbed = await runCommand([
    ...['train', workspace.file('train.yaml'), 'trainer.n_gpus_per_node=4'],
    ...[`trainer.default_local_dir=${workspace.file('whole')}`, ...overrides.slice(0, 3)],
  ]);
  expect(undisturbed.code).toBe(0);

  const [agent, killed] = start('taken', ...overrides) as [Command, Command];
  await killed.until('three steps', () => stepOf('taken') >= 3);
  const workers = workersOf(agent.pid);
  expect(workers).toHaveLength(2);
  killed.kill('SIGKILL');
  await killed.exited;
  const done = stepOf('taken');
  const at = performance.now();
  const next = controller('taken', ...overrides);
  await next.until('the next step', () => stepOf('taken') > done);
  process.stderr.write(
    `from a new controller to the next step: ${((performance.now() - at) / 1000).toFixed(2)} s\n`,
  );
  const [first, second] = await Promise.all([agent.exited, next.exited]);
  expect([first.code, second.code === 0 ? '' : second.stderr]).toEqual([0, '']);
  expect(first.stdout).toMatch(/waiting 300 s for another controller/);
  const from = Number(/resuming after step (\d+) from .*memory/.exec(second.stdout)?.[1]);
  expect([done, done - 1]).toContain(from);
  expect(metrics('taken')).toBe(metrics('whole'));
  expect(await allGone([...workers, ...workersOf(agent.pid)], 5_000)).toBe(true);
}, 600_000);

test('the controller is killed and the other host goes for good: an elastic run is taken up on the host that is left', async () => {
  const overrides = [
    'trainer.total_training_steps=6',
    'trainer.test_freq=-1',
    'trainer.save_freq=1',
    'trainer.fault_tolerance.max_restarts=1',
    'trainer.fault_tolerance.elastic=true',
  ];
  const [agent, killed] = start('halved', ...overrides) as [Command, Command];
  await killed.until('two checkpoints', () => savedStep('halved') >= 2);
  killed.kill('SIGKILL');
  agent.kill('SIGKILL');
  await Promise.all([agent.exited, killed.exited]);
  // The newest checkpoint is damaged at that: the one before it serves.
  const torn = join(workspace.file('halved'), `global_step_${savedStep('halved')}`, 'trainer.json');
  truncateSync(torn, 100);
  const refused = await controller(
    'halved',
    ...overrides,
    'trainer.launcher.wait=5',
    'trainer.fault_tolerance.elastic=false',
  ).exited;
  expect([refused.code, refused.stderr]).toEqual([
    1,
    expect.stringMatching(/expected 2 hosts at .*, but within 5 s 1 came/),
  ]);
  const { code, stdout, stderr } = await controller('halved', ...overrides, 'trainer.launcher.wait=5').exited;
  expect([code, code === 0 ? '' : stderr]).toEqual([0, '']);
  expect(stdout).toMatch(
    /going on with 1 of 2 hosts\n[\s\S]*trainer\.json is damaged .*; going on from step \d instead\n[\s\S]*resuming after step \d/,
  );
  expect(stepOf('halved')).toBe(6);
});
