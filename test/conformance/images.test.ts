import { Actor, type ActorOptions } from '../../ts/actor/actor';
import type { WorkerGroup } from '../../ts/controller/worker_group';
import { TEST_DEVICE, TestGroups, type TestLayout } from '../helpers/conformance';
import { expectGradients } from '../helpers/gradients';
import { VISION_NAMES, type VisionName, visionModel } from '../helpers/vision_model';

// Prompts with images against transformers in float64: one image and two, none, and two responses to one prompt.
const groups = new TestGroups();
afterAll(() => groups.close());

const largest = (values: readonly number[], expected: readonly number[]): number =>
  Math.max(...expected.map((value, i) => Math.abs(value - (values[i] as number))));

const LAYOUTS: readonly TestLayout[] = [
  { layout: 'one worker', worldSize: 1, parallel: {} },
  { layout: 'two workers', worldSize: 2, parallel: {} },
  { layout: 'tp 2', worldSize: 2, parallel: { tp: 2 } },
  { layout: 'tp 2, sequence parallel', worldSize: 2, parallel: { tp: 2, sequenceParallel: true } },
  { layout: 'pp 2', worldSize: 2, parallel: { pp: 2 } },
  { layout: 'tp 2 x pp 2', worldSize: 4, parallel: { tp: 2, sequenceParallel: true, pp: 2 } },
  { layout: 'ulysses 2', worldSize: 2, parallel: { ulysses: 2 } },
  { layout: 'cp 2', worldSize: 2, parallel: { cp: 2 } },
];
const EXPERTS = { layout: 'ep 2', worldSize: 2, parallel: { ep: 2 } };
/** More than the key heads of linear attention there. */
const FOUR_WAYS = {
  layout: 'cp 2 x tp 2',
  worldSize: 4,
  parallel: { tp: 2, sequenceParallel: true, cp: 2 },
};
const layoutsOf = (name: VisionName): readonly TestLayout[] =>
  [
    ...LAYOUTS,
    ...(name.endsWith('_moe') ? [EXPERTS] : []),
    ...(name.startsWith('qwen3_5') ? [] : [FOUR_WAYS]),
  ].slice(0, TEST_DEVICE === 'cuda' ? 1 : undefined);

describe.each(VISION_NAMES.flatMap((name) => layoutsOf(name).map((layout) => ({ name, ...layout }))))(
  '$name on $layout',
  ({ name, worldSize, parallel }) => {
    const { options, sequences, advantages, ...recorded } = visionModel(name);
    let group: WorkerGroup;
    beforeAll(async () => {
      group = await groups.of(worldSize);
    });

    async function withActor(
      more: Partial<ActorOptions>,
      work: (actor: Actor) => Promise<void>,
    ): Promise<void> {
      const actor = await Actor.create({ ...options, dtype: 'float32', group, parallel, ...more });
      try {
        await work(actor);
      } finally {
        await actor.close();
      }
    }

    test.each([
      ['in one micro-batch', 4096],
      ['in several', 240],
    ])('log-probs and entropies, packed %s', (_, maxTokensPerMicroBatch) =>
      withActor({ optim: null, maxTokensPerMicroBatch }, async (actor) => {
        const { logProbs, entropy } = await actor.computeLogProb(await recorded.batch(), { entropy: true });
        const expected = sequences.flatMap(({ logProbs: own }) => own);
        expect(largest([...logProbs], expected)).toBeLessThan(1e-4);
        const spread = sequences.flatMap(({ entropies }) => entropies);
        expect(largest([...(entropy as Float32Array)], spread)).toBeLessThan(1e-4);
      }),
    );

    test('greedy continuations', () =>
      withActor({ optim: null }, async (actor) => {
        const batch = await recorded.batch();
        const steps = sequences[0]?.greedy.length as number;
        const greedy = await actor.generate(
          sequences.map(({ prompt }) => prompt),
          { maxNewTokens: steps, temperature: 0, stopTokenIds: [] },
          batch.get('images'),
        );
        expect(sequences.map((_, i) => [...greedy.response(i)])).toEqual(
          sequences.map(({ greedy: own }) => own),
        );
      }));

    test('what is recorded while sampling is what computeLogProb gives, bit for bit', () =>
      withActor({ optim: null }, async (actor) => {
        const batch = await recorded.batch();
        const sampled = await actor.generate(
          sequences.map(({ prompt }) => prompt),
          { maxNewTokens: 9, n: 3, seed: 5, stopTokenIds: [] },
          batch.get('images'),
        );
        const { logProbs } = await actor.computeLogProb(sampled);
        expect(sampled.get('rolloutLogProbs')).toEqual(logProbs);
      }));

    test.each([false, true])(
      'gradients of every parameter, with gradient checkpointing: %s',
      (checkpointing) =>
        withActor(
          { optim: { lr: 0, weightDecay: 0, gradClip: 1e9 }, gradientCheckpointing: checkpointing },
          async (actor) => {
            const batch = await recorded.batch();
            const { logProbs } = await actor.computeLogProb(batch);
            await actor.updatePolicy(batch.with({ advantages, oldLogProbs: logProbs }));
            await expectGradients(group, actor.name, options.model, 'lm', recorded.gradients(), 1, options);
          },
        ),
    );
  },
);
