import { Actor } from '../../ts/actor/actor';
import { Batch } from '../../ts/batch/batch';
import { TEST_DEVICE, TestGroups } from '../helpers/conformance';
import { describeRandomModels, madeBy, type RandomModel, seedsOf } from '../helpers/random_models';
import { floats, integers, maxDifference } from '../helpers/safetensors';

// Log-probs and all gradients of random models against transformers in float64, and sampled tokens against compute_log_prob.
const groups = new TestGroups();
afterAll(() => groups.close());

async function compare(model: RandomModel, seed: number): Promise<void> {
  const tokens = Array.from(integers(model.expected, 'tokens'), Number);
  const rows = [tokens.slice(0, tokens.length / 2), tokens.slice(tokens.length / 2)];
  const group = await groups.of(TEST_DEVICE === 'cpu' && seed % 3 === 0 ? 2 : 1);
  const actor = await Actor.create({
    model: model.directory,
    optim: { lr: 0, weightDecay: 0, gradClip: 1e9 },
    group,
    dtype: 'float32',
  });
  try {
    const batch = Batch.fromSequences(
      rows.map((row) => row.slice(0, 1)),
      rows.map((row) => row.slice(1)),
      { advantages: floats(model.expected, 'advantages') },
    );
    const { logProbs } = await actor.computeLogProb(batch);
    const worst = maxDifference(logProbs, floats(model.expected, 'log_probs'));
    expect(worst).toBeLessThan(model.bound('log_prob'));

    await actor.updatePolicy(batch.with({ oldLogProbs: logProbs }));
    expect(await model.gradientError(group, actor.name)).toBeLessThan(model.bound('gradient'));

    const sampled = await actor.generate(
      rows.map((row) => row.slice(0, 20)),
      { maxNewTokens: 12, seed, stopTokenIds: [] },
    );
    const again = await actor.computeLogProb(sampled);
    expect(maxDifference(sampled.get('rolloutLogProbs'), again.logProbs)).toBe(0);
  } finally {
    await actor.close();
  }
}

describeRandomModels('random models', () => {
  const seeds = seedsOf(104, 2080);
  const modelOf = madeBy('make_models.py', seeds);
  test.each(seeds)('seed %d', (seed) => compare(modelOf(seed), seed));
});

// Where half an ulp on its weights moves its gradients by 9e-4 of their norm.
describeRandomModels('a random model that float32 rounds much of', () => {
  const [seed, family] = [231, 'qwen3_5_text'];
  const modelOf = madeBy('make_models.py', [seed], family);
  test(`${family} of seed ${seed}`, () => compare(modelOf(seed), seed));
});
