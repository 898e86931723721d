import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { Actor, type ActorOptions } from '../../ts/actor/actor';
import { Batch } from '../../ts/batch/batch';
import { loadConfig } from '../../ts/config/config';
import { ResourcePools } from '../../ts/controller/resource_pools';
import type { RolloutStats } from '../../ts/rollout/engine';
import type { RolloutResult } from '../../ts/rollout/request';
import { PoolRollout } from '../../ts/trainer/pool_rollout';
import { CONFORMANCE } from '../helpers/conformance';
import { mtpBatch, mtpModel, weightsIn } from '../helpers/mtp_models';
import { OWN_PRODUCTS } from '../helpers/processor';
import { smallEngine } from '../helpers/sharded';
import { MINIMAL, writeConfig } from '../unit/config/write_config';

// Drafts by the layers that predict further tokens: no token changes, whoever holds them.

const DRAFTING = {
  mtp: { train: false },
  rollout: {
    freeCacheEngine: false,
    speculative: { method: 'mtp', numSpeculativeTokens: 2, disableByBatchSize: 100_000 },
  },
} as const;

let dir: string;
beforeEach(() => {
  dir = mkdtempSync(path.join(tmpdir(), 'troupe-drafts-'));
});
afterEach(() => rmSync(dir, { recursive: true }));

const isPrediction = (name: string): boolean => name.startsWith('model.mtp_layers.');

/** Half of them greedy. */
const PROMPTS = Array.from({ length: 12 }, (_, i) =>
  Array.from({ length: 1 + 4 * (i >> 1) }, (_, at) => 1 + ((at * 7 + (i >> 1) * 13) % 100)),
);

async function responses(actor: Actor): Promise<{ results: RolloutResult[]; stats: RolloutStats }> {
  const handles = PROMPTS.map((promptIds, i) =>
    actor.rollout.submit({
      promptIds,
      sampling: { maxNewTokens: 8 + i, temperature: i % 2, seed: BigInt(i), stopTokenIds: [] },
    }),
  );
  const results = await Promise.all(handles.map(({ result }) => result));
  return { results, stats: await actor.rollout.stats() };
}

async function withActor<T>(o: ActorOptions, body: (actor: Actor) => Promise<T>): Promise<T> {
  const actor = await Actor.create(o);
  return await body(actor).finally(() => actor.close());
}

test.each([
  ['mimo', {}],
  ['mimo', { optim: null, rollout: { ...DRAFTING.rollout, quantization: 'int8' as const } }],
  ['glm4_moe', { worldSize: 2 }],
  ['glm4_moe_lite', {}],
  ['deepseek_v3', { worldSize: 2, strategy: 'megatron' as const, parallel: { tp: 2 } }],
  ['mimo', { worldSize: 2, rollout: { ...DRAFTING.rollout, tensorParallel: 2 } }],
] as [string, Partial<ActorOptions>][])(
  '%s says the same tokens with them, with the bits of their log-probs, %j',
  async (family, o) => {
    const options: ActorOptions = { ...smallEngine, ...DRAFTING, ...o, model: mtpModel(dir, family) };
    const { speculative: _, ...rollout } = options.rollout ?? {};
    const { mtp: __, ...plain } = options;
    const expected = await withActor({ ...plain, rollout }, responses);
    await withActor(options, async (actor) => {
      const { results, stats } = await responses(actor);
      expect(results.map(({ tokens, logProbs }) => [tokens, logProbs])).toEqual(
        expected.results.map(({ tokens, logProbs }) => [tokens, logProbs]),
      );
      expect(stats.draftedTokens).toBeGreaterThan(20);
      expect(expected.stats.draftedTokens).toBe(0);
      if (!OWN_PRODUCTS || rollout.quantization !== undefined || (rollout.tensorParallel ?? 1) > 1) return;
      const said = Batch.fromSequences(
        PROMPTS,
        results.map(({ tokens }) => Array.from(tokens)),
        {},
      );
      expect((await actor.computeLogProb(said)).logProbs).toEqual(
        Float32Array.from(results.flatMap(({ logProbs }) => Array.from(logProbs))),
      );
    });
  },
);

test('layers that are held stay as they are while the model learns, and are saved with it', async () => {
  const model = mtpModel(dir, 'mimo');
  const [saved, checkpoint] = [path.join(dir, 'saved'), path.join(dir, 'checkpoint')];
  const before = weightsIn(model);
  const optim = { lr: 1e-2 };
  const metrics = await withActor({ ...smallEngine, ...DRAFTING, model, optim }, async (actor) => {
    const own = await actor.updateSft(mtpBatch());
    await actor.saveModel(saved, { dtype: 'float32' });
    await actor.saveCheckpoint(checkpoint);
    return own;
  });
  expect(Object.keys(metrics).filter((name) => name.includes('mtp_losses'))).toEqual([]);
  for (const place of [saved, checkpoint]) {
    const after = weightsIn(place);
    expect(Object.keys(after).sort()).toEqual(Object.keys(before).sort());
    for (const [name, { data }] of Object.entries(after))
      expect([name, JSON.stringify(data) === JSON.stringify(before[name]?.data)]).toEqual([
        name,
        isPrediction(name),
      ]);
  }
  // An actor without them has the same numbers, and reads the checkpoint.
  await withActor({ ...smallEngine, model, optim }, async (actor) => {
    const own = await actor.updateSft(mtpBatch());
    expect(own['actor/grad_norm']).toBe(metrics['actor/grad_norm']);
    await actor.loadCheckpoint(checkpoint);
  });
});

test('workers that do nothing but generate draft with the layers of now', async () => {
  const model = mtpModel(dir, 'mimo');
  const pools = await ResourcePools.launch({ pools: { policy: 1, rollout: 1 }, device: 'cpu' });
  try {
    const optim = { lr: 1e-2 };
    const actor = await Actor.create({ ...smallEngine, group: pools.group('policy'), model, mtp: {}, optim });
    const config = loadConfig(writeConfig(`${MINIMAL}\nalgorithm: { adv_estimator: grpo }\n`), [
      `actor_rollout_ref.model.path=${model}`,
      'actor_rollout_ref.model.mtp={enable: true, enable_train: true, enable_rollout: true}',
      'actor_rollout_ref.rollout.nnodes=1',
    ]);
    const pool = await PoolRollout.create(config, actor, pools.group('rollout'), DRAFTING.rollout);
    expect(pool.generating.engine.predictions).toBe('held');
    await actor.updateSft(mtpBatch());
    await pool.sync(1);
    const [own, brought] = [path.join(dir, 'own'), path.join(dir, 'brought')];
    await actor.saveModel(own, { dtype: 'float32' });
    await pool.generating.saveModel(brought, { dtype: 'float32' });
    expect(weightsIn(brought)).toEqual(weightsIn(own));
    expect((await responses(pool.generating)).stats.draftedTokens).toBeGreaterThan(20);
    // The decoder alone is whole, too; a part of the layers is not.
    await pool.generating.importWeights(actor.exportWeights());
    const buckets = [];
    for await (const bucket of actor.exportWeights({ predictions: true }))
      buckets.push({
        ...bucket,
        parts: bucket.parts.filter(({ name }) => !name.endsWith('input_proj.weight')),
      });
    await expect(pool.generating.importWeights(buckets)).rejects.toThrow(
      /1 are missing: model\.mtp_layers\.0\.input_proj\.weight/,
    );
  } finally {
    await pools.close();
  }
});

test('what cannot draft is refused before a worker starts', async () => {
  const model = mtpModel(dir, 'mimo');
  const create = (o: Partial<ActorOptions>): Promise<unknown> =>
    Actor.create({ ...smallEngine, ...DRAFTING, model, ...o });
  await expect(create({ lora: { rank: 4 } })).rejects.toThrow(/mtp: .* expected no option lora/);
  await expect(create({ model: path.join(CONFORMANCE, 'models', 'qwen2_tied', 'actor') })).rejects.toThrow(
    /expected a model with layers that predict further tokens .*speculative_config\.method mtp/,
  );
  await withActor({ ...smallEngine, model }, async (actor) => {
    expect(() => actor.exportWeights({ predictions: true })).toThrow(/created without the option mtp/);
  });
  const { mtp: _, ...without } = DRAFTING;
  await expect(Actor.create({ ...smallEngine, ...without, model })).rejects.toThrow(
    /method mtp: the engine has none of .*: create it with the option mtp/,
  );
});
