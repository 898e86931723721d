// What a step does with its batch, over fakes.
import { registerAdvantageEstimator } from '../../../ts/algorithms/advantages';
import { indicesByRank } from '../../../ts/engine/shards';
import type { RewardFunction } from '../../../ts/reward/contract/types';
import {
  expertsOf,
  FakeEngines,
  fakeData,
  rareReward,
  runConfig,
  steps,
  trainer,
} from '../../helpers/fake_run';

describe('router replay', () => {
  const mode = 'actor_rollout_ref.actor.megatron.router_replay.mode';
  const one = ['trainer.total_training_steps=1', 'trainer.val_before_train=false'];

  test.each([
    ['disabled', [], {}],
    ['R2', [], { recordExperts: true }],
    ['R3', ['actor_rollout_ref.rollout.enable_rollout_routing_replay=true'], { replayExperts: true }],
  ])('%s', async (name, more, asked) => {
    const run = trainer({ overrides: [...one, `${mode}=${name}`, ...more], options: { reward: rareReward } });
    await run.trainer.fit();
    const { logProbOptions, updateOptions, updates } = run.engines;
    const replays = (options: unknown) =>
      Object.entries(options as object).filter(([key]) => /Experts$/.test(key));
    expect(Object.fromEntries(replays(logProbOptions))).toEqual(asked);
    expect(replays(updateOptions)).toEqual(name === 'disabled' ? [] : [['replayExperts', true]]);
    const [batch] = updates;
    expect(batch?.has('routedExperts')).toBe(name === 'R2');
    if (batch && name === 'R2') expect(batch.get('routedExperts')).toEqual(expertsOf(batch));
  });
});

test('a rollout in processes of its own gets weights after they change, and may rest before anything is trained', async () => {
  const engines = new FakeEngines();
  engines.apart = true;
  const once = ['trainer.total_training_steps=1', 'trainer.val_before_train=false', 'trainer.test_freq=-1'];
  await trainer({ overrides: once, engines }).trainer.fit();
  const seen = ['syncRollout', 'generate', 'releaseRollout', 'actor.computeLogProb', 'updatePolicy'];
  expect(engines.calls.filter((call) => seen.includes(call))).toEqual([...seen, 'syncRollout']);
});

describe('metrics of a step', () => {
  const once = ['trainer.total_training_steps=1', 'trainer.val_before_train=false'];

  test('global_seqlen: tokens of the parts that the ranks get, beside those in the order of the data', async () => {
    const engines = new FakeEngines();
    engines.dataParallelSize = 4;
    const run = trainer({ overrides: [...once, 'trainer.seed=3'], engines });
    await run.trainer.fit();
    const batch = engines.updates[0]!;
    const sums = (parts: number[][]): number[] =>
      parts.map((part) => part.reduce((sum, i) => sum + (batch.sequenceLens[i] as number), 0));
    const contiguous = sums([
      [0, 1],
      [2, 3],
      [4, 5],
      [6, 7],
    ]);
    const balanced = sums(indicesByRank(batch, 4));
    expect([...balanced].sort()).not.toEqual([...contiguous].sort());
    expect(steps(run.directory)[0]).toMatchObject({
      'global_seqlen/min': Math.min(...contiguous),
      'global_seqlen/max': Math.max(...contiguous),
      'global_seqlen/balanced_min': Math.min(...balanced),
      'global_seqlen/balanced_max': Math.max(...balanced),
      'global_seqlen/mean': batch.numTokens / 4,
    });
  });

  test('actor/entropy is aggregated as the loss is', async () => {
    const mode = 'actor_rollout_ref.actor.loss_agg_mode=seq-mean-token-sum';
    const run = trainer({ overrides: [...once, mode] });
    await run.trainer.fit();
    const batch = run.engines.updates[0]!;
    const total = batch.get('entropy').reduce((sum, x) => sum + x, 0);
    expect(steps(run.directory)[0]?.['actor/entropy']).toBeCloseTo(total / batch.size, 6);
  });
});

test('each prompt is decoded once, whatever the number of its responses', async () => {
  const decoded: string[] = [];
  const data = async () => ({
    ...fakeData(),
    decoder: {
      decode: (tokens: ArrayLike<number>, { skipSpecialTokens }: { skipSpecialTokens: boolean }) => {
        const text = Array.from(tokens).join(' ');
        if (!skipSpecialTokens) decoded.push(text);
        return text;
      },
    },
  });
  const prompts: string[] = [];
  const reward: RewardFunction = ({ prompt }) => {
    prompts.push(prompt);
    return 1;
  };
  const overrides = [
    'trainer.total_training_steps=1',
    'trainer.val_before_train=false',
    'trainer.test_freq=-1',
    'logging.tokens.samples=0',
  ];
  await trainer({ overrides, options: { data, reward } }).trainer.fit();
  expect(decoded).toEqual(['1', '3']);
  expect(prompts).toEqual(['1', '1', '1', '1', '3', '3', '3', '3']);
});

test('an estimator of one’s own trains under its name; without it the configuration names those there are', async () => {
  const overrides = ['algorithm.adv_estimator=twice_the_score', 'trainer.total_training_steps=1'];
  expect(() => runConfig('x', overrides)).toThrow(
    /adv_estimator: expected one of gae, .* got "twice_the_score" \(registerAdvantageEstimator.*external_lib/,
  );
  registerAdvantageEstimator('twice_the_score', ({ offsets, tokenRewards }) => {
    const advantages = new Float64Array(tokenRewards.length);
    for (let i = 0; i + 1 < offsets.length; i++) {
      const [start, end] = [offsets[i] as number, offsets[i + 1] as number];
      advantages.fill(2 * (tokenRewards[end - 1] as number), start, end);
    }
    return { advantages, returns: advantages };
  });
  const run = trainer({ overrides });
  await run.trainer.fit();
  const batch = run.engines.updates[0]!;
  for (let i = 0; i < batch.size; i++) {
    const expected = 2 * (batch.get('score')[i] as number);
    for (const advantage of batch.row('advantages', i) as Float32Array)
      expect(advantage).toBeCloseTo(expected, 6);
  }
  expect(() =>
    registerAdvantageEstimator('twice_the_score', () => ({ advantages: [], returns: [] })),
  ).toThrow(/another estimator is already registered/);
});
