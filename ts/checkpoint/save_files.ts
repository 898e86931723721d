import { cpSync, existsSync } from 'node:fs';
import path from 'node:path';
import { writeSmallFile } from '../base/atomic_dir';
import { codeFiles } from '../base/code_files';
import { restoreFloats } from '../base/json_floats';
import { architectureName } from '../model/tensor_names';
import type { LoadedModel } from './model_dir';
import { hasPacked } from './packed_tensor';
import type { WritePlan } from './write_plan';

/** What a tokenizer is made of besides its chat templates. */
const TOKENIZER_FILES = [
  'tokenizer.json',
  'tokenizer_config.json',
  'special_tokens_map.json',
  'added_tokens.json',
  'vocab.json',
  'merges.txt',
  'tokenizer.model',
];
/** What images are processed by. */
const PROCESSOR_FILES = [
  'preprocessor_config.json',
  'processor_config.json',
  'video_preprocessor_config.json',
];
/** Of config.json, where a decoder stands beside a tower: published Qwen3.5 says a dtype in one of them alone. */
const PARTS = ['text_config', 'vision_config'];
const TEMPLATE_FILE = 'chat_template.jinja';
/** The last one is a directory. */
const TEMPLATES = [TEMPLATE_FILE, 'chat_template.json', 'additional_chat_templates'];

/** The tokenizer that is written beside a model. */
export interface SavedTokenizer {
  /** Directory with tokenizer.json. */
  directory: string;
  /** In place of the directory's; null: those. */
  chatTemplate: string | null;
}

/**
 * Writes all of a Hugging Face directory but its tensors: config.json as loaded, with the class and dtype of what is being
 * saved, the generation file of the source, the tokenizer (default: the source's), and the shard index.
 */
export function writeModelFiles(
  model: LoadedModel,
  dir: string,
  plan: WritePlan,
  dtype: 'float32' | 'bfloat16' | null,
  tokenizer: SavedTokenizer | null = null,
): void {
  const processor = model.config.vision === null ? [] : PROCESSOR_FILES;
  copyFiles(model.dir, dir, ['generation_config.json', ...processor, ...codeFiles(model.raw)]);
  writeTokenizer(tokenizer ?? { directory: model.dir, chatTemplate: null }, dir);
  writeJson(path.join(dir, 'config.json'), savedConfig(model, dtype));
  if (plan.index !== null) writeJson(path.join(dir, 'model.safetensors.index.json'), plan.index);
}

function writeTokenizer({ directory, chatTemplate }: SavedTokenizer, dir: string): void {
  copyFiles(directory, dir, TOKENIZER_FILES);
  if (chatTemplate === null) copyFiles(directory, dir, TEMPLATES);
  // Read before the template of tokenizer_config.json, here and by transformers.
  else writeSmallFile(path.join(dir, TEMPLATE_FILE), chatTemplate);
}

/** Those that are there. */
function copyFiles(from: string, to: string, names: readonly string[]): void {
  for (const name of names) {
    const source = path.join(from, name);
    if (existsSync(source)) cpSync(source, path.join(to, name), { recursive: true, dereference: true });
  }
}

export function writeJson(file: string, value: unknown): void {
  writeSmallFile(file, `${restoreFloats(JSON.stringify(value, null, 2))}\n`);
}

function savedConfig(model: LoadedModel, asked: 'float32' | 'bfloat16' | null): Record<string, unknown> {
  const config: Record<string, unknown> = { ...model.raw, architectures: [architectureName(model.config)] };
  // What is saved is not quantised.
  delete config.quantization_config;
  const text = config.text_config;
  if (typeof text === 'object' && text !== null && 'quantization_config' in text)
    config.text_config = { ...text, quantization_config: undefined };
  const dtype = asked ?? (hasPacked(model.stored) ? 'bfloat16' : null);
  if (model.config.head === 'value') {
    config.id2label = { '0': 'LABEL_0' };
    config.label2id = { LABEL_0: 0 };
    delete config.num_labels;
    // The only key that says so; without it transformers makes a bias.
    if (!model.config.valueBias) config.token_classification_bias = false;
  }
  // MiMo's class makes as many heads as this says.
  const { family, prediction } = model.config;
  if (family === 'mimo' && prediction === null && model.predictionLayers.size === 0)
    config.num_nextn_predict_layers = 0;
  if (dtype !== null) {
    if ('torch_dtype' in config || !('dtype' in config)) config.torch_dtype = dtype;
    if ('dtype' in config) config.dtype = dtype;
    for (const part of PARTS) {
      const own = config[part];
      if (typeof own !== 'object' || own === null) continue;
      // transformers 4 writes the second one.
      const said = ['dtype', 'torch_dtype'].filter((key) => key in own);
      config[part] = { ...own, ...Object.fromEntries(said.map((key) => [key, dtype])) };
    }
  }
  return config;
}
