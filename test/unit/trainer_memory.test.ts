import { ColumnMemory } from '../../ts/batch/column_memory';
import { trainer } from './fake_run';

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
