import { Batch } from '../../../ts/batch/batch';
import {
  type DynamicSamplingOptions,
  type Generation,
  groupsThatDiffer,
  sampleGroups,
} from '../../../ts/trainer/dynamic_sampling';

/** A generation batch whose prompts have these scores, one list per prompt; the token ids tell responses apart. */
function generation(index: number, scores: number[][], acc?: unknown[]): Generation {
  const prompts = scores.map((_, i) => ({
    tokens: [index, i],
    dataSource: 'fake',
    groundTruth: `${index}.${i}`,
    extraInfo: {},
  }));
  const rows = scores.flatMap((group, i) => group.map((score, k) => ({ i, k, score })));
  const batch = Batch.fromSequences(
    rows.map(({ i }) => [index, i]),
    rows.map(({ k }) => [k, 9]),
    {
      tokenScores: rows.map(({ score }) => [0, score]),
      uid: rows.map(({ i }) => `${index}-${i}`),
      dataSource: rows.map(() => 'fake'),
    },
  );
  const extras = acc ? { acc } : ({} as Record<string, unknown[]>);
  const rewards = { scores: Float64Array.from(rows, ({ score }) => score), extras, failures: index };
  const texts = rows.map(({ i, k }) => `${index}.${i}.${k}`);
  return { prompts, epoch: index, scored: { batch, inputs: texts, outputs: texts, rewards } };
}

const OPTIONS: DynamicSamplingOptions = {
  wanted: 3,
  metric: 'score',
  maxGenBatches: 0,
  batchesPerEpoch: 2,
  onError: 'fail',
};

const same = [1, 1];
const mixed = [0, 1];

function sample(batches: number[][][], options: Partial<DynamicSamplingOptions> = {}) {
  const made: number[] = [];
  const result = sampleGroups(
    async (index) => {
      made.push(index);
      return generation(index, batches[index % batches.length] as number[][]);
    },
    { ...OPTIONS, ...options },
  );
  return { result, made };
}

test('goes on until enough prompts have responses that differ, and keeps the first of them', async () => {
  const { result, made } = sample([
    [same, mixed],
    [mixed, same],
    [mixed, mixed],
  ]);
  const { prompts, scored, epoch, metrics, generatedTokens } = await result;
  expect(made).toEqual([0, 1, 2]);
  expect(scored.outputs).toEqual(['0.1.0', '0.1.1', '1.0.0', '1.0.1', '2.0.0', '2.0.1']);
  expect(scored.batch.get('uid')).toEqual(['0-1', '0-1', '1-0', '1-0', '2-0', '2-0']);
  expect([...scored.rewards.scores]).toEqual([0, 1, 0, 1, 0, 1]);
  expect(scored.rewards.failures).toBe(0 + 1 + 2);
  expect(prompts.map(({ groundTruth }) => groundTruth)).toEqual(['0.1', '1.0', '2.0']);
  expect(epoch).toBe(2);
  expect(generatedTokens).toBe(3 * 4 * 2);
  expect(metrics).toEqual({
    'train/num_gen_batches': 3,
    'train/num_gen_prompts': 6,
    'train/kept_prompt_ratio': 4 / 6,
    'train/gen_score_mean': (2 + 1 + 1 + 2 + 1 + 1) / 12,
    'training/filter_groups/evicted_samples': 2,
    'training/filter_groups/discarded_surplus_samples': 1,
  });
});

test('one batch is enough when all of it is kept', async () => {
  const { result, made } = sample([[mixed, mixed, mixed]]);
  expect((await result).scored.batch.size).toBe(6);
  expect(made).toEqual([0]);
});

test('a single response per prompt is always kept', async () => {
  expect((await sample([[[1], [1], [1]]]).result).scored.batch.size).toBe(3);
});

test('equal numbers do not differ, whatever rounding makes of their deviation', () => {
  // numpy: std([0.1, 0.1, 0.1]) is 1.4e-17
  expect(groupsThatDiffer([0.1, 0.1, 0.1, 0.1, 0.1, 0.2], ['a', 'a', 'a', 'b', 'b', 'b'])).toEqual([
    { index: 1, members: [3, 4, 5] },
  ]);
});

describe('trajectories of several sequences', () => {
  /** One prompt per list of scores. Every trajectory has two sequences, both with its score, and the tokens' on the last one. */
  const agents = async (index: number, scores: number[][], extras = {}): Promise<Generation> => {
    const made = generation(
      index,
      scores.map((group) => group.flatMap((score) => [0, score])),
    );
    const each = scores.flat().flatMap((score) => [score, score]);
    const batch = made.scored.batch.with(
      { trajectory: each.map((_, row) => `${index}-${row >> 1}`) },
      { granularity: { trajectory: 'sequence' } },
    );
    const rewards = { ...made.scored.rewards, scores: Float64Array.from(each), extras };
    return { ...made, scored: { ...made.scored, batch, rewards } };
  };

  test.each(['seq_reward', 'seq_final_reward', 'score'])(
    'are compared as one response, by %s',
    async (metric) => {
      const result = await sampleGroups((i) => agents(i, [same, mixed]), { ...OPTIONS, metric, wanted: 1 });
      expect(result.scored.outputs).toEqual(['0.1.0', '0.1.1', '0.1.2', '0.1.3']);
      expect(result.prompts.map(({ groundTruth }) => groundTruth)).toEqual(['0.1']);
      expect(result.metrics).toMatchObject({ 'train/kept_prompt_ratio': 0.5, 'train/gen_score_mean': 0.75 });
    },
  );

  test('by what the reward function returned, too', async () => {
    const extras = { acc: [1, 1, 1, 1, 0, 0, 1, 1] };
    const options = { ...OPTIONS, metric: 'acc', wanted: 1 };
    const result = await sampleGroups((i) => agents(i, [same, same], extras), options);
    expect(result.scored.rewards.extras['acc']).toEqual([0, 0, 1, 1]);
  });

  test('a single one per prompt is always kept', async () => {
    const result = await sampleGroups((i) => agents(i, [[1], [1], [1]]), {
      ...OPTIONS,
      metric: 'seq_reward',
    });
    expect(result.scored.batch.size).toBe(6);
    expect((await sampleGroups((i) => agents(i, [[1], [1], [1]]), OPTIONS)).scored.batch.size).toBe(6);
  });

  test('count once each in the mean score', async () => {
    const uneven = async (i: number): Promise<Generation> => {
      const made = await agents(i, [mixed]);
      // The first trajectory takes three of the four sequences.
      const trajectory = ['a', 'a', 'a', 'b'];
      const batch = made.scored.batch
        .drop('trajectory')
        .with({ trajectory }, { granularity: { trajectory: 'sequence' } });
      const rewards = { ...made.scored.rewards, scores: Float64Array.of(0, 0, 0, 1) };
      return { ...made, scored: { ...made.scored, batch, rewards } };
    };
    const { metrics } = await sampleGroups(uneven, { ...OPTIONS, wanted: 1 });
    expect(metrics['train/gen_score_mean']).toBe(0.5);
  });
});

test('too few after max_num_gen_batches: an error that counts', async () => {
  const { result, made } = sample([[same, mixed]], { maxGenBatches: 2 });
  await expect(result).rejects.toMatchObject({
    code: 'INVALID_DATA',
    message: expect.stringMatching(
      /expected 3 prompts .* differ in score, but of 4 prompts in 2 generation batches only 2 .*max_num_gen_batches is 2/,
    ),
  });
  expect(made).toEqual([0, 1]);
});

test('exactly max_num_gen_batches are allowed', async () => {
  await expect(sample([[mixed, same]], { maxGenBatches: 3 }).result).resolves.toMatchObject({ epoch: 2 });
});

test('without a limit, an epoch that leaves nothing ends it', async () => {
  const { result, made } = sample([[same, same]]);
  await expect(result).rejects.toThrow(/only 0 are such, and none of the last pass over the data/);
  expect(made).toHaveLength(2);
});

describe('metrics', () => {
  test('acc comes from the reward function', async () => {
    const acc = [true, true, false, true];
    const result = await sampleGroups(async (i) => generation(i, [mixed, same], acc), {
      ...OPTIONS,
      metric: 'acc',
      wanted: 1,
    });
    expect(result.scored.outputs).toEqual(['0.1.0', '0.1.1']);
    expect(result.scored.rewards.extras['acc']).toEqual([false, true]);
  });

  test('any number that the reward function returned may be the metric', async () => {
    const named = async (i: number): Promise<Generation> => {
      const made = generation(i, [same, same]);
      const extras = { format: [1, 1, 0, 1] };
      return { ...made, scored: { ...made.scored, rewards: { ...made.scored.rewards, extras } } };
    };
    const result = await sampleGroups(named, { ...OPTIONS, metric: 'format', wanted: 1 });
    expect(result.scored.outputs).toEqual(['0.1.0', '0.1.1']);
  });

  test('acc that is missing is named', async () => {
    const acc = [1, 1, undefined, 1];
    const run = sampleGroups(async (i) => generation(i, [mixed, same], acc), { ...OPTIONS, metric: 'acc' });
    await expect(run).rejects.toMatchObject({
      code: 'REWARD_FAILED',
      message: expect.stringMatching(
        /filter_groups\.metric .* 'acc', but it returned only score for response 2/,
      ),
    });
  });

  test('seq_reward of a response without any token is its score', async () => {
    const batch = generation(0, [same]);
    const { prompts, epoch, scored } = batch;
    const empty = Batch.fromSequences([[0], [0]], [[7], []], {
      tokenScores: [[1], []],
      score: [1, -1],
      uid: ['0-0', '0-0'],
      dataSource: ['fake', 'fake'],
    });
    const result = sampleGroups(async () => ({ prompts, epoch, scored: { ...scored, batch: empty } }), {
      ...OPTIONS,
      metric: 'seq_reward',
      wanted: 1,
    });
    expect((await result).scored.batch.get('score')).toEqual([1, -1]);
    const alike = empty.drop('score').with({ score: [1, 1] });
    await expect(
      sampleGroups(async () => ({ prompts, epoch, scored: { ...scored, batch: alike } }), {
        ...OPTIONS,
        metric: 'seq_reward',
        wanted: 1,
        maxGenBatches: 1,
      }),
    ).rejects.toThrow(/max_num_gen_batches/);
  });

  test.each(['seq_reward', 'seq_final_reward'] as const)('%s is the sum of token rewards', async (metric) => {
    const run = sample([[same, mixed]], { metric, wanted: 1 });
    expect((await run.result).scored.outputs).toEqual(['0.1.0', '0.1.1']);
  });
});

test('batches that leave nothing are hopeless in a row alone', async () => {
  const { result, made } = sample([
    [same, same],
    [same, mixed],
  ]);
  expect((await result).prompts).toHaveLength(3);
  expect(made).toEqual([0, 1, 2, 3, 4, 5]);
});
