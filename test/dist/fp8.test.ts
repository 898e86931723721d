import { createHash } from 'node:crypto';
import { mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { Actor } from '../../ts/actor/actor';
import { Batch } from '../../ts/batch/batch';
import { readTensors } from '../../ts/checkpoint/safetensors';
import { exportCheckpoint } from '../../ts/export/export_checkpoint';
import type { ActorOptions } from '../../ts/index';
import { writeFp8Model } from '../helpers/fp8_model';
import { maxDifference, readSafetensors } from '../helpers/safetensors';
import { writeStraightExperts } from '../helpers/straight_experts';
import { visionModel } from '../helpers/vision_model';

// Models in FP8 as they are published, against what transformers and compressed-tensors make of them (make_models.py).
const FIXTURE = path.join(__dirname, '../fixtures/fp8');

type Dtype = 'float32' | 'bfloat16';
interface Expected {
  float32: Record<string, string>;
  bfloat16: Record<string, string>;
  sequences: { prompt: number[]; response: number[]; log_probs: number[] }[];
}
type ModelName = 'blocks' | 'experts' | 'channels';
const expected = JSON.parse(readFileSync(path.join(FIXTURE, 'expected.json'), 'utf8')) as Record<
  ModelName,
  Expected
>;
const batchOf = ({ sequences }: Expected): Batch =>
  Batch.fromSequences(
    sequences.map(({ prompt }) => prompt),
    sequences.map(({ response }) => response),
  );

const dir = mkdtempSync(path.join(tmpdir(), 'troupe-fp8-'));
afterAll(() => rmSync(dir, { recursive: true, force: true }));

/** Of every tensor's bytes. */
function hashes(model: string, dtype: Dtype): Record<string, string> {
  const all = [...readTensors(model).values()].map(({ name, dtype: own, file, offset, bytes }) => {
    const buffer = name.endsWith('correction_bias');
    expect([name, own]).toEqual([name, dtype === 'float32' || buffer ? 'F32' : 'BF16']);
    return [
      name,
      createHash('sha256')
        .update(readFileSync(file).subarray(offset, offset + bytes))
        .digest('hex'),
    ];
  });
  return Object.fromEntries(all);
}

const configOf = (model: string): unknown =>
  JSON.parse(readFileSync(path.join(model, 'config.json'), 'utf8'));

const ALONE = { worldSize: 1 };
const FSDP = { worldSize: 2, parallel: { sharding: 'full_shard' } } as const;
const TP = { worldSize: 2, parallel: { tp: 2 } };
const PP = { worldSize: 2, parallel: { pp: 2 } };
const EP = { worldSize: 2, parallel: { ep: 2 } };

const LAYOUTS: [ModelName, string, Partial<ActorOptions>][] = [
  ['blocks', 'one worker', ALONE],
  ['blocks', 'fsdp 2', FSDP],
  ['blocks', 'tp 2', TP],
  ['blocks', 'pp 2', PP],
  ['experts', 'one worker', ALONE],
  ['experts', 'fsdp 2', FSDP],
  ['experts', 'tp 2', TP],
  ['experts', 'ep 2', EP],
  ['channels', 'one worker', ALONE],
  ['channels', 'fsdp 2', FSDP],
  ['channels', 'tp 2', TP],
];

test.each(LAYOUTS)(
  '%s, %s: weights bit for bit, log-probs of the model in float64',
  async (name, layout, options) => {
    const model = path.join(FIXTURE, name);
    const reference = expected[name];
    const actor = await Actor.create({ model, dtype: 'float32', optim: null, ...options });
    try {
      const { logProbs } = await actor.computeLogProb(batchOf(reference));
      const wanted = reference.sequences.flatMap(({ log_probs }) => log_probs);
      expect(maxDifference(logProbs, wanted)).toBeLessThan(1e-4);
      for (const dtype of ['float32', 'bfloat16'] as const) {
        const saved = path.join(dir, `${name} ${layout} ${dtype}`);
        await actor.saveModel(saved, dtype === 'float32' ? { dtype } : {});
        expect(hashes(saved, dtype)).toEqual(reference[dtype]);
        expect(configOf(saved)).not.toHaveProperty('quantization_config');
        expect(configOf(saved)).toMatchObject({ dtype });
      }
    } finally {
      await actor.close();
    }
  },
);

test.each(['blocks', 'experts', 'channels'] as const)('%s in bfloat16 alone: rounded once', async (name) => {
  const saved = path.join(dir, `${name} in bfloat16`);
  const actor = await Actor.create({
    model: path.join(FIXTURE, name),
    dtype: 'bfloat16',
    optim: null,
  });
  try {
    await actor.saveModel(saved);
  } finally {
    await actor.close();
  }
  expect(hashes(saved, 'bfloat16')).toEqual(expected[name].bfloat16);
});

test.each(['blocks', 'experts', 'channels'] as const)(
  '%s exported without workers: the same files',
  async (name) => {
    for (const dtype of ['float32', 'bfloat16'] as const) {
      const out = path.join(dir, `${name} exported ${dtype}`);
      await exportCheckpoint(path.join(FIXTURE, name), out, {
        maxShardBytes: 50_000,
        ...(dtype === 'float32' ? { dtype } : {}),
      });
      expect(hashes(out, dtype)).toEqual(expected[name][dtype]);
      expect(configOf(out)).not.toHaveProperty('quantization_config');
    }
  },
);

describe('experts of a layer in one tensor', () => {
  /** What is loaded, in float32. */
  async function loaded(model: string, name: string, options: Partial<ActorOptions>) {
    const saved = path.join(dir, name);
    const actor = await Actor.create({ model, dtype: 'float32', optim: null, ...options });
    try {
      await actor.saveModel(saved, { dtype: 'float32' });
    } finally {
      await actor.close();
    }
    return readSafetensors(path.join(saved, 'model.safetensors'));
  }

  test.each([
    ['transposed', false],
    ['as they are', true],
  ])('%s: as if they were not quantised', async (name, straight) => {
    let source = visionModel('qwen3_vl_moe').options.model;
    if (straight) {
      writeStraightExperts(source, path.join(dir, 'straight'));
      source = path.join(dir, 'straight');
    }
    const { packed, values } = writeFp8Model(source, path.join(dir, `${name} fp8`), [8, 12]);
    const wanted = await loaded(values, `${name} values`, {});
    expect(Object.keys(wanted).some((hf) => hf.endsWith('experts.gate_up_proj'))).toBe(true);
    for (const [layout, options] of [
      ['one worker', {}],
      ['fsdp 2', FSDP],
      ['tp 2', TP],
      ['ep 2', EP],
    ] as const)
      expect(await loaded(packed, `${name} packed ${layout}`, options)).toEqual(wanted);
  });
});
