import { oneToAll } from '../../ts/controller/dispatch';
import { fakeEngineOptions, launchFakeGroup } from './fake_group';

// A controller process of its own: prints the process ids of its workers, gives them work, and then either closes
// the group and ends ('close') or waits to be killed ('wait').
async function main(): Promise<void> {
  const { group, processes } = await launchFakeGroup({ worldSize: 2 });
  await group.createEngine('actor', fakeEngineOptions);
  const command = process.argv[2] === 'close' ? 'print working' : 'sleep 60000';
  const work = oneToAll(group, 'actor', 'getTensor', ['param', command]);
  console.log(JSON.stringify(processes.map(({ pid }) => pid)));
  await work;
  await group.close();
}

void main();
