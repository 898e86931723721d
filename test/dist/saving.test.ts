import { cpSync, mkdtempSync, readdirSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { Actor } from '../../ts/actor/actor';
import { loadModelDirectory } from '../../ts/checkpoint/model_dir';
import { readTensors, type StoredTensor } from '../../ts/checkpoint/safetensors';
import { Tokenizer } from '../../ts/data/tokenizer';
import type { EngineOptions } from '../../ts/engine/engine_options';
import { exportCheckpoint } from '../../ts/export/export_checkpoint';
import type { WeightBucket } from '../../ts/weights/weight_bucket';
import { CONFORMANCE } from '../helpers/conformance';
import { writeSafetensors } from '../helpers/e2e_workspace';
import { readSafetensors } from '../helpers/safetensors';
import { raggedBatch, smallEngine, withActor } from '../helpers/sharded';
import { tokenizerDirectory } from '../unit/data/fake_tokenizer';

// Every rank writes its part of the files: what they save together is what one saves alone, byte for byte.

let dir: string;
beforeEach(() => {
  dir = mkdtempSync(path.join(tmpdir(), 'troupe-saving-'));
});
afterEach(() => rmSync(dir, { recursive: true }));

const layouts: Record<string, Partial<EngineOptions>> = {
  'three ranks': { worldSize: 3, parallel: { sharding: 'full_shard' } },
  'two copies of two ranks': { worldSize: 4, parallel: { sharding: 'shard_grad_op', fsdpSize: 2 } },
  'two whole copies, on the host': {
    worldSize: 2,
    parallel: { sharding: 'no_shard' },
    offload: { params: true, grads: true, optimizer: true },
  },
};

/** The files below a directory, with their content. */
function content(at: string): Map<string, Buffer> {
  const names = readdirSync(at, { recursive: true, withFileTypes: true }).filter((entry) => entry.isFile());
  const paths = names.map(({ parentPath, name }) => path.join(parentPath, name)).sort();
  return new Map(paths.map((file) => [path.relative(at, file), readFileSync(file)]));
}

const bytesOf = ({ file, offset, bytes }: StoredTensor): string =>
  readFileSync(file)
    .subarray(offset, offset + bytes)
    .toString('hex');

async function saveAll(actor: Actor, to: string): Promise<Map<string, Buffer>> {
  await actor.saveCheckpoint(path.join(to, 'checkpoint'));
  await actor.saveModel(path.join(to, 'float32'), { dtype: 'float32' });
  await actor.saveModel(path.join(to, 'bfloat16'), { dtype: 'bfloat16' });
  return content(to);
}

// gpt2 keeps its matrices transposed, mixtral has rows of one parameter in many tensors, glm4_moe a buffer.
test.each([
  ['gpt2', {}],
  ['mixtral', {}],
  ['glm4_moe', {}],
  ['qwen3_headdim', { lora: { rank: 4, alpha: 8 } }],
  ['phi3', { lora: { rank: 4, alpha: 8 } }], // sites over q, k and v, and over gate and up
  ['granitemoe', {}],
  ['glm4', { lora: { rank: 4, alpha: 8 } }],
  ['glm4_moe', { dtype: 'bfloat16', lora: { rank: 4, alpha: 8 } }],
] as [string, Partial<EngineOptions>][])('%s', async (family, options) => {
  const own = { ...smallEngine, ...options, model: path.join(CONFORMANCE, 'models', family, 'actor') };
  const alone = await Actor.create(own);
  await alone.updatePolicy(raggedBatch(4, 3, 100));
  const expected = await saveAll(alone, path.join(dir, 'alone'));
  await alone.close();
  expect(expected.size).toBeGreaterThan(7);
  for (const [name, layout] of Object.entries(layouts)) {
    const actor = await Actor.create({ ...own, ...layout });
    await actor.loadCheckpoint(path.join(dir, 'alone', 'checkpoint'));
    const sent = (): Promise<number[]> => actor.engine.group.callAll(actor.name, 'bytesSent', () => []);
    const before = await sent();
    await actor.saveCheckpoint(path.join(dir, 'again'));
    // They agree on whether all went well, and that is all they say to each other.
    for (const [rank, bytes] of (await sent()).entries())
      expect(bytes - (before[rank] as number)).toBeLessThan(1000);
    const saved = await saveAll(actor, path.join(dir, name));
    await actor.close();
    expect([...saved.keys()]).toEqual([...expected.keys()]);
    for (const [file, bytes] of expected)
      expect([name, file, saved.get(file)?.equals(bytes)]).toEqual([name, file, true]);
  }
});

test('layers that predict further tokens stay with the model, as they were', async () => {
  const model = path.join(dir, 'model');
  cpSync(path.join(CONFORMANCE, 'models', 'glm4_moe', 'actor'), model, { recursive: true });
  const tensors = Object.entries(readSafetensors(path.join(model, 'model.safetensors')));
  const layers = ['eh_proj', 'mlp.experts.0.up_proj'].map((name, at) => ({
    name: `model.layers.3.${name}.weight`,
    shape: [3, 2 + at],
    data: Float32Array.from({ length: 3 * (2 + at) }, (_, i) => Math.fround(0.1 * i - at)),
  }));
  const float = (data: unknown) => data as Float32Array;
  const own = tensors.map(([name, { shape, data }]) => ({ name, shape, data: float(data) }));
  writeSafetensors(path.join(model, 'model.safetensors'), [...own, ...layers]);

  const at = (name: string): string => path.join(dir, name);
  const weights = (name: string): Record<string, unknown> =>
    Object.fromEntries(
      [...readTensors(at(name)).values()].map((tensor) => [tensor.name, [tensor.dtype, bytesOf(tensor)]]),
    );
  const actor = await Actor.create({ ...smallEngine, model, worldSize: 2 });
  await actor.updatePolicy(raggedBatch(4, 3, 100));
  await saveAll(actor, dir);
  await actor.loadCheckpoint(at('checkpoint'));
  await actor.close();
  await exportCheckpoint(at('checkpoint'), at('exported'));
  await exportCheckpoint(at('checkpoint'), at('rounded'), { dtype: 'bfloat16' });

  const before = weights('model');
  for (const saved of ['checkpoint', 'float32', 'exported']) {
    const after = weights(saved);
    expect(Object.keys(after).sort()).toEqual(Object.keys(before).sort());
    for (const { name } of layers) expect([saved, after[name]]).toEqual([saved, before[name]]);
    expect(after['lm_head.weight']).not.toEqual(before['lm_head.weight']);
  }
  expect(weights('rounded')).toEqual(weights('bfloat16'));
  const again = loadModelDirectory(at('bfloat16'), 'lm');
  expect([...again.predictionLayers.keys()].sort()).toEqual(layers.map(({ name }) => name).sort());
  // A critic has no use for them.
  expect(loadModelDirectory(model, 'value').predictionLayers.size).toBe(0);
});

test('model and checkpoint hold the tokenizer that was trained with', async () => {
  const model = path.join(CONFORMANCE, 'models', 'qwen2_tied', 'actor');
  const directory = tokenizerDirectory();
  const actor = await Actor.create({
    ...smallEngine,
    model,
    savedTokenizer: { directory, chatTemplate: 'mine' },
  });
  await saveAll(actor, dir);
  await actor.close();
  for (const at of ['checkpoint', 'float32']) {
    const saved = Tokenizer.load(path.join(dir, at));
    expect([saved.eosId, saved.chatTemplate]).toEqual([2, 'mine']);
  }
  await expect(
    Actor.create({ ...smallEngine, model, savedTokenizer: { directory: '', chatTemplate: null } }),
  ).rejects.toThrow(/savedTokenizer\] directory: expected a directory with tokenizer.json/);
});

test.each<[string, Partial<EngineOptions>, (actor: Actor, weights: WeightBucket[]) => Promise<unknown>]>([
  ['an update', {}, (actor) => actor.updatePolicy(raggedBatch(4, 3))],
  ['an update of two workers', { worldSize: 2 }, (actor) => actor.updatePolicy(raggedBatch(4, 3))],
  ['other weights', {}, (actor, weights) => actor.importWeights(weights)],
])('a checkpoint that %s comes into is none', async (_, options, change) => {
  await withActor(options, async (actor) => {
    const at = path.join(dir, 'checkpoint');
    const weights: WeightBucket[] = [];
    for await (const bucket of actor.exportWeights()) weights.push(bucket);
    const [saved, changed] = await Promise.allSettled([actor.saveCheckpoint(at), change(actor, weights)]);
    expect(changed.status).toBe('fulfilled');
    expect(saved).toMatchObject({
      status: 'rejected',
      reason: {
        code: 'INVALID_ARGUMENT',
        message: expect.stringContaining('the state of the actor has changed while it was saved'),
      },
    });
    expect(readdirSync(dir)).toEqual([]);
    await actor.saveCheckpoint(at);
    expect(readdirSync(at)).toContain('engine.json');
  });
});
