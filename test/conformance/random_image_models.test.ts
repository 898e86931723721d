import { readFileSync } from 'node:fs';
import path from 'node:path';
import { Actor } from '../../ts/actor/actor';
import { Batch } from '../../ts/batch/batch';
import type { PromptImage } from '../../ts/batch/prompt_image';
import { TEST_DEVICE, TestGroups } from '../helpers/conformance';
import { describeRandomModels, madeBy, seedsOf } from '../helpers/random_models';
import { floats, maxDifference } from '../helpers/safetensors';

// The same as random_models.test.ts of models that read images.
const groups = new TestGroups();
afterAll(() => groups.close());

interface Sequence {
  prompt: number[];
  response: number[];
  images: [height: number, width: number][];
}

function sequencesOf(directory: string): (Sequence & { pixels: PromptImage[] })[] {
  const told = JSON.parse(readFileSync(path.join(directory, 'sequences.json'), 'utf8')) as Sequence[];
  const bytes = readFileSync(path.join(directory, 'images.bin'));
  let at = 0;
  return told.map((sequence) => ({
    ...sequence,
    pixels: sequence.images.map(([height, width]) => {
      const pixels = new Uint8Array(bytes.subarray(at, at + height * width * 3));
      at += pixels.length;
      return { height, width, pixels };
    }),
  }));
}

describeRandomModels('random models that read images', () => {
  const seeds = seedsOf(24, 480);
  const modelOf = madeBy('make_image_models.py', seeds);

  test.each(seeds)('seed %d', async (seed) => {
    const model = modelOf(seed);
    const sequences = sequencesOf(model.directory);
    const group = await groups.of(TEST_DEVICE === 'cpu' && seed % 4 === 0 ? 2 : 1);
    const reading = { readsImages: true };
    const actor = await Actor.create({
      model: model.directory,
      ...reading,
      optim: { lr: 0, weightDecay: 0, gradClip: 1e9 },
      gradientCheckpointing: seed % 2 === 0,
      group,
      dtype: 'float32',
    });
    try {
      const prompts = sequences.map(({ prompt }) => prompt);
      const images = sequences.map(({ pixels }) => pixels);
      const batch = Batch.fromSequences(
        prompts,
        sequences.map(({ response }) => response),
        { images, advantages: floats(model.expected, 'advantages') },
      );
      const { logProbs } = await actor.computeLogProb(batch);
      const worst = maxDifference(logProbs, floats(model.expected, 'log_probs'));
      expect(worst).toBeLessThan(model.bound('log_prob'));

      await actor.updatePolicy(batch.with({ oldLogProbs: logProbs }));
      expect(await model.gradientError(group, actor.name, reading)).toBeLessThan(model.bound('gradient'));

      const sampled = await actor.generate(prompts, { maxNewTokens: 8, seed, stopTokenIds: [] }, images);
      const again = await actor.computeLogProb(sampled);
      expect(maxDifference(sampled.get('rolloutLogProbs'), again.logProbs)).toBe(0);
    } finally {
      await actor.close();
    }
  });
});
