import { setTimeout } from 'node:timers/promises';
import { setFlagsFromString } from 'node:v8';
import { runInNewContext } from 'node:vm';
import { ColumnMemory } from '../../../ts/batch/column_memory';
import type { EngineNeeds } from '../../../ts/trainer/engines';
import { FakeEngines, lengthReward, trainer } from '../../helpers/fake_run';

test.each([
  ['with validation', ['trainer.test_freq=1']],
  ['with greedy answers as baselines', ['algorithm.adv_estimator=remax', 'trainer.val_before_train=false']],
  [
    'with prompts that are left out',
    ['algorithm.filter_groups={enable: true, metric: seq_reward}', 'trainer.val_before_train=false'],
  ],
])('the memory of all that was sampled is given back by the end of its step: %s', async (_, overrides) => {
  const lend = jest.spyOn(ColumnMemory.prototype, 'int32');
  try {
    const run = trainer({ overrides: ['trainer.total_training_steps=2', ...overrides] });
    await run.trainer.fit();
    const columns = lend.mock.results.map(({ value }) => value as Int32Array);
    expect(columns).toHaveLength(run.engines.calls.filter((name) => name === 'generate').length);
    expect(columns.map(({ length }) => length)).toEqual(columns.map(() => 0));
  } finally {
    lend.mockRestore();
  }
});

test('a validation does not hold the batch of the step before it', async () => {
  setFlagsFromString('--expose-gc');
  const collect = runInNewContext('gc') as () => void;
  let learnt: WeakRef<object> | null = null;
  const held: boolean[] = [];
  class Engines extends FakeEngines {
    override async create(needs: EngineNeeds) {
      const engines = await super.create(needs);
      const { updatePolicy } = engines.actor;
      engines.actor.updatePolicy = async (batch, options) => {
        learnt = new WeakRef(batch.get('advantages'));
        return updatePolicy(batch, options);
      };
      return engines;
    }
  }
  const engines = new Engines();
  const run = trainer({
    engines,
    overrides: ['trainer.total_training_steps=2', 'trainer.test_freq=1', 'trainer.val_before_train=false'],
    options: {
      reward: async (sample) => {
        // What is validated with has prompts of its own.
        if (Number(sample.groundTruth) >= 100) {
          await setTimeout(1);
          collect();
          held.push(learnt?.deref() !== undefined);
        }
        return lengthReward(sample);
      },
    },
  });
  await run.trainer.fit();
  expect(held.length).toBeGreaterThanOrEqual(6);
  expect(held).not.toContain(true);
});
