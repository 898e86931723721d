import path from 'node:path';
import { Actor, type ActorOptions } from '../../ts/actor/actor';
import type { WorkerGroup } from '../../ts/controller/worker_group';
import { TestGroups } from '../helpers/conformance';
import { expectGradients } from '../helpers/gradients';
import { readSafetensors } from '../helpers/safetensors';
import { ADVANTAGES, IMAGES, SEQUENCES, VISION_MODEL, visionBatch } from '../helpers/vision_model';

// Prompts with images against transformers in float64: one image and two, none, and two responses to one prompt.
const groups = new TestGroups();
afterAll(() => groups.close());

describe.each([1, 2])('on %i workers', (worldSize) => {
  let group: WorkerGroup;
  beforeAll(async () => {
    group = await groups.of(worldSize);
  });

  async function withActor(
    more: Partial<ActorOptions>,
    work: (actor: Actor) => Promise<void>,
  ): Promise<void> {
    const actor = await Actor.create({ model: VISION_MODEL, dtype: 'float32', group, ...more });
    try {
      await work(actor);
    } finally {
      await actor.close();
    }
  }

  test.each([
    ['in one micro-batch', 4096],
    ['in several', 240],
  ])('log-probs, packed %s', (_, maxTokensPerMicroBatch) =>
    withActor({ optim: null, maxTokensPerMicroBatch }, async (actor) => {
      const { logProbs } = await actor.computeLogProb(await visionBatch());
      const expected = SEQUENCES.flatMap(({ logProbs: own }) => own);
      expect(Math.max(...expected.map((value, i) => Math.abs(value - (logProbs[i] as number))))).toBeLessThan(
        1e-4,
      );
    }),
  );

  test('greedy continuations', () =>
    withActor({ optim: null }, async (actor) => {
      const batch = await visionBatch();
      const steps = SEQUENCES[0]?.greedy.length as number;
      const greedy = await actor.generate(
        SEQUENCES.map(({ prompt }) => prompt),
        { maxNewTokens: steps, temperature: 0, stopTokenIds: [] },
        batch.get('images'),
      );
      expect(SEQUENCES.map((_, i) => [...greedy.response(i)])).toEqual(
        SEQUENCES.map(({ greedy: own }) => own),
      );
    }));

  test('what is recorded while sampling is what computeLogProb gives, bit for bit', () =>
    withActor({ optim: null }, async (actor) => {
      const batch = await visionBatch();
      const sampled = await actor.generate(
        SEQUENCES.map(({ prompt }) => prompt),
        { maxNewTokens: 9, n: 3, seed: 5, stopTokenIds: [] },
        batch.get('images'),
      );
      const { logProbs } = await actor.computeLogProb(sampled);
      expect(sampled.get('rolloutLogProbs')).toEqual(logProbs);
    }));

  test.each([false, true])('gradients of every parameter, with gradient checkpointing: %s', (checkpointing) =>
    withActor(
      { optim: { lr: 0, weightDecay: 0, gradClip: 1e9 }, gradientCheckpointing: checkpointing },
      async (actor) => {
        const batch = await visionBatch();
        const { logProbs } = await actor.computeLogProb(batch);
        await actor.updatePolicy(
          batch.with({ advantages: Float32Array.from(ADVANTAGES), oldLogProbs: logProbs }),
        );
        const gradients = readSafetensors(path.join(IMAGES, 'gradients.safetensors'));
        await expectGradients(group, actor.name, VISION_MODEL, 'lm', gradients);
      },
    ),
  );
});
