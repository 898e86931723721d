import { cpSync, mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { Actor } from '../../ts/actor/actor';
import { loadModelDirectory } from '../../ts/checkpoint/model_dir';
import { loadConfig } from '../../ts/config/config';
import { ResourcePools } from '../../ts/controller/resource_pools';
import { Critic } from '../../ts/critic/critic';
import type { EngineOptions } from '../../ts/engine/engine_options';
import { exportCheckpoint } from '../../ts/export/export_checkpoint';
import { PoolRollout } from '../../ts/trainer/pool_rollout';
import { CONFORMANCE } from '../helpers/conformance';
import { MTP_FIXTURES, mtpBatch, mtpModel, readJson, weightsIn } from '../helpers/mtp_models';
import { floats, readSafetensors } from '../helpers/safetensors';
import { smallEngine } from '../helpers/sharded';
import { MINIMAL, writeConfig } from '../unit/config/write_config';

// Layers that predict further tokens (MTP), trained with the model: against what make_models.py of the fixtures computed.

let dir: string;
beforeEach(() => {
  dir = mkdtempSync(path.join(tmpdir(), 'troupe-mtp-'));
});
afterEach(() => rmSync(dir, { recursive: true }));

const modelOf = (family: string): string => mtpModel(dir, family);

/** With this epsilon a step is the gradient over 1 + its size. */
const EPS = 1;
const optim = { lr: 1, eps: EPS, weightDecay: 0, gradClip: 1e9 };

test.each([
  ['mimo', {}],
  ['glm4_moe', { maxTokensPerMicroBatch: 16 }],
  ['deepseek_v3', { worldSize: 2, parallel: { tp: 2, sequenceParallel: true } }],
  ['glm4_moe_lite', { worldSize: 2, parallel: { tp: 2 } }],
  ['qwen3_next', { worldSize: 2, parallel: { pp: 2 } }],
  ['qwen3_5', { worldSize: 2, parallel: { pp: 2 } }],
  ['glm4_moe', { worldSize: 2, parallel: { ep: 2 } }],
  ['mimo', { worldSize: 2, gradientCheckpointing: true }],
] as [string, Partial<EngineOptions>][])(
  '%s has the losses and gradients of transformers, %j',
  async (family, o) => {
    const expected = readJson(path.join(MTP_FIXTURES, family, 'expected.json'));
    const model = modelOf(family);
    const strategy = o.parallel === undefined ? {} : { strategy: 'megatron' as const };
    const actor = await Actor.create({
      ...smallEngine,
      ...strategy,
      ...o,
      model,
      optim,
      mtp: { lossScalingFactor: expected.coef },
    });
    try {
      const metrics = await actor.updateSft(mtpBatch());
      expect(metrics['actor/mtp_losses/mtp_1_loss']).toBeCloseTo(expected.further, 5);
      expect(metrics['actor/loss']).toBeCloseTo(expected.loss, 5);
      await actor.saveModel(path.join(dir, 'saved'), { dtype: 'float32' });
    } finally {
      await actor.close();
    }
    const before = weightsIn(model);
    const after = weightsIn(path.join(dir, 'saved'));
    expect(Object.keys(after).sort()).toEqual(Object.keys(before).sort());
    const gradients = readSafetensors(path.join(MTP_FIXTURES, family, 'expected.safetensors'));
    let checked = 0;
    for (const name of Object.keys(gradients)) {
      if (!(name in before)) continue; // a tied head
      const [was, is, gradient] = [floats(before, name), floats(after, name), floats(gradients, name)];
      const largest = Math.max(...Array.from(gradient, Math.abs));
      for (const [i, g] of Array.from(gradient).entries()) {
        const step = (was[i] as number) - (is[i] as number);
        expect(Math.abs(step - g / (Math.abs(g) + EPS))).toBeLessThan(2e-5 * largest + 1e-6);
      }
      checked += 1;
    }
    expect(checked).toBeGreaterThan(15);
  },
);

test('detached layers alone learn from their loss', async () => {
  const model = modelOf('mimo');
  const saved = async (name: string, mtp?: EngineOptions['mtp']) => {
    const actor = await Actor.create({ ...smallEngine, model, optim, ...(mtp === undefined ? {} : { mtp }) });
    await actor.updateSft(mtpBatch());
    await actor.saveModel(path.join(dir, name), { dtype: 'float32' });
    await actor.close();
    return weightsIn(path.join(dir, name));
  };
  const without = await saved('without');
  const detached = await saved('detached', { detachEncoder: true });
  const before = weightsIn(model);
  for (const [name, { data }] of Object.entries(detached)) {
    const layer = name.startsWith('model.mtp_layers.');
    expect([name, data]).toEqual([name, layer ? expect.anything() : without[name]?.data]);
    expect([name, JSON.stringify(data) === JSON.stringify(before[name]?.data)]).toEqual([name, false]);
    if (layer) expect(without[name]?.data).toEqual(before[name]?.data);
  }
});

test('checkpoints hold them, their moments, and the copies that published files have', async () => {
  const model = modelOf('glm4_moe');
  const o = { ...smallEngine, model, mtp: {} };
  const at = (name: string): string => path.join(dir, name);
  const first = await Actor.create(o);
  await first.updateSft(mtpBatch());
  await first.saveCheckpoint(at('checkpoint'));
  const expected = await first.updateSft(mtpBatch());
  await first.close();
  const again = await Actor.create({ ...o, worldSize: 2, strategy: 'megatron', parallel: { tp: 2 } });
  await again.loadCheckpoint(at('checkpoint'));
  const metrics = await again.updateSft(mtpBatch());
  // Engines that generate take the decoder alone.
  expect(again.exportWeights().tensors.some(({ name }) => name.startsWith('model.layers.3.'))).toBe(false);
  await again.close();
  for (const name of ['actor/mtp_losses/mtp_1_loss', 'actor/loss', 'actor/grad_norm'])
    expect(metrics[name]).toBeCloseTo(expected[name] as number, 5);

  await exportCheckpoint(at('checkpoint'), at('exported'));
  for (const place of ['checkpoint', 'exported']) {
    const tensors = weightsIn(at(place));
    expect(Object.keys(tensors).sort()).toEqual(Object.keys(weightsIn(model)).sort());
    const [copied, own] = ['model.layers.3.embed_tokens.weight', 'model.embed_tokens.weight'];
    expect(tensors[copied]?.data).toEqual(tensors[own]?.data);
    expect(tensors['model.layers.3.shared_head.head.weight']?.data).toEqual(tensors['lm_head.weight']?.data);
    expect(tensors[own]?.data).not.toEqual(weightsIn(model)[own]?.data);
  }
  // Where they are not trained they stay beside the model.
  expect(loadModelDirectory(at('exported'), 'lm').predictionLayers.size).toBeGreaterThan(20);
  expect(loadModelDirectory(at('exported'), 'lm', { predictions: 'trained' }).predictionLayers.size).toBe(0);
});

test('a checkpoint of other layers that learn is refused with what to do', async () => {
  const model = modelOf('mimo');
  const run = async <T>(o: Partial<EngineOptions>, body: (actor: Actor) => Promise<T>): Promise<T> => {
    const actor = await Actor.create({ ...smallEngine, model, ...o });
    return await body(actor).finally(() => actor.close());
  };
  const [on, off] = [path.join(dir, 'on'), path.join(dir, 'off')];
  await run({ mtp: {} }, (actor) => actor.saveCheckpoint(on));
  await run({}, (actor) => actor.saveCheckpoint(off));
  await run({}, (actor) =>
    expect(actor.loadCheckpoint(on)).rejects.toThrow(
      /trained the layers that predict further tokens, and this one does not: create it with the option mtp .*model\.mtp\.enable_train: true/,
    ),
  );
  await run({ mtp: {} }, async (actor) => {
    await expect(actor.loadCheckpoint(off)).rejects.toThrow(
      /did not train the layers that .*, and this one does: create it without the option mtp .*enable_train: false/,
    );
    await actor.loadCheckpoint(on); // it is as it was
  });
  // Without an optimiser there is nothing that does not fit.
  await run({ optim: null }, (actor) => actor.loadCheckpoint(on));
});

test('workers that do nothing but generate have the decoder alone, and the weights of now', async () => {
  const model = modelOf('mimo');
  const pools = await ResourcePools.launch({ pools: { policy: 1, rollout: 1 }, device: 'cpu' });
  try {
    const actor = await Actor.create({ ...smallEngine, group: pools.group('policy'), model, mtp: {}, optim });
    const config = loadConfig(writeConfig(`${MINIMAL}\nalgorithm: { adv_estimator: grpo }\n`), [
      `actor_rollout_ref.model.path=${model}`,
      'actor_rollout_ref.model.mtp={enable: true, enable_train: true}',
      'actor_rollout_ref.rollout.nnodes=1',
    ]);
    const pool = await PoolRollout.create(config, actor, pools.group('rollout'), { freeCacheEngine: false });
    expect(pool.generating.engine.model.config.prediction).toBeNull();
    const difference = async (): Promise<number> => {
      const of = async (engine: Actor) => (await engine.computeLogProb(mtpBatch())).logProbs;
      const [own, others] = [await of(actor), await of(pool.generating)];
      return Math.max(...Array.from(own, (value, i) => Math.abs(value - (others[i] as number))));
    };
    await actor.updateSft(mtpBatch());
    expect(await difference()).toBeGreaterThan(1e-3);
    await pool.sync(1);
    expect(await difference()).toBeLessThan(1e-5);
  } finally {
    await pools.close();
  }
});

test('policies learn further tokens of every response, also of those without an advantage', async () => {
  const base = mtpBatch();
  const zeros = new Float32Array(base.numResponseTokens);
  const actor = await Actor.create({ ...smallEngine, model: modelOf('mimo'), mtp: {} });
  const { logProbs } = await actor.computeLogProb(base);
  const batch = base.with({ oldLogProbs: logProbs, advantages: zeros });
  const metrics = await actor.updatePolicy(batch);
  await actor.close();
  expect(metrics['actor/no_gradient_ratio']).toBe(0);
  expect(metrics['actor/grad_norm']).toBeGreaterThan(0);
  expect(metrics['actor/pg_loss']).toBeCloseTo(0, 10);
});

test('what cannot be trained is refused before a worker starts', async () => {
  const model = modelOf('mimo');
  const create = (o: Partial<EngineOptions>): Promise<unknown> =>
    Actor.create({ ...smallEngine, model, mtp: {}, ...o });
  await expect(create({ lora: { rank: 4 } })).rejects.toThrow(/mtp: .* expected no option lora/);
  await expect(create({ optim: null })).rejects.toThrow(/mtp: .* expected an optimiser/);
  await expect(create({ mtp: { lossScalingFactor: -1 } })).rejects.toThrow(
    /mtp\] lossScalingFactor: expected/,
  );
  await expect(create({ worldSize: 2, parallel: { ulysses: 2 } })).rejects.toThrow(
    /read the rows of whole sequences/,
  );
  await expect(create({ model: path.join(CONFORMANCE, 'models', 'qwen2_tied', 'actor') })).rejects.toThrow(
    /config\.json: expected a model with layers that predict further tokens/,
  );
  await expect(Critic.create({ ...smallEngine, model, mtp: {} })).rejects.toThrow(/mtp: only an actor/);
  const none = path.join(dir, 'none');
  cpSync(path.join(CONFORMANCE, 'models', 'qwen3_next', 'actor'), none, { recursive: true });
  await expect(create({ model: none })).rejects.toThrow(
    /holds none of the layers that predict further tokens, which transformers leaves out .* expected the files as they were published/,
  );
});
