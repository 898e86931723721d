import { copyFileSync, existsSync } from 'node:fs';
import path from 'node:path';
import { writeSmallFile } from '../base/atomic_dir';
import { architectureName } from '../model/tensor_names';
import { restoreFloats } from './json_floats';
import type { LoadedModel } from './model_dir';
import type { WritePlan } from './write_plan';

/** What travels with the weights besides config.json. */
const COMPANIONS = [
  'generation_config.json',
  'tokenizer.json',
  'tokenizer_config.json',
  'special_tokens_map.json',
  'added_tokens.json',
  'vocab.json',
  'merges.txt',
  'tokenizer.model',
  'chat_template.jinja',
  'chat_template.json',
];

/**
 * Writes all of a Hugging Face directory but its tensors: config.json as loaded, with the class and dtype of what is being
 * saved, the tokenizer and generation files of the source, and the shard index.
 */
export function writeModelFiles(
  model: LoadedModel,
  dir: string,
  plan: WritePlan,
  dtype: 'float32' | 'bfloat16' | null,
): void {
  for (const name of COMPANIONS) {
    const source = path.join(model.dir, name);
    if (existsSync(source)) copyFileSync(source, path.join(dir, name));
  }
  writeJson(path.join(dir, 'config.json'), savedConfig(model, dtype));
  if (plan.index !== null) writeJson(path.join(dir, 'model.safetensors.index.json'), plan.index);
}

export function writeJson(file: string, value: unknown): void {
  writeSmallFile(file, `${restoreFloats(JSON.stringify(value, null, 2))}\n`);
}

function savedConfig(model: LoadedModel, dtype: 'float32' | 'bfloat16' | null): Record<string, unknown> {
  const config: Record<string, unknown> = { ...model.raw, architectures: [architectureName(model.config)] };
  if (model.config.head === 'value') {
    config.id2label = { '0': 'LABEL_0' };
    config.label2id = { LABEL_0: 0 };
    delete config.num_labels;
  }
  if (dtype !== null) {
    if ('torch_dtype' in config || !('dtype' in config)) config.torch_dtype = dtype;
    if ('dtype' in config) config.dtype = dtype;
  }
  return config;
}
