// Weights that are half replaced because what replaced them turned out bad on the way: what the error names puts them right.
import { cpSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { Actor } from '../../ts/actor/actor';
import { readHeader } from '../../ts/checkpoint/safetensors';
import { WorkerGroup } from '../../ts/controller/worker_group';
import type { EngineOptions } from '../../ts/engine/engine_options';
import type { WeightBucket } from '../../ts/weights/weight_bucket';
import { raggedBatch, SHARDED_MODEL, smallEngine } from '../helpers/sharded';

const batch = raggedBatch(6, 3, 100);
const logProbs = async (actor: Actor) => (await actor.computeLogProb(batch)).logProbs;
const HALF = /neither the old ones nor the new/;

let group: WorkerGroup;
let scratch: string;
let broken: string;
beforeAll(async () => {
  group = await WorkerGroup.launch({ worldSize: 2, device: 'cpu', numThreads: 1 });
  scratch = mkdtempSync(path.join(tmpdir(), 'troupe-half-'));
  broken = path.join(scratch, 'broken');
  cpSync(SHARDED_MODEL, broken, { recursive: true });
  spoil(path.join(broken, 'model.safetensors'));
});
afterAll(async () => {
  await group.close();
  rmSync(scratch, { recursive: true, force: true });
});

/** The last number that lies in the file becomes NaN. */
function spoil(file: string): void {
  const bytes = readFileSync(file);
  const last = readHeader(file).reduce((a, b) => (a.offset > b.offset ? a : b));
  expect(last.bytes % 4).toBe(0);
  bytes.writeFloatLE(Number.NaN, last.offset + last.bytes - 4);
  writeFileSync(file, bytes);
}

async function withActor(o: Partial<EngineOptions>, body: (actor: Actor) => Promise<void>): Promise<void> {
  const actor = await Actor.create({
    ...smallEngine,
    model: SHARDED_MODEL,
    name: `actor${engines++}`,
    group,
    ...o,
  });
  try {
    await body(actor);
  } finally {
    await actor.close();
  }
}
let engines = 0;

/** Of an actor with adapters these alone. */
async function bucketsOf(actor: Actor): Promise<WeightBucket[]> {
  const adapter = actor.engine.lora === null ? {} : { lora: 'adapter' as const };
  const buckets: WeightBucket[] = [];
  for await (const bucket of actor.exportWeights({ bucketBytes: 6000, ...adapter })) buckets.push(bucket);
  return buckets;
}

async function* stream(buckets: readonly WeightBucket[]): AsyncGenerator<WeightBucket> {
  yield* buckets;
}

const directory = (actor: Actor, from: string): Promise<void> =>
  actor.rollout.updateWeights({ kind: 'directory', path: from }, 1);

test('a directory that ends half way: any way to set all weights puts them right', async () => {
  await withActor({}, async (actor) => {
    const expected = await logProbs(actor);
    const buckets = await bucketsOf(actor);
    const checkpoint = path.join(scratch, 'checkpoint');
    await actor.saveCheckpoint(checkpoint);
    for (const puts of [
      () => directory(actor, SHARDED_MODEL),
      () => actor.importWeights(buckets),
      () => actor.rollout.updateWeights({ kind: 'buckets', buckets: stream(buckets) }, 2),
      () => actor.loadCheckpoint(checkpoint),
    ]) {
      await expect(directory(actor, broken)).rejects.toMatchObject({
        code: 'NON_FINITE',
        message: expect.stringMatching(
          /the actor refuses all work until importWeights, updateWeights of a directory or loadCheckpoint succeeds$/,
        ),
      });
      await expect(logProbs(actor)).rejects.toThrow(HALF);
      expect(() => actor.rollout.submit({ promptIds: [1], sampling: { maxNewTokens: 2 } })).toThrow(HALF);
      // A remedy that fails itself is none.
      await expect(actor.importWeights(buckets.slice(0, -1))).rejects.toThrow(/are missing/);
      await expect(logProbs(actor)).rejects.toThrow(HALF);
      await puts();
      expect(await logProbs(actor)).toEqual(expected);
      const { result } = actor.rollout.submit({
        promptIds: [1],
        sampling: { maxNewTokens: 2, stopTokenIds: [] },
      });
      expect((await result).tokens).toHaveLength(2);
    }
  });
});

test('a checkpoint whose moments end half way: nothing but a checkpoint puts them right', async () => {
  await withActor({}, async (actor) => {
    const buckets = await bucketsOf(actor);
    const good = path.join(scratch, 'good');
    await actor.updatePolicy(batch);
    await actor.saveCheckpoint(good);
    const expected = await logProbs(actor);
    const bad = path.join(scratch, 'bad');
    cpSync(good, bad, { recursive: true });
    spoil(path.join(bad, 'optimizer/exp_avg_sq.safetensors'));
    await expect(actor.loadCheckpoint(bad)).rejects.toThrow(
      /the actor refuses all work until loadCheckpoint succeeds$/,
    );
    for (const other of [() => actor.importWeights(buckets), () => directory(actor, SHARDED_MODEL)])
      await expect(other()).rejects.toMatchObject({
        code: 'INVALID_MODEL',
        message: expect.stringMatching(/until loadCheckpoint succeeds$/),
      });
    await expect(logProbs(actor)).rejects.toThrow(HALF);
    await actor.loadCheckpoint(good);
    expect(await logProbs(actor)).toEqual(expected);
  });
});

test('with adapters the model below them is put right by a directory alone', async () => {
  await withActor({ lora: { rank: 4, alpha: 8 } }, async (actor) => {
    const expected = await logProbs(actor);
    const adapter = await bucketsOf(actor);
    await expect(directory(actor, broken)).rejects.toThrow(
      /the actor refuses all work until updateWeights of a directory succeeds$/,
    );
    await expect(actor.importWeights(adapter)).rejects.toThrow(
      /until updateWeights of a directory succeeds$/,
    );
    await directory(actor, SHARDED_MODEL);
    expect(await logProbs(actor)).toEqual(expected);
    await expect(actor.importWeights(adapter.slice(0, -1))).rejects.toThrow(
      /the actor refuses all work until importWeights or loadCheckpoint succeeds$/,
    );
    await actor.importWeights(adapter);
    expect(await logProbs(actor)).toEqual(expected);
  });
});
