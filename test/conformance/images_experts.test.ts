import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { Actor, type ActorOptions } from '../../ts/actor/actor';
import { TestGroups } from '../helpers/conformance';
import { expectGradients } from '../helpers/gradients';
import { floats, maxDifference, readSafetensors } from '../helpers/safetensors';
import { writeStraightExperts } from '../helpers/straight_experts';
import { IMAGES, visionModel } from '../helpers/vision_model';

// Mixtures of experts that read images: their routers, and the files of their experts.
const groups = new TestGroups();
const scratch = mkdtempSync(path.join(tmpdir(), 'troupe-images-experts-'));
afterAll(async () => {
  await groups.close();
  rmSync(scratch, { recursive: true, force: true });
});

async function withActor<T>(o: ActorOptions, work: (actor: Actor) => Promise<T>): Promise<T> {
  const actor = await Actor.create({ dtype: 'float32', ...o });
  try {
    return await work(actor);
  } finally {
    await actor.close();
  }
}

const COEFFICIENT = 0.25;

test.each([
  ['one worker', 1, {}],
  ['two workers', 2, {}],
  ['ulysses 2', 2, { ulysses: 2 }],
  ['cp 2', 2, { cp: 2 }],
] as const)(
  'the load-balancing loss of qwen3_vl_moe and its gradients, on %s',
  async (_layout, worldSize, parallel) => {
    const { options, ...recorded } = visionModel('qwen3_vl_moe');
    const expected = readSafetensors(path.join(IMAGES, 'qwen3_vl_moe.balance.safetensors'));
    const loss = floats(expected, 'loss')[0] as number;
    const { loss: _loss, ...gradients } = expected;
    const read = await recorded.batch();
    const zeros = new Float32Array(read.numResponseTokens);
    const group = await groups.of(worldSize);
    const optim = { lr: 0, weightDecay: 0, gradClip: 1e9 };
    await withActor({ ...options, group, parallel, optim }, async (actor) => {
      // No other term of the loss has a gradient.
      const batch = read.with({ advantages: zeros, oldLogProbs: zeros });
      const metrics = await actor.updatePolicy(batch, { loss: { routerAuxLossCoef: COEFFICIENT } });
      expect(metrics['actor/moe/aux_loss']).toBeCloseTo(loss, 5);
      expect(metrics['actor/loss']).toBeCloseTo(COEFFICIENT * loss, 5);
      await expectGradients(group, actor.name, options.model, 'lm', gradients, COEFFICIENT, options);
    });
  },
);

describe.each(['qwen3_vl_moe', 'glm4v_moe', 'qwen3_5_moe'] as const)('experts of %s', (name) => {
  const { options, advantages, sequences, ...recorded } = visionModel(name);

  test.each([1, 2])(
    'recorded by computeLogProb are replayed by updates, on %i workers',
    async (worldSize) => {
      const group = await groups.of(worldSize);
      await withActor({ ...options, group, optim: { lr: 0.02 } }, async (actor) => {
        const batch = (await recorded.batch()).with({ advantages });
        const before = await actor.computeLogProb(batch, { recordExperts: true });
        const kept = batch.with({ oldLogProbs: before.logProbs, routedExperts: before.routedExperts });
        await actor.updatePolicy(kept, { replayExperts: true, ppoEpochs: 3 });
        const chosen = await actor.computeLogProb(kept, { recordExperts: true });
        const replayed = await actor.computeLogProb(kept, { recordExperts: true, replayExperts: true });
        // The weights have moved so far that the routers would choose others.
        expect(chosen.routedExperts).not.toEqual(before.routedExperts);
        expect(replayed.routedExperts).toEqual(before.routedExperts);
        const again = kept.drop('oldLogProbs').with({ oldLogProbs: replayed.logProbs });
        expect((await actor.updatePolicy(again, { replayExperts: true }))['actor/ppo_kl']).toBe(0);
      });
    },
  );

  test('recorded by the rollout are those of computeLogProb', async () => {
    // Prompts are cut over steps in the middle of their images.
    const rollout = { routedExperts: true, maxNumBatchedTokens: 24 };
    await withActor({ ...options, group: await groups.of(1), rollout, optim: null }, async (actor) => {
      const sampled = await actor.generate(
        sequences.map(({ prompt }) => prompt),
        { maxNewTokens: 9, n: 2, seed: 4, stopTokenIds: [] },
        (await recorded.batch()).get('images'),
      );
      const again = await actor.computeLogProb(sampled, { recordExperts: true });
      expect(sampled.get('rolloutLogProbs')).toEqual(again.logProbs);
      const own = sampled.get('routedExperts');
      expect(own.flatMap((bytes) => [...bytes])).toEqual(
        (again.routedExperts ?? []).flatMap((bytes) => [...bytes]),
      );
      expect(new Set(own.flatMap((bytes) => [...bytes])).size).toBeGreaterThan(3);
      const replayed = await actor.computeLogProb(sampled, { replayExperts: true });
      expect(maxDifference(replayed.logProbs, again.logProbs)).toBe(0);
    });
  });
});

test('experts as transformers writes them are those that are published, and either are saved as they were', async () => {
  const { options, advantages, ...recorded } = visionModel('qwen3_vl_moe');
  const straight = path.join(scratch, 'straight');
  writeStraightExperts(options.model, straight);
  const group = await groups.of(1);
  const batch = (await recorded.batch()).with({ advantages });
  const found: Float32Array[] = [];
  for (const model of [options.model, straight]) {
    const saved = path.join(scratch, `saved_${path.basename(model)}`);
    await withActor({ model, group, optim: { lr: 0.01 } }, async (actor) => {
      const { logProbs } = await actor.computeLogProb(batch);
      await actor.updatePolicy(batch.with({ oldLogProbs: logProbs }));
      found.push(logProbs, (await actor.computeLogProb(batch)).logProbs);
      await actor.saveModel(saved);
    });
    const shapes = (dir: string) =>
      Object.entries(readSafetensors(path.join(dir, 'model.safetensors'))).map(([hf, { shape }]) => [
        hf,
        shape,
      ]);
    expect(Object.fromEntries(shapes(saved))).toEqual(Object.fromEntries(shapes(model)));
    found.push(
      await withActor(
        { model: saved, group, optim: null },
        async (actor) => (await actor.computeLogProb(batch)).logProbs,
      ),
    );
  }
  const [before, after, loaded] = found;
  expect(after).not.toEqual(before);
  expect(loaded).toEqual(after);
  expect(found.slice(3)).toEqual([before, after, loaded]);
});
