import { mkdtempSync, readdirSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { Actor } from '../../ts/actor/actor';
import { WorkerGroup } from '../../ts/controller/worker_group';
import { Critic } from '../../ts/critic/critic';
import type { EngineOptions } from '../../ts/engine/engine_options';
import type { Sharding } from '../../ts/native/bridge';
import type { WeightBucket, WeightPart } from '../../ts/weights/weight_bucket';
import type { WeightExport, WeightExportOptions } from '../../ts/weights/weight_export';
import { CONFORMANCE } from '../helpers/conformance';
import { readSafetensors, type TestTensor } from '../helpers/safetensors';
import { raggedBatch, SHARDED_CRITIC, SHARDED_MODEL, smallEngine } from '../helpers/sharded';
import { type VisionName, visionModel } from '../helpers/vision_model';

// Weights that leave an engine in buckets and come into another one.
const batch = raggedBatch(6, 3, 100);
const BUCKET = 6000; // less than the largest tensors, more than most

// One group of workers for each number of them.
const groups = new Map<number, Promise<WorkerGroup>>();
let scratch: string;
beforeAll(() => {
  scratch = mkdtempSync(path.join(tmpdir(), 'troupe-weights-'));
});
afterAll(async () => {
  for (const group of groups.values()) await (await group).close();
  rmSync(scratch, { recursive: true, force: true });
});

async function withActor<T>(
  o: Partial<EngineOptions>,
  body: (actor: Actor) => Promise<T>,
  worldSize = 1,
): Promise<T> {
  const launched = groups.get(worldSize) ?? WorkerGroup.launch({ worldSize, device: 'cpu', numThreads: 1 });
  groups.set(worldSize, launched);
  const name = `actor${engines++}`;
  const actor = await Actor.create({
    ...smallEngine,
    model: SHARDED_MODEL,
    name,
    group: await launched,
    ...o,
  });
  try {
    return await body(actor);
  } finally {
    await actor.close();
  }
}
let engines = 0;

async function bucketsOf(source: WeightExport): Promise<WeightBucket[]> {
  const buckets: WeightBucket[] = [];
  for await (const bucket of source) buckets.push(bucket);
  return buckets;
}

/** Puts tensors together again, by name. */
function assembled(buckets: readonly WeightBucket[]): Map<string, Uint8Array> {
  const tensors = new Map<string, Uint8Array>();
  for (const { name, row, data } of buckets.flatMap(({ parts }) => parts)) {
    const before = tensors.get(name) ?? new Uint8Array(0);
    expect(before.length === 0).toBe(row === 0);
    tensors.set(name, Buffer.concat([before, data]));
  }
  return tensors;
}

const bytesOf = (tensor: TestTensor): Uint8Array =>
  new Uint8Array(tensor.data.buffer, tensor.data.byteOffset, tensor.data.byteLength);

const storedIn = (dir: string): Record<string, TestTensor> =>
  Object.assign(
    {},
    ...readdirSync(dir)
      .filter((file) => file.endsWith('.safetensors'))
      .map((file) => readSafetensors(path.join(dir, file))),
  );

function expectTensors(buckets: readonly WeightBucket[], stored: Record<string, TestTensor>): void {
  const tensors = assembled(buckets);
  expect([...tensors.keys()].sort()).toEqual(Object.keys(stored).sort());
  for (const [name, tensor] of Object.entries(stored))
    expect(Buffer.compare(tensors.get(name) as Uint8Array, bytesOf(tensor))).toBe(0);
}

const learn = (actor: Actor) => actor.updatePolicy(batch, { loss: { entropyCoeff: 0.01 } });
const logProbs = async (actor: Actor) => (await actor.computeLogProb(batch)).logProbs;

test.each([
  'qwen3_headdim',
  'gpt2',
  'qwen3_moe',
  'gemma2',
  'glm4_moe',
  'gemma4_moe',
  'gemma4_shared',
  'apertus',
])('all tensors of %s come out as they are stored, and go into another model', async (name) => {
  const model = path.join(CONFORMANCE, 'models', name, 'actor');
  const stored = storedIn(model);
  await withActor({ model }, async (source) => {
    const whole = source.exportWeights({ dtype: 'float32' });
    expect(whole.numBuckets).toBe(1);
    const [one] = await bucketsOf(whole);
    expectTensors([one as WeightBucket], stored);

    const cut = source.exportWeights({ dtype: 'float32', bucketBytes: BUCKET });
    const buckets = await bucketsOf(cut);
    expectTensors(buckets, stored);
    expect(buckets).toHaveLength(cut.numBuckets);
    expect(Math.max(...buckets.map(({ bytes }) => bytes))).toBeLessThanOrEqual(BUCKET);
    const parts = buckets.flatMap((bucket) => bucket.parts);
    for (const { name, rows, shape } of parts) {
      expect(shape).toEqual(stored[name]?.shape);
      // Only what is larger than a bucket is cut.
      const bytes = 4 * shape.reduce((n, d) => n * d, 1);
      if (bytes <= BUCKET) expect(rows).toBe(shape[0] ?? 1);
    }
    expect(parts.some(({ rows, shape }) => rows !== (shape[0] ?? 1))).toBe(true);
    expect(cut.tensors.map((tensor) => tensor.name)).toEqual([...assembled(buckets).keys()]);
    expect(cut.transferred).toMatchObject({
      bytes: cut.numBytes,
      tensors: Object.keys(stored).length,
      buckets: buckets.length,
    });
    expect(cut.transferred.seconds).toBeGreaterThan(0);

    const expected = await logProbs(source);
    await learn(source);
    expect(await logProbs(source)).not.toEqual(expected);
    const moved = await source.importWeights(buckets);
    expect(moved).toMatchObject({ bytes: cut.numBytes, buckets: buckets.length });
    expect(await logProbs(source)).toEqual(expected);
    await source.importWeights([one as WeightBucket]);
    expect(await logProbs(source)).toEqual(expected);
  });
});

test.each<[VisionName, number, EngineOptions['parallel']]>([
  ['qwen3_vl', 4, { tp: 2, sequenceParallel: true, pp: 2 }],
  ['qwen3_5', 4, { tp: 2, pp: 2 }],
  ['qwen3_5_moe', 2, { ep: 2 }],
])(
  'all tensors of %s come with its tower out of %d workers, %j, and go into one',
  async (name, worldSize, parallel) => {
    const { options, batch: recorded } = visionModel(name);
    const own = await recorded();
    const stored = storedIn(options.model);
    const buckets = await withActor(
      { ...options, ...(parallel === undefined ? {} : { parallel }) },
      async (source) => bucketsOf(source.exportWeights({ dtype: 'float32', bucketBytes: BUCKET })),
      worldSize,
    );
    expectTensors(buckets, stored);
    await withActor(options, async (target) => {
      const { logProbs: expected } = await target.computeLogProb(own);
      const changed = own.with({
        advantages: new Float32Array(expected.length).fill(1),
        oldLogProbs: expected,
      });
      await target.updatePolicy(changed, {});
      expect((await target.computeLogProb(own)).logProbs).not.toEqual(expected);
      await target.importWeights(buckets);
      expect((await target.computeLogProb(own)).logProbs).toEqual(expected);
    });
  },
);

test('bfloat16 is rounded to nearest even, and its engine computes with what comes in', async () => {
  await withActor({ dtype: 'bfloat16' }, async (source) => {
    const buckets = await bucketsOf(source.exportWeights({ bucketBytes: BUCKET }));
    const stored = storedIn(SHARDED_MODEL);
    for (const [name, data] of assembled(buckets)) {
      const exact = new Uint32Array((stored[name] as TestTensor).data.buffer);
      const rounded = exact.map((bits) => (bits + 0x7fff + ((bits >>> 16) & 1)) >>> 16);
      expect(Array.from(new Uint16Array(new Uint8Array(data).buffer))).toEqual(Array.from(rounded));
    }
    // What the engine computes with is rounded the same way, so nothing changes.
    const expected = await logProbs(source);
    await learn(source);
    await source.importWeights(buckets);
    expect(await logProbs(source)).toEqual(expected);
  });
});

const spreads: [number, Sharding, number, number][] = [
  [2, 'no_shard', -1, 1],
  [2, 'full_shard', -1, 2],
  [3, 'full_shard', -1, 1],
  [4, 'shard_grad_op', 2, 1],
];
test.each(spreads)(
  '%d workers with %s (fsdpSize %d, ulysses %d) have the stream of one',
  async (worldSize, sharding, fsdpSize, ulysses) => {
    const stream: WeightExportOptions = { bucketBytes: BUCKET };
    const one = await withActor({}, async (actor) => bucketsOf(actor.exportWeights(stream)));
    await withActor(
      { parallel: { sharding, fsdpSize, ulysses } },
      async (actor) => {
        const { group } = actor.engine;
        const sent = () => group.callAll(actor.name, 'bytesSent', () => []);
        const state = await group.callAll(actor.name, 'stateBytes', () => []);
        const before = await sent();
        expect(await bucketsOf(actor.exportWeights(stream))).toEqual(one);
        const after = await sent();
        // Every group is gathered once, however it is cut; gradients have the size of the parameters in float32. Before it all agree to begin.
        const shards = sharding === 'no_shard' ? 1 : fsdpSize === -1 ? worldSize : fsdpSize;
        for (const rank of before.keys())
          expect((after[rank] as number) - (before[rank] as number)).toBe(
            (shards - 1) * (state[rank]?.gradients as number) + 8 * (worldSize - 1),
          );

        // A reader that leaves early, and then other work.
        for await (const bucket of actor.exportWeights(stream)) {
          expect(bucket).toEqual(one[0]);
          break;
        }
        const expected = await logProbs(actor);
        await learn(actor);
        await actor.importWeights(one);
        expect(await logProbs(actor)).toEqual(expected);
        await actor.saveModel(path.join(scratch, `saved_${worldSize}`));
        expectTensors(one, storedIn(path.join(scratch, `saved_${worldSize}`)));
      },
      worldSize,
    );
  },
);

test('the weights may not change between two buckets', async () => {
  await withActor(
    {},
    async (actor) => {
      const reader = actor.exportWeights({ bucketBytes: BUCKET })[Symbol.asyncIterator]();
      await reader.next();
      await logProbs(actor); // changes nothing
      expect((await reader.next()).done).toBe(false);
      await learn(actor);
      await expect(reader.next()).rejects.toThrow(/the weights have changed since this export began/);
      await bucketsOf(actor.exportWeights());
    },
    2,
  );
});

test('with adapters: merged, or the adapters alone', async () => {
  const lora = { rank: 4, alpha: 8 };
  await withActor({ lora, optim: { lr: 1e-2 } }, async (one) => {
    await learn(one);
    await one.saveModel(path.join(scratch, 'merged'));
    await one.saveAdapter(path.join(scratch, 'adapter'));
    const merged = await bucketsOf(one.exportWeights({ bucketBytes: BUCKET }));
    expectTensors(merged, storedIn(path.join(scratch, 'merged')));
    const adapter = await bucketsOf(one.exportWeights({ bucketBytes: 2000, lora: 'adapter' }));
    expectTensors(adapter, storedIn(path.join(scratch, 'adapter')));
    const expected = await logProbs(one);
    await withActor(
      { lora, seed: 9 },
      async (several) => {
        await several.importWeights(adapter);
        expect(await logProbs(several)).toEqual(expected);
        expect(await bucketsOf(several.exportWeights({ bucketBytes: BUCKET }))).toEqual(merged);
        await expect(several.importWeights(merged)).rejects.toThrow(
          /'model\.embed_tokens\.weight' does not belong to this engine, whose names are like 'base_model\.model\./,
        );
      },
      3,
    );
  });
});

test('of a critic, too', async () => {
  const critic = await Critic.create({ ...smallEngine, model: SHARDED_CRITIC });
  try {
    const stream = critic.exportWeights({ bucketBytes: BUCKET });
    const buckets = await bucketsOf(stream);
    expectTensors(buckets, storedIn(SHARDED_CRITIC));
    const expected = await critic.computeValues(batch);
    await critic.updateCritic(batch);
    await critic.importWeights(buckets);
    expect(await critic.computeValues(batch)).toEqual(expected);
  } finally {
    await critic.close();
  }
});

describe('an import', () => {
  test('that does not fit is refused before anything has changed', async () => {
    await withActor(
      {},
      async (actor) => {
        const good = await bucketsOf(actor.exportWeights({ bucketBytes: BUCKET }));
        const first = good[0]?.parts[0] as WeightPart;
        const expected = await logProbs(actor);
        const refuses = async (change: Partial<WeightPart>, message: RegExp) => {
          const bad = { ...(good[0] as WeightBucket), parts: [{ ...first, ...change }] };
          await expect(actor.importWeights([bad, ...good.slice(1)])).rejects.toThrow(message);
          expect(await logProbs(actor)).toEqual(expected);
        };
        await refuses({ name: 'model.embed.weight' }, /tensor 'model\.embed\.weight' does not belong/);
        await refuses({ shape: [160, 49] }, /expected shape \[160, 48\] but got \[160, 49\]/);
        await refuses(
          { dtype: 'float16' as 'float32' },
          /expected dtype float32 or bfloat16 but got float16/,
        );
        await refuses({ row: 1 }, /expected rows that begin at 0 and end at 160 or before, but got 1 to 32/);
        const numbers = new Float32Array(first.data.length / 4) as unknown as Uint8Array;
        await refuses(
          { data: numbers },
          /expected the bytes of its rows, a Uint8Array, but got a Float32Array/,
        );
        await refuses(
          { shape: undefined as unknown as number[] },
          /expected a shape, a list of numbers, but/,
        );
        await refuses({ data: first.data.slice(4) }, /expected 5952 bytes for 31 rows but got 5948/);
        const bad = first.data.slice();
        new DataView(bad.buffer).setFloat32(8, Number.POSITIVE_INFINITY, true);
        await refuses({ data: bad }, /tensor model\.embed_tokens\.weight holds NaN or infinity/);
      },
      2,
    );
  });

  test('that ends half way makes the engine refuse work until another one succeeds', async () => {
    await withActor(
      {},
      async (actor) => {
        const good = await bucketsOf(actor.exportWeights({ bucketBytes: BUCKET }));
        const expected = await logProbs(actor);
        await actor.saveCheckpoint(path.join(scratch, 'checkpoint'));
        const half = actor.importWeights(good.slice(0, 3));
        await expect(logProbs(actor)).rejects.toThrow(/importWeights is replacing the weights: wait for it/);
        await expect(actor.importWeights(good)).rejects.toThrow(/are being replaced already/);
        await expect(half).rejects.toThrow(
          /expected all 25 tensors of the model, but 25 are missing: model\.embed_tokens\.weight \(93 of 160 rows came\)(, \S+){4} and 20 more.* a part of the weights had been replaced/s,
        );
        for (const verb of [
          () => logProbs(actor),
          () => learn(actor),
          () => actor.saveModel(path.join(scratch, 'never')),
          () => bucketsOf(actor.exportWeights()),
        ])
          await expect((async () => verb())()).rejects.toThrow(/neither the old ones nor the new/);
        await actor.importWeights(good);
        expect(await logProbs(actor)).toEqual(expected);

        async function* breaking(): AsyncGenerator<WeightBucket> {
          yield good[0] as WeightBucket;
          throw new Error('the network is down');
        }
        await expect(actor.importWeights(breaking())).rejects.toThrow(/the network is down; a part/);
        await actor.loadCheckpoint(path.join(scratch, 'checkpoint'));
        expect(await logProbs(actor)).toEqual(expected);
      },
      2,
    );
  });
});

test('options that make no sense', async () => {
  await withActor({}, async (actor) => {
    expect(() => actor.exportWeights({ bucketBytes: 100 })).toThrow(
      /bucketBytes: expected at least 192, the bytes of one row of model\.embed_tokens\.weight \[160, 48\], but got 100/,
    );
    expect(() => actor.exportWeights({ lora: 'adapter' })).toThrow(/created without the option lora/);
    expect(() => actor.exportWeights({ dtype: 'float16' as 'float32' })).toThrow(/float32, bfloat16/);
  });
});
