import path from 'node:path';
import { Actor } from '../../../ts/actor/actor';
import { registerPolicyLoss } from '../../../ts/algorithms/policy_losses/registry';
import { Batch } from '../../../ts/batch/batch';
import { planUpdate } from '../../../ts/engine/shards';
import type { NativeTokenBatch } from '../../../ts/native/bridge';
import { FakeGroup } from './fake_group';

jest.mock('../../../ts/engine/shards', () => {
  const actual = jest.requireActual('../../../ts/engine/shards');
  return { ...actual, planUpdate: jest.fn(actual.planUpdate) };
});

const model = path.join(__dirname, '../../fixtures/conformance/models/llama_gqa/actor');

test.each(['bypass_mode', 'loss of the test'])(
  '%s: what is prepared mini-batch by mini-batch is cut over the ranks so, and never as a whole',
  async (mode) => {
    if (mode !== 'bypass_mode')
      registerPolicyLoss(mode, ({ logProbs }) => ({ loss: logProbs, gradLogProbs: logProbs }));
    const group = new FakeGroup({
      scheduleSteps: () => 0,
      optimizerSteps: () => 1,
      computeLogProb: ({ tokens }: NativeTokenBatch) => {
        const values = new Float32Array(tokens.length / 2).fill(-1);
        return { logProbs: values, entropy: values, sumPiSquared: null, routedExperts: null };
      },
      updatePolicy: () => [{ pg_loss: 0 }],
    });
    const actor = await Actor.create({ model, group: group.asGroup(), maxTokensPerMicroBatch: 32 });
    const rows = [[1], [2], [3], [4], [5], [6]];
    const column = rows.map(() => -1);
    const columns = { oldLogProbs: column, rolloutLogProbs: column, advantages: column };
    const batch = Batch.fromSequences(rows, rows, columns);
    jest.mocked(planUpdate).mockClear();
    await actor.updatePolicy(batch, { miniBatchSize: 2, loss: { mode } });
    const sizes = jest.mocked(planUpdate).mock.calls.map(([part]) => part.size);
    expect(sizes).toEqual([2, 2, 2]);
    // Trajectories that have become different numbers of sequences.
    jest.mocked(planUpdate).mockClear();
    await actor.updatePolicy(batch, { miniBatchSize: [1, 3, 2], ppoEpochs: 2, loss: { mode } });
    const parts = jest.mocked(planUpdate).mock.calls.map(([part]) => [...part.get('tokens')]);
    const epoch = [
      [1, 1],
      [2, 2, 3, 3, 4, 4],
      [5, 5, 6, 6],
    ];
    expect(parts).toEqual([...epoch, ...epoch]);
  },
);
