import { mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { Actor, type ActorOptions } from '../../ts/actor/actor';
import type { Batch } from '../../ts/batch/batch';
import type { PromptImage } from '../../ts/batch/prompt_image';
import { readTensors } from '../../ts/checkpoint/safetensors';
import type { WorkerGroup } from '../../ts/controller/worker_group';
import { exportCheckpoint } from '../../ts/export/export_checkpoint';
import { CONFORMANCE, TestGroups } from '../helpers/conformance';
import { floats, readSafetensors } from '../helpers/safetensors';
import { SEQUENCES, VISION_MODEL, VISION_NAMES, visionModel } from '../helpers/vision_model';

// What an engine keeps, shares, freezes and saves of a model that reads images.
const groups = new TestGroups();
const scratch = mkdtempSync(path.join(tmpdir(), 'troupe-images-'));
let group: WorkerGroup;
beforeAll(async () => {
  group = await groups.of(1);
});
afterAll(async () => {
  await groups.close();
  rmSync(scratch, { recursive: true, force: true });
});

async function withActor(o: ActorOptions, work: (actor: Actor) => Promise<void>): Promise<void> {
  const actor = await Actor.create({ dtype: 'float32', group, ...o });
  try {
    await work(actor);
  } finally {
    await actor.close();
  }
}

const learning = { optim: { lr: 0.01 } };
/** Room for some sequences alone. */
const PAGES = 8 * 3 * 2 * 2 * 16 * 4 * 32;
const CACHE = {
  qwen2_vl: PAGES / 2,
  qwen2_5_vl: PAGES / 2,
  qwen3_vl: PAGES,
  qwen3_vl_moe: PAGES,
  glm4v: PAGES,
  glm4v_moe: PAGES,
  qwen3_5: 400_000,
  qwen3_5_moe: 200_000,
};

describe.each(VISION_NAMES)('%s', (name) => {
  const { options, sequences, advantages, ...recorded } = visionModel(name);
  const directory = path.join(scratch, name);

  async function update(actor: Actor, batch: Batch): Promise<void> {
    const { logProbs } = await actor.computeLogProb(batch);
    await actor.updatePolicy(batch.with({ advantages, oldLogProbs: logProbs }));
  }

  describe('pages of the cache', () => {
    // A prompt of more than a page.
    const { prompt } = sequences[3] as (typeof sequences)[number];
    const inverted = ({ height, width, pixels }: PromptImage): PromptImage => ({
      height,
      width,
      pixels: pixels.map((byte) => 255 - byte),
    });

    test('are shared under the same image, and never under another of as many tokens', () =>
      withActor({ ...options, optim: null }, async (actor) => {
        const batch = await recorded.batch();
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
        const [again, othersAgain] = [await ask(images), await ask(others)];
        for (const { cachedTokens } of [again, othersAgain]) expect(cachedTokens).toBeGreaterThan(31);
        expect(again.logProbs).toEqual(first.logProbs);
        expect(othersAgain.logProbs).toEqual(second.logProbs);
        expect(second.logProbs).not.toEqual(first.logProbs);
        // Nothing of the cache, and the same bits.
        expect((await ask(others, 'salt')).logProbs).toEqual(second.logProbs);
      }));

    test('are found by a turn that brings other images, which alone are read', () =>
      withActor({ ...options, optim: null }, async (actor) => {
        const images = (await recorded.batch()).get('images')[3] as readonly PromptImage[];
        const ask = (promptIds: readonly number[], own: readonly PromptImage[], cacheSalt?: string) =>
          actor.rollout.submit({
            promptIds,
            images: own,
            sampling: { maxNewTokens: 4, temperature: 0, stopTokenIds: [] },
            ...(cacheSalt === undefined ? {} : { cacheSalt }),
          }).result;
        const first = await ask(prompt, images);
        const turn = [...prompt, ...first.tokens, ...prompt];
        const all = [...images, ...images.map(inverted)];
        const second = await ask(turn, all);
        expect(second.cachedTokens).toBeGreaterThan(prompt.length - 32);
        const alone = await ask(turn, all, 'salt');
        expect(alone.cachedTokens).toBe(0);
        expect([second.tokens, second.logProbs]).toEqual([alone.tokens, alone.logProbs]);
      }));

    test('are given up and computed again with the images', () =>
      // Prompts are cut over steps in the middle of their images.
      withActor(
        { ...options, optim: null, rollout: { kvCacheBytes: CACHE[name], maxNumBatchedTokens: 24 } },
        async (actor) => {
          const batch = await recorded.batch();
          const sampled = await actor.generate(
            sequences.map(({ prompt: own }) => own),
            { maxNewTokens: 60, n: 2, seed: 3, stopTokenIds: [] },
            batch.get('images'),
          );
          expect((await actor.rollout.stats()).preemptions).toBeGreaterThan(0);
          expect(sampled.get('rolloutLogProbs')).toEqual((await actor.computeLogProb(sampled)).logProbs);
        },
      ));
  });

  test('ranks that decode together read images as one does', async () => {
    const generate = async (o: Partial<ActorOptions>): Promise<Batch> => {
      const batch = await recorded.batch();
      let sampled = batch;
      await withActor({ ...options, optim: null, ...o }, async (actor) => {
        const prompts = sequences.map(({ prompt }) => prompt);
        sampled = await actor.generate(
          prompts,
          { maxNewTokens: 12, temperature: 0, stopTokenIds: [] },
          batch.get('images'),
        );
      });
      return sampled;
    };
    const alone = await generate({});
    const together = await generate({ group: await groups.of(2), rollout: { tensorParallel: 2 } });
    expect(together.get('tokens')).toEqual(alone.get('tokens'));
    const [own, others] = [alone.get('rolloutLogProbs'), together.get('rolloutLogProbs')];
    expect(Math.max(...own.map((value, i) => Math.abs(value - (others[i] as number))))).toBeLessThan(1e-4);
  });

  test('a frozen tower stays, the decoder learns, and both are saved and loaded', async () => {
    const batch = await recorded.batch();
    const saved = path.join(directory, 'frozen');
    const checkpoint = path.join(directory, 'frozen_checkpoint');
    let logProbs: Float32Array = new Float32Array(0);
    await withActor({ ...options, ...learning, freezeVisionTower: true }, async (actor) => {
      await update(actor, batch);
      await actor.saveModel(saved);
      await actor.saveCheckpoint(checkpoint);
      ({ logProbs } = await actor.computeLogProb(batch));
    });
    const before = readSafetensors(path.join(options.model, 'model.safetensors'));
    const after = readSafetensors(path.join(saved, 'model.safetensors'));
    for (const tensor of Object.keys(before)) {
      const [old, now] = [floats(before, tensor), floats(after, tensor)];
      const same = old.every((value, i) => value === now[i]);
      // The router's buffer is not trained.
      const stays = /(^|\.)visual\.|\.e_score_correction_bias$/;
      expect([tensor, same]).toEqual([tensor, stays.test(tensor)]);
    }
    await withActor({ ...options, model: saved, optim: null }, async (actor) => {
      expect((await actor.computeLogProb(batch)).logProbs).toEqual(logProbs);
    });
    await withActor({ ...options, ...learning, freezeVisionTower: true }, async (actor) => {
      await actor.loadCheckpoint(checkpoint);
      expect((await actor.computeLogProb(batch)).logProbs).toEqual(logProbs);
    });
  });

  test('a tower that is trained goes on from a checkpoint bit for bit, and comes out of it whole', async () => {
    const batch = await recorded.batch();
    const checkpoint = path.join(directory, 'trained');
    let [first, second]: Float32Array[] = [];
    await withActor({ ...options, ...learning }, async (actor) => {
      await update(actor, batch);
      await actor.saveCheckpoint(checkpoint);
      first = (await actor.computeLogProb(batch)).logProbs;
      await update(actor, batch);
      second = (await actor.computeLogProb(batch)).logProbs;
    });
    const moments = readTensors(path.join(checkpoint, 'optimizer'), 'exp_avg');
    const tower = name.startsWith('qwen2') ? 'visual' : 'model.visual';
    expect(moments.has(`${tower}.patch_embed.proj.weight`)).toBe(true);
    await withActor({ ...options, ...learning }, async (actor) => {
      await actor.loadCheckpoint(checkpoint);
      await update(actor, batch);
      expect((await actor.computeLogProb(batch)).logProbs).toEqual(second);
    });
    const exported = path.join(directory, 'exported');
    await exportCheckpoint(checkpoint, exported);
    const config = (dir: string): unknown => JSON.parse(readFileSync(path.join(dir, 'config.json'), 'utf8'));
    expect(config(exported)).toEqual(config(options.model));
    await withActor({ ...options, model: exported, optim: null }, async (actor) => {
      expect((await actor.computeLogProb(batch)).logProbs).toEqual(first);
    });
  });

  test('adapters are on the decoder alone, and the tower is frozen beside them', async () => {
    const batch = await recorded.batch();
    const saved = path.join(directory, 'adapter');
    let learnt: Float32Array = new Float32Array(0);
    await withActor({ ...options, ...learning, lora: { rank: 4, alpha: 8 } }, async (actor) => {
      const before = (await actor.computeLogProb(batch)).logProbs;
      await update(actor, batch);
      learnt = (await actor.computeLogProb(batch)).logProbs;
      expect(learnt).not.toEqual(before);
      expect((await actor.computeLogProb(batch, { disableAdapter: true })).logProbs).toEqual(before);
      await actor.saveAdapter(saved);
    });
    const names = [...readTensors(saved, 'adapter_model').keys()];
    expect(names.every((tensor) => tensor.includes('.language_model.layers.'))).toBe(true);
    expect(names.some((tensor) => tensor.includes('.linear_attn.'))).toBe(name.startsWith('qwen3_5'));
    // PEFT takes a name for every module that ends so, in the tower as well.
    const { target_modules: targets } = JSON.parse(
      readFileSync(path.join(saved, 'adapter_config.json'), 'utf8'),
    ) as { target_modules: string[] };
    const towers = [...readTensors(options.model).keys()].filter((tensor) => /(^|\.)visual\./.test(tensor));
    for (const target of targets)
      expect(towers.filter((tensor) => tensor.replace(/\.\w+$/, '').endsWith(`.${target}`))).toEqual([]);
    const merged = path.join(directory, 'merged');
    await exportCheckpoint(saved, merged, { mergeLora: true });
    await withActor({ ...options, model: merged, optim: null }, async (actor) => {
      const { logProbs } = await actor.computeLogProb(batch);
      const apart = Math.max(...logProbs.map((value, i) => Math.abs(value - (learnt[i] as number))));
      expect(apart).toBeLessThan(1e-4);
    });
  });
});

test('a first stage without all layers behind which features are added is refused before a worker is started', async () => {
  const made = Actor.create({ model: VISION_MODEL, worldSize: 3, parallel: { pp: 3 }, device: 'cpu' });
  await expect(made).rejects.toThrow(
    /parallel\.pp 3 x parallel\.vpp 1: features of images are added behind the first 2 layers .* has 1: expected at least 2/,
  );
});

test.each(['qwen3_5', 'qwen3_5_moe'] as const)(
  'text of %s has the bits of its language model, read alone',
  async (name) => {
    const { options, sequences } = visionModel(name);
    const text = sequences.filter(({ images }) => images.length === 0);
    const found: unknown[] = [];
    for (const o of [options, { model: options.model }])
      await withActor({ ...o, optim: null }, async (actor) => {
        const prompts = text.map(({ prompt }) => prompt);
        const sampled = await actor.generate(prompts, { maxNewTokens: 20, n: 3, seed: 2, stopTokenIds: [] });
        expect(actor.engine.model.config.vision === null).toBe(!('readsImages' in o));
        found.push([sampled.get('tokens'), sampled.get('rolloutLogProbs')]);
        found.push((await actor.computeLogProb(sampled, { entropy: true })).entropy);
      });
    expect(found.slice(0, 2)).toEqual(found.slice(2));
  },
);

test('with its tower, a model that reads text alone is refused', async () => {
  const model = path.join(CONFORMANCE, 'models', 'llama_gqa', 'actor');
  const made = Actor.create({ model, readsImages: true, group });
  await expect(made).rejects.toThrow(/readsImages: the model in .* reads text alone: expected false/);
});

test('images that do not fit their prompts, and images for a model of text, are refused', () =>
  withActor({ model: VISION_MODEL, optim: null }, async (actor) => {
    const batch = await visionModel('qwen3_vl').batch();
    const images = batch.get('images').map(() => []);
    await expect(actor.computeLogProb(batch.drop('images').with({ images }))).rejects.toThrow(
      /the prompt of sequence 0: expected 0 tokens with id 60 for its 0 images, got 15/,
    );
    const { prompt } = SEQUENCES[0] as (typeof SEQUENCES)[number];
    const request = { promptIds: prompt, sampling: { maxNewTokens: 1 } };
    await expect(actor.rollout.submit(request).result).rejects.toThrow(/expected 0 tokens with id 60/);
  }));
