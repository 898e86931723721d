import { cpSync, readFileSync, writeFileSync } from 'node:fs';
import path from 'node:path';
import type { Actor } from '../../ts/actor/actor';
import type { Batch } from '../../ts/batch/batch';
import type { EngineOptions } from '../../ts/engine/engine_options';
import { writeSafetensors } from '../helpers/e2e_workspace';
import {
  expectCloseMetrics,
  expectContinued,
  type Groups,
  type Layout,
  layoutWorkers,
  withActor,
  worst,
} from '../helpers/layout_runs';
import { readSafetensors } from '../helpers/safetensors';
import { relative } from '../helpers/sharded';
import { VISION_NAMES, type VisionName, visionModel } from '../helpers/vision_model';

// Workers that share matrices, layers, experts and rows of a model that reads images train it as one worker does. Against transformers:
// test/conformance/images.test.ts.
const { groups, scratch } = layoutWorkers();

/** With the columns of an update. */
async function batchOf(name: VisionName): Promise<Batch> {
  const { batch, advantages, sequences } = visionModel(name);
  const oldLogProbs = Float32Array.from(sequences.flatMap(({ logProbs }) => logProbs));
  return (await batch()).with({ advantages, oldLogProbs });
}

type On = [workers: keyof Groups, Partial<EngineOptions>];
/** In several micro-batches, one of them without an image. */
const on = (name: VisionName, [workers, o]: On): Layout => ({
  ...visionModel(name).options,
  maxTokensPerMicroBatch: 70,
  optim: { lr: 1e-4 },
  group: groups[workers],
  ...o,
});

async function train(actor: Actor, batch: Batch) {
  const before = await actor.computeLogProb(batch, { entropy: true });
  const metrics = [];
  for (let i = 0; i < 4; i++) metrics.push(await actor.updatePolicy(batch, {}));
  return { before, metrics, after: await actor.computeLogProb(batch) };
}

const SEQUENCE = { tp: 2, sequenceParallel: true };
/** One micro-batch: both ranks have rows of images, and of the largest one each a part. */
const AT_ONCE = { maxTokensPerMicroBatch: 4096 };
/** Linear attention has two key heads there. */
const FOUR_WAYS = VISION_NAMES.filter((name) => !name.startsWith('qwen3_5'));
const LAYOUTS: readonly [string, On, (readonly VisionName[])?][] = [
  ['tp 2', ['two', { parallel: { tp: 2 } }]],
  [
    'tp 2, sequence parallel, with checkpointing',
    ['two', { ...AT_ONCE, parallel: SEQUENCE, gradientCheckpointing: true }],
  ],
  ['sequence parallel, in several micro-batches', ['two', { parallel: SEQUENCE }]],
  ['fsdp 2 x tp 2, sequence parallel', ['four', { ...AT_ONCE, parallel: SEQUENCE }]],
  ['megatron: tp 2 x pp 2', ['four', { strategy: 'megatron', parallel: { ...SEQUENCE, pp: 2 } }]],
  ['pp 2, with checkpointing', ['two', { parallel: { pp: 2 }, gradientCheckpointing: true }]],
  [
    'fsdp 2 x pp 2 of two chunks each',
    ['four', { parallel: { pp: 2, vpp: 2, sharding: 'full_shard' } }],
    ['qwen3_5'],
  ],
  [
    'ep 2 x tp 2, sequence parallel',
    ['four', { parallel: { ...SEQUENCE, ep: 2 } }],
    ['qwen3_vl_moe', 'glm4v_moe', 'qwen3_5_moe'],
  ],
  [
    'a frozen tower on tp 2 x pp 2',
    ['four', { ...AT_ONCE, parallel: { ...SEQUENCE, pp: 2 }, freezeVisionTower: true }],
  ],
  ['adapters on tp 2 x pp 2', ['four', { parallel: { ...SEQUENCE, pp: 2 }, lora: { rank: 2, alpha: 4 } }]],
  ['ulysses 2', ['two', { ...AT_ONCE, parallel: { ulysses: 2 } }]],
  [
    'ulysses 2, in several micro-batches, with checkpointing',
    ['two', { parallel: { ulysses: 2 }, gradientCheckpointing: true }],
  ],
  ['fsdp 2 x ulysses 2', ['four', { parallel: { ulysses: 2 } }]],
  ['cp 2, with checkpointing', ['two', { ...AT_ONCE, parallel: { cp: 2 }, gradientCheckpointing: true }]],
  ['cp 2, in several micro-batches', ['two', { parallel: { cp: 2 } }]],
  ['fsdp 2 x cp 2', ['four', { ...AT_ONCE, parallel: { cp: 2 } }]],
  ['cp 2 x tp 2, sequence parallel', ['four', { ...AT_ONCE, parallel: { ...SEQUENCE, cp: 2 } }], FOUR_WAYS],
  ['megatron: cp 2 x pp 2', ['four', { strategy: 'megatron', parallel: { cp: 2, pp: 2 } }]],
  [
    'ep 2 x cp 2',
    ['two', { ...AT_ONCE, parallel: { cp: 2, ep: 2 } }],
    ['qwen3_vl_moe', 'glm4v_moe', 'qwen3_5_moe'],
  ],
  [
    'a frozen tower on cp 2 x tp 2',
    ['four', { ...AT_ONCE, parallel: { ...SEQUENCE, cp: 2 }, freezeVisionTower: true }],
    FOUR_WAYS,
  ],
  ['adapters under ulysses 2', ['two', { parallel: { ulysses: 2 }, lora: { rank: 2, alpha: 4 } }]],
];

/** qwen3_vl with the embeddings as its head, as Qwen3-VL 2B and 4B have it. */
function tiedModel(): string {
  const directory = path.join(scratch, 'tied');
  cpSync(visionModel('qwen3_vl').options.model, directory, { recursive: true });
  const file = (name: string) => path.join(directory, name);
  const config = JSON.parse(readFileSync(file('config.json'), 'utf8')) as Record<string, object>;
  const tied = { tie_word_embeddings: true };
  writeFileSync(
    file('config.json'),
    JSON.stringify({ ...config, ...tied, text_config: { ...config['text_config'], ...tied } }),
  );
  const tensors = Object.entries(readSafetensors(file('model.safetensors')))
    .filter(([name]) => name !== 'lm_head.weight')
    .map(([name, { shape, data }]) => ({ name, shape, data: data as Float32Array }));
  writeSafetensors(file('model.safetensors'), tensors);
  return directory;
}

test('embeddings that are the head, too, on two stages', async () => {
  const model = tiedModel();
  const batch = await batchOf('qwen3_vl');
  const run = ([workers, o]: On) =>
    withActor({ ...on('qwen3_vl', [workers, o]), model }, (actor) => train(actor, batch));
  const expected = await run(['one', {}]);
  const actual = await run(['two', { parallel: { pp: 2 } }]);
  expect(actual.before).toEqual(expected.before);
  expectCloseMetrics(actual.metrics, expected.metrics);
  expect(relative(actual.after.logProbs, expected.after.logProbs)).toBeLessThan(2e-5);
});

// The tower's rows, too, whichever worker computes an image.
test.each(
  VISION_NAMES.flatMap((name) => (['float32', 'bfloat16'] as const).map((dtype) => ({ name, dtype }))),
)(
  'log-probs of $name in $dtype have the bits of one worker where ranks share rows',
  async ({ name, dtype }) => {
    const batch = await visionModel(name).batch();
    const run = (workers: keyof Groups, parallel: Layout['parallel']) =>
      withActor(on(name, [workers, { ...AT_ONCE, dtype, optim: null, parallel: parallel ?? {} }]), (actor) =>
        actor.computeLogProb(batch, { entropy: true }),
      );
    const expected = await run('one', {});
    for (const count of FOUR_WAYS.includes(name) ? [2, 4] : [2]) {
      const workers = count === 2 ? 'two' : 'four';
      expect(await run(workers, { ulysses: count })).toEqual(expected);
      expect(await run(workers, { cp: count })).toEqual(expected);
    }
  },
);

describe.each(VISION_NAMES)('%s', (name) => {
  const own = LAYOUTS.filter(([, , names = VISION_NAMES]) => names.includes(name));

  test.each(own)('%s: trains as on one worker', async (_, [workers, o]) => {
    const batch = await batchOf(name);
    const { parallel: _shared, strategy: _strategy, ...same } = o;
    const expected = await withActor(on(name, ['one', same]), (actor) => train(actor, batch));
    const actual = await withActor(on(name, [workers, o]), (actor) => train(actor, batch));
    expect(worst(actual.before.logProbs, expected.before.logProbs)).toBeLessThan(2e-5);
    const [own, other] = [actual, expected].map(({ before }) => before.entropy as Float32Array);
    expect(worst(own as Float32Array, other as Float32Array)).toBeLessThan(2e-5);
    expectCloseMetrics(actual.metrics, expected.metrics);
    expect(relative(actual.after.logProbs, expected.after.logProbs)).toBeLessThan(2e-5);
  });

  test('a checkpoint continues on every layout, whichever wrote it, and is the model that was read', async () => {
    const layouts: Record<string, Layout> = {
      one: on(name, ['one', {}]),
      'fsdp 2': on(name, ['two', {}]),
      'tp 2 x pp 2': on(name, ['four', { parallel: { ...SEQUENCE, pp: 2 } }]),
      'cp 2': on(name, ['two', { parallel: { cp: 2 } }]),
      ...(name.endsWith('_moe') ? { 'ep 2': on(name, ['two', { parallel: { ep: 2 } }]) } : {}),
    };
    await expectContinued(path.join(scratch, name), layouts, undefined, await batchOf(name));
    const tensorsOf = (directory: string) => readSafetensors(path.join(directory, 'model.safetensors'));
    const published = tensorsOf(visionModel(name).options.model);
    for (const [layout, o] of Object.entries(layouts)) {
      const saved = path.join(scratch, name, 'as_read', layout);
      await withActor(o, (actor) => actor.saveModel(saved));
      expect([layout, tensorsOf(saved)]).toEqual([layout, published]);
    }
  });
});
