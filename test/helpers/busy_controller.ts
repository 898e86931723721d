import { observedGroup } from './observed_group';
import { tinyEngine, tinyMiniBatches, tinyPolicyBatch, tinyPolicyLoss } from './tiny_model';

// A controller with two real workers, of which rank 0 is busy: prints their process ids and waits to be killed.
async function main(): Promise<void> {
  const { group, processes } = await observedGroup({ worldSize: 2, device: 'cpu' });
  await group.createEngine('actor', tinyEngine());
  const mini = { ...tinyMiniBatches, epochs: 1_000_000 };
  const call = group.callRank(0, 'actor', 'updatePolicy', [tinyPolicyBatch(), mini, tinyPolicyLoss, 1]);
  setTimeout(() => console.log(JSON.stringify(processes.map(({ pid }) => pid))), 200);
  await call;
}

void main();
