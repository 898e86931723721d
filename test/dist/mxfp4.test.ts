import { createHash } from 'node:crypto';
import { cpSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { Actor } from '../../ts/actor/actor';
import { Batch } from '../../ts/batch/batch';
import { readHeader, readTensors } from '../../ts/checkpoint/safetensors';
import { exportCheckpoint } from '../../ts/export/export_checkpoint';
import type { ActorOptions } from '../../ts/index';
import { maxDifference } from '../helpers/safetensors';

// gpt-oss as it is published, in MXFP4, against transformers' dequantised model (make_model.py).
const FIXTURE = path.join(__dirname, '../fixtures/mxfp4');
const MODEL = path.join(FIXTURE, 'actor');
const expected = JSON.parse(readFileSync(path.join(FIXTURE, 'expected.json'), 'utf8')) as {
  sha256: Record<string, string>;
  sequences: { prompt: number[]; response: number[]; log_probs: number[] }[];
};
const { sequences } = expected;
const batch = Batch.fromSequences(
  sequences.map(({ prompt }) => prompt),
  sequences.map(({ response }) => response),
);

const dir = mkdtempSync(path.join(tmpdir(), 'troupe-mxfp4-'));
afterAll(() => rmSync(dir, { recursive: true, force: true }));

/** Of every tensor's bytes. */
function hashes(model: string): Record<string, string> {
  const all = [...readTensors(model).values()].map(({ name, dtype, file, offset, bytes }) => {
    expect([name, dtype]).toEqual([name, 'BF16']);
    const own = readFileSync(file).subarray(offset, offset + bytes);
    return [name, createHash('sha256').update(own).digest('hex')];
  });
  return Object.fromEntries(all);
}

const configOf = (model: string): unknown =>
  JSON.parse(readFileSync(path.join(model, 'config.json'), 'utf8'));

const LAYOUTS: [string, Partial<ActorOptions>][] = [
  ['one worker', {}],
  ['fsdp 2', { worldSize: 2, parallel: { sharding: 'full_shard' } }],
  ['tp 2', { worldSize: 2, parallel: { tp: 2 } }],
  ['ep 2', { worldSize: 2, parallel: { ep: 2 } }],
  ['pp 2', { worldSize: 2, parallel: { pp: 2 } }],
];

let alone: Float32Array | null = null;
test.each(LAYOUTS)('%s: weights bit for bit, log-probs of the model in float64', async (layout, options) => {
  const actor = await Actor.create({ model: MODEL, dtype: 'float32', optim: null, ...options });
  try {
    const { logProbs } = await actor.computeLogProb(batch);
    expect(
      maxDifference(
        logProbs,
        sequences.flatMap(({ log_probs }) => log_probs),
      ),
    ).toBeLessThan(1e-4);
    alone ??= logProbs;
    // Sums over ranks of the others round otherwise.
    if (['fsdp 2', 'pp 2'].includes(layout)) expect(logProbs).toEqual(alone);
    const saved = path.join(dir, layout);
    await actor.saveModel(saved);
    expect(hashes(saved)).toEqual(expected.sha256);
    expect(configOf(saved)).not.toHaveProperty('quantization_config');
    expect(configOf(saved)).toMatchObject({ torch_dtype: 'bfloat16' });
  } finally {
    await actor.close();
  }
});

test('bfloat16 alone: what is read is what is held', async () => {
  const saved = path.join(dir, 'in bfloat16');
  const actor = await Actor.create({ model: MODEL, dtype: 'bfloat16', optim: null });
  try {
    await actor.saveModel(saved);
  } finally {
    await actor.close();
  }
  expect(hashes(saved)).toEqual(expected.sha256);
});

test('an export without workers: the same files, in float32 the same values', async () => {
  const out = path.join(dir, 'exported');
  await exportCheckpoint(MODEL, out, { maxShardBytes: 50_000 });
  expect(hashes(out)).toEqual(expected.sha256);
  expect(configOf(out)).not.toHaveProperty('quantization_config');
  await exportCheckpoint(MODEL, `${out} wide`, { dtype: 'float32' });
  await exportCheckpoint(`${out} wide`, `${out} again`, { dtype: 'bfloat16' });
  expect(hashes(`${out} again`)).toEqual(expected.sha256);
  expect(configOf(`${out} wide`)).toMatchObject({ torch_dtype: 'float32' });
});

test('scales that are NaN are refused, wherever they are', async () => {
  const spoilt = path.join(dir, 'spoilt');
  cpSync(MODEL, spoilt, { recursive: true });
  const name = 'model.layers.0.mlp.experts.down_proj';
  const scales = readTensors(spoilt).get(`${name}_scales`);
  if (scales === undefined) throw new Error('the fixture has no scales');
  const bytes = readFileSync(scales.file);
  // Of the last expert, its last row.
  bytes[scales.offset + scales.bytes - 1] = 0xff;
  writeFileSync(scales.file, bytes);
  expect(readHeader(scales.file).length).toBeGreaterThan(1);
  const options = { model: spoilt, dtype: 'float32', optim: null } as const;
  const message = new RegExp(
    `tensor ${name}: its scales in .*00002-of-00002.safetensors are NaN or infinity in 1 of 64 blocks`,
  );
  await expect(Actor.create(options)).rejects.toThrow(message);
  await expect(exportCheckpoint(spoilt, path.join(dir, 'never'))).rejects.toThrow(
    new RegExp(`tensor ${name} in .*: element \\d+ is NaN`),
  );
});
