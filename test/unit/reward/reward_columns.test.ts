import { Batch } from '../../../ts/batch/batch';
import { rewardColumn } from '../../../ts/trainer/reward_columns';
import type { Scored } from '../../../ts/trainer/rollout';

test('what a reward function returned is quoted short and without control characters', () => {
  const columns = { dataSource: [`\x9b2J${'s'.repeat(1e6)}`] };
  const extras = { acc: [`\x1b]0;title\x07${'x'.repeat(1e6)}`], [`\x1b[2J${'k'.repeat(1e6)}`]: [1] };
  const scored = {
    batch: Batch.fromSequences([[1]], [[2]], columns),
    inputs: [''],
    outputs: [''],
    rewards: { scores: Float64Array.of(1), extras, failures: 0 },
  } satisfies Scored;
  for (const [name, shown] of [
    ['acc', /but it returned acc = \\x1b\]0;title\\x07xxx.*… \(1000010 characters\) for response 0/],
    ['format', /but it returned only score, acc, \\x1b\[2Jkkk/],
  ] as const) {
    const message = (() => {
      try {
        rewardColumn(scored, name, 'algorithm.filter_groups.metric', 'fail');
      } catch (error) {
        return (error as Error).message;
      }
      return '';
    })();
    expect(message).toMatch(shown);
    expect(message).not.toMatch(/\p{Cc}/u);
    expect(message.length).toBeLessThan(2000);
  }
});
