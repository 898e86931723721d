import { cpSync, readdirSync, readFileSync, writeFileSync } from 'node:fs';
import path from 'node:path';
import { Batch } from '../../ts/batch/batch';
import { CONFORMANCE } from './conformance';
import { writeSafetensors } from './e2e_workspace';
import { readSafetensors } from './safetensors';

/** Small models with layers that predict further tokens, and what make_models.py beside them computed. */
export const MTP_FIXTURES = path.join(__dirname, '..', 'fixtures', 'mtp');

const COUNTS: Readonly<Record<string, Record<string, number>>> = {
  mimo: { num_nextn_predict_layers: 1 },
  glm4_moe: { num_nextn_predict_layers: 1 },
  glm4_moe_lite: { num_nextn_predict_layers: 1 },
  deepseek_v3: { num_nextn_predict_layers: 1 },
  qwen3_next: {},
  qwen3_5: { mtp_num_hidden_layers: 1 },
};

export const readJson = (file: string) => JSON.parse(readFileSync(file, 'utf8'));

/** Writes the family's small model with its layer into `dir`. Returned: the model's directory. */
export function mtpModel(dir: string, family: string, changes: Record<string, unknown> = {}): string {
  const model = path.join(dir, `${family}-model`);
  cpSync(path.join(CONFORMANCE, 'models', family, 'actor'), model, { recursive: true });
  const config = path.join(model, 'config.json');
  writeFileSync(config, JSON.stringify({ ...readJson(config), ...COUNTS[family], ...changes }));
  const files = [
    path.join(model, 'model.safetensors'),
    path.join(MTP_FIXTURES, family, 'layers.safetensors'),
  ];
  const tensors = files.flatMap((file) => Object.entries(readSafetensors(file)));
  writeSafetensors(
    files[0] as string,
    tensors.map(([name, { shape, data }]) => ({ name, shape, data: data as Float32Array })),
  );
  return model;
}

export function mtpBatch(): Batch {
  const { prompts, responses, masks } = readJson(path.join(MTP_FIXTURES, 'batch.json'));
  return Batch.fromSequences(prompts, responses, { responseMask: masks.flat() });
}

/** Of one file or several. */
export const weightsIn = (at: string): ReturnType<typeof readSafetensors> =>
  Object.assign(
    {},
    ...readdirSync(at)
      .filter((name) => name.endsWith('.safetensors'))
      .map((name) => readSafetensors(path.join(at, name))),
  );
