import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { Actor } from '../../ts/actor/actor';
import { Batch } from '../../ts/batch/batch';
import { exportCheckpoint } from '../../ts/export/export_checkpoint';
import { CONFORMANCE } from '../helpers/conformance';
import { readSafetensors } from '../helpers/safetensors';

// Tensors that hold all experts of a layer, on their way out and back: gpt-oss's transposed, Granite's as they are.
const dir = mkdtempSync(path.join(tmpdir(), 'troupe-experts-'));
afterAll(() => rmSync(dir, { recursive: true, force: true }));

const LAYOUTS = [
  ['one worker', {}],
  ['full_shard', { worldSize: 2, parallel: { sharding: 'full_shard' as const } }],
  ['tp 2', { worldSize: 2, parallel: { tp: 2 } }],
  ['ep 2', { worldSize: 2, parallel: { ep: 2 } }],
] as const;

test.each(
  ['gpt_oss', 'granitemoe'].flatMap((family) =>
    LAYOUTS.map(([layout, options]) => [family, layout, options] as const),
  ),
)('%s on %s: they are saved, exported and streamed as they came', async (family, layout, options) => {
  const model = path.join(CONFORMANCE, 'models', family, 'actor');
  const files = readSafetensors(path.join(model, 'model.safetensors'));
  const batch = Batch.fromSequences([[3, 4, 5, 6]], [[9, 8, 7, 6]]);
  const actor = await Actor.create({ model, dtype: 'float32', optim: { lr: 0.1 }, ...options });
  const other = await Actor.create({ model, dtype: 'float32', optim: { lr: 0.1 } });
  try {
    const saved = path.join(dir, `${family} ${layout}`);
    await actor.saveModel(saved);
    expect(readSafetensors(path.join(saved, 'model.safetensors'))).toEqual(files);
    await actor.saveCheckpoint(`${saved} checkpoint`);
    await exportCheckpoint(`${saved} checkpoint`, `${saved} exported`);
    expect(readSafetensors(path.join(`${saved} exported`, 'model.safetensors'))).toEqual(files);

    const { logProbs } = await actor.computeLogProb(batch);
    await other.updatePolicy(batch.with({ advantages: Float32Array.of(1, -1, 2, 1), oldLogProbs: logProbs }));
    await other.importWeights(actor.exportWeights({ dtype: 'float32', bucketBytes: 8192 }));
    await other.saveModel(`${saved} streamed`);
    expect(readSafetensors(path.join(`${saved} streamed`, 'model.safetensors'))).toEqual(files);
  } finally {
    await actor.close();
    await other.close();
  }
});
