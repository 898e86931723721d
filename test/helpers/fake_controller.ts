import { oneToAll } from '../../ts/controller/dispatch';
import { WorkerGroup } from '../../ts/controller/worker_group';
import { createFakeLauncher, fakeEngineOptions } from './fake_group';

// A controller process of its own: prints the process ids of its workers, gives them work, and then either closes
// the group and ends ('close') or waits to be killed ('wait'). 'far': its workers are told of no parent, as on another host.
async function main(): Promise<void> {
  const far = process.argv[2] === 'far';
  const launcher = createFakeLauncher(far ? 'far' : '');
  const group = await WorkerGroup.launch({
    worldSize: 2,
    device: 'cpu',
    launcher,
    deadTimeoutMs: far ? 500 : 10_000,
  });
  const processes = launcher.started;
  await group.createEngine('actor', fakeEngineOptions);
  const command = process.argv[2] === 'close' ? 'print working' : 'sleep 60000';
  const work = oneToAll(group, 'actor', 'getTensor', ['param', command]);
  console.log(JSON.stringify(processes.map(({ pid }) => pid)));
  await work;
  await group.close();
}

void main();
