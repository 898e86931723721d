// What a tool or a search told carries no gradient: whatever stands at those tokens changes no weight of actor or critic.
import path from 'node:path';
import { Actor } from '../../ts/actor/actor';
import { trajectoryBatch, turnScores } from '../../ts/agent/trajectory/trajectory_batch';
import { wholeTrajectories } from '../../ts/agent/trajectory/whole';
import { computeAdvantages } from '../../ts/algorithms/advantages';
import type { Batch } from '../../ts/batch/batch';
import { WorkerGroup } from '../../ts/controller/worker_group';
import { Critic } from '../../ts/critic/critic';
import { CONFORMANCE } from '../helpers/conformance';
import { callOf, trajectoryOf } from '../unit/agent/histories';

const models = path.join(CONFORMANCE, 'models', 'qwen3_headdim');
let group: WorkerGroup;
beforeAll(async () => {
  group = await WorkerGroup.launch({ worldSize: 1, device: 'cpu' });
});
afterAll(() => group.close());

/** Four trajectories of three turns with observations between them; one of them has a sibling. */
function trajectories(): Batch {
  const rows = [0, 1, 2, 3].map((k) => {
    const prompt = [5, 6, 7];
    const first = callOf(prompt, [10 + k, 11, 12]);
    const second = callOf([...prompt, 10 + k, 11, 12, 90, 91, 92, 93], [20 + k, 21]);
    const third = callOf([...second.promptIds, 20 + k, 21, 94, 95], [30, 31 + k]);
    const other = callOf([...prompt, 80, 81], [40, 41]);
    return {
      promptIds: prompt,
      trajectory: trajectoryOf(k === 2 ? [first, second, third, other] : [first, second, third]),
    };
  });
  const batch = trajectoryBatch(rows);
  const tokenScores = turnScores(
    batch,
    [1, 0, 0.5, 0.25],
    rows.map(() => new Map([[0, 0.125]])),
  );
  return batch.with({ uid: new Array(batch.size).fill('a'), tokenScores, tokenRewards: tokenScores });
}

/** `column` with other numbers where nothing was sampled. */
function disturbed(batch: Batch, column: Float32Array, by: number): Float32Array {
  const mask = batch.get('responseMask');
  return column.map((value, t) => (mask[t] ? value : value + by * (1 + (t % 5))));
}

async function weights(engine: { name: string }): Promise<Float32Array[]> {
  const parameters = (await group.callRank(0, engine.name, 'parameters', [])) as { name: string }[];
  const tensors: Float32Array[] = [];
  for (const { name } of parameters)
    tensors.push((await group.callRank(0, engine.name, 'getTensor', ['param', name])) as Float32Array);
  return tensors;
}

const optim = { lr: 1e-3 };

async function trainedActor(by: number, sampledToo = false): Promise<Float32Array[]> {
  const actor = await Actor.create({
    model: path.join(models, 'actor'),
    group,
    maxTokensPerMicroBatch: 64,
    optim,
  });
  try {
    const batch = trajectories();
    const { logProbs } = await actor.computeLogProb(batch);
    const { advantages } = computeAdvantages('grpo', wholeTrajectories(batch), {});
    const change = (column: Float32Array): Float32Array =>
      sampledToo ? column.map((value) => value + by) : disturbed(batch, column, by);
    const learnt = batch.drop('rolloutLogProbs').with({
      oldLogProbs: change(logProbs),
      refLogProbs: change(logProbs.map((lp, t) => lp + 0.1 * Math.sin(t))),
      rolloutLogProbs: change(logProbs),
      advantages: disturbed(batch, advantages, by),
    });
    await actor.updatePolicy(learnt, { loss: { useKlLoss: true, klLossCoef: 0.1, entropyCoeff: 0.01 } });
    return await weights(actor);
  } finally {
    await actor.close();
  }
}

async function trainedCritic(by: number): Promise<Float32Array[]> {
  const critic = await Critic.create({
    model: path.join(models, 'actor'),
    group,
    maxTokensPerMicroBatch: 64,
    optim,
    seed: 3,
  });
  try {
    const batch = trajectories();
    const { values } = await critic.computeValues(batch);
    const changed = batch.with({ values: disturbed(batch, values, by) });
    const { advantages, returns } = computeAdvantages('gae', wholeTrajectories(changed), {
      gamma: 1,
      lam: 0.9,
    });
    await critic.updateCritic(changed.with({ returns: disturbed(batch, returns, by), advantages }), {});
    return await weights(critic);
  } finally {
    await critic.close();
  }
}

test('actor: old, reference and rollout log-probs and advantages of observations change no weight', async () => {
  const plain = await trainedActor(0);
  expect(await trainedActor(3)).toEqual(plain);
  // It is the mask that does it: of sampled tokens they matter.
  expect(await trainedActor(0.05, true)).not.toEqual(plain);
});

test('critic: values and returns of observations change no weight', async () => {
  expect(await trainedCritic(3)).toEqual(await trainedCritic(0));
});
