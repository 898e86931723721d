import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { Actor, type ActorOptions } from '../../ts/actor/actor';
import type { Batch } from '../../ts/batch/batch';
import type { PromptImage } from '../../ts/batch/prompt_image';
import { readTensors } from '../../ts/checkpoint/safetensors';
import type { WorkerGroup } from '../../ts/controller/worker_group';
import { TestGroups } from '../helpers/conformance';
import { floats, readSafetensors } from '../helpers/safetensors';
import { ADVANTAGES, SEQUENCES, VISION_MODEL, visionBatch } from '../helpers/vision_model';

// What an engine keeps, shares, freezes and saves of a model that reads images.
const groups = new TestGroups();
const directory = mkdtempSync(path.join(tmpdir(), 'troupe-images-'));
let group: WorkerGroup;
beforeAll(async () => {
  group = await groups.of(1);
});
afterAll(async () => {
  await groups.close();
  rmSync(directory, { recursive: true, force: true });
});

async function withActor(more: Partial<ActorOptions>, work: (actor: Actor) => Promise<void>): Promise<void> {
  const actor = await Actor.create({ model: VISION_MODEL, dtype: 'float32', group, ...more });
  try {
    await work(actor);
  } finally {
    await actor.close();
  }
}

const learning = { optim: { lr: 0.01 } };

async function update(actor: Actor, batch: Batch): Promise<void> {
  const { logProbs } = await actor.computeLogProb(batch);
  await actor.updatePolicy(batch.with({ advantages: Float32Array.from(ADVANTAGES), oldLogProbs: logProbs }));
}

describe('pages of the cache', () => {
  // A prompt of more than a page.
  const { prompt } = SEQUENCES[3] as (typeof SEQUENCES)[number];
  const inverted = ({ height, width, pixels }: PromptImage): PromptImage => ({
    height,
    width,
    pixels: pixels.map((byte) => 255 - byte),
  });

  test('are shared under the same image, and never under another of as many tokens', () =>
    withActor({ optim: null }, async (actor) => {
      const batch = await visionBatch();
      const images = batch.get('images')[3] as readonly PromptImage[];
      const others = images.map(inverted);
      const ask = (own: readonly PromptImage[], cacheSalt?: string) =>
        actor.rollout.submit({
          promptIds: prompt,
          images: own,
          sampling: { maxNewTokens: 4, temperature: 0, stopTokenIds: [] },
          ...(cacheSalt === undefined ? {} : { cacheSalt }),
        }).result;
      const first = await ask(images);
      const second = await ask(others);
      expect([first.cachedTokens, second.cachedTokens]).toEqual([0, 0]);
      expect((await ask(images)).cachedTokens).toBeGreaterThan(31);
      const again = await ask(others);
      expect(again.cachedTokens).toBeGreaterThan(31);
      expect(again.logProbs).toEqual(second.logProbs);
      expect(second.logProbs).not.toEqual(first.logProbs);
      // Nothing of the cache, and the same bits.
      expect((await ask(others, 'salt')).logProbs).toEqual(second.logProbs);
    }));

  test('are given up and computed again with the images', () =>
    // Room for some sequences alone; prompts are cut over steps in the middle of their images.
    withActor(
      { optim: null, rollout: { kvCacheBytes: 8 * 3 * 2 * 2 * 16 * 4 * 32, maxNumBatchedTokens: 24 } },
      async (actor) => {
        const batch = await visionBatch();
        const sampled = await actor.generate(
          SEQUENCES.map(({ prompt: own }) => own),
          { maxNewTokens: 60, n: 2, seed: 3, stopTokenIds: [] },
          batch.get('images'),
        );
        expect((await actor.rollout.stats()).preemptions).toBeGreaterThan(0);
        expect(sampled.get('rolloutLogProbs')).toEqual((await actor.computeLogProb(sampled)).logProbs);
      },
    ));
});

test('a frozen tower stays, the decoder learns, and both are saved and loaded', async () => {
  const batch = await visionBatch();
  const saved = path.join(directory, 'frozen');
  let logProbs: Float32Array = new Float32Array(0);
  await withActor({ ...learning, freezeVisionTower: true }, async (actor) => {
    await update(actor, batch);
    await actor.saveModel(saved);
    await actor.saveCheckpoint(path.join(directory, 'checkpoint'));
    ({ logProbs } = await actor.computeLogProb(batch));
  });
  const before = readSafetensors(path.join(VISION_MODEL, 'model.safetensors'));
  const after = readSafetensors(path.join(saved, 'model.safetensors'));
  for (const name of Object.keys(before)) {
    const [old, now] = [floats(before, name), floats(after, name)];
    const same = old.every((value, i) => value === now[i]);
    expect([name, same]).toEqual([name, name.includes('.visual.')]);
  }
  await withActor({ model: saved, optim: null }, async (actor) => {
    expect((await actor.computeLogProb(batch)).logProbs).toEqual(logProbs);
  });
  await withActor({ ...learning, freezeVisionTower: true }, async (actor) => {
    await actor.loadCheckpoint(path.join(directory, 'checkpoint'));
    expect((await actor.computeLogProb(batch)).logProbs).toEqual(logProbs);
  });
});

test('a tower that is trained goes on from a checkpoint bit for bit', async () => {
  const batch = await visionBatch();
  const checkpoint = path.join(directory, 'trained');
  let logProbs: Float32Array = new Float32Array(0);
  await withActor(learning, async (actor) => {
    await update(actor, batch);
    await actor.saveCheckpoint(checkpoint);
    await update(actor, batch);
    ({ logProbs } = await actor.computeLogProb(batch));
  });
  const moments = readTensors(path.join(checkpoint, 'optimizer'), 'exp_avg');
  expect(moments.has('model.visual.patch_embed.proj.weight')).toBe(true);
  await withActor(learning, async (actor) => {
    await actor.loadCheckpoint(checkpoint);
    await update(actor, batch);
    expect((await actor.computeLogProb(batch)).logProbs).toEqual(logProbs);
  });
});

test('adapters are on the decoder alone, and the tower is frozen beside them', () =>
  withActor({ ...learning, lora: { rank: 4, alpha: 8 } }, async (actor) => {
    const batch = await visionBatch();
    const before = (await actor.computeLogProb(batch)).logProbs;
    await update(actor, batch);
    expect((await actor.computeLogProb(batch)).logProbs).not.toEqual(before);
    expect((await actor.computeLogProb(batch, { disableAdapter: true })).logProbs).toEqual(before);
    const saved = path.join(directory, 'adapter');
    await actor.saveAdapter(saved);
    const names = [...readTensors(saved, 'adapter_model').keys()];
    expect(names.every((name) => name.includes('.language_model.layers.'))).toBe(true);
  }));

test.each([
  ['ulysses', { ulysses: 2 }],
  ['cp', { cp: 2 }],
  ['tp', { tp: 2 }],
  ['pp', { pp: 2 }],
])('layouts other than data parallelism are refused before a worker is started: %s', async (_, parallel) => {
  const made = Actor.create({ model: VISION_MODEL, worldSize: 2, parallel, device: 'cpu' });
  await expect(made).rejects.toThrow(/spread over workers by data parallelism alone/);
});

test('images that do not fit their prompts, and images for a model of text, are refused', () =>
  withActor({ optim: null }, async (actor) => {
    const batch = await visionBatch();
    const images = batch.get('images').map(() => []);
    await expect(actor.computeLogProb(batch.drop('images').with({ images }))).rejects.toThrow(
      /the prompt of sequence 0: expected 0 tokens with id 60 for its 0 images, got 15/,
    );
    const { prompt } = SEQUENCES[0] as (typeof SEQUENCES)[number];
    const request = { promptIds: prompt, sampling: { maxNewTokens: 1 } };
    await expect(actor.rollout.submit(request).result).rejects.toThrow(/expected 0 tokens with id 60/);
  }));
