import { existsSync } from 'node:fs';
import path from 'node:path';
import { z } from 'zod';
import { show } from '../base/text';
import { TroupeError } from '../errors';
import {
  type AdapterTarget,
  adapterMapping,
  type Lora,
  type ModelShape,
  matches,
  PREFIX,
  trainedHead,
} from '../model/adapter_sites';
import { valueHeadName } from '../model/tensor_names';
import type { NativeTensorFile } from '../native/bridge';
import { readObject } from './json_object';
import { planLoad } from './load_plan';
import { readTensors, type StoredTensor } from './safetensors';
import { writeJson } from './save_files';
import { planWrite, type WritePlan } from './write_plan';

// Adapters as PEFT keeps them: adapter_config.json and adapter_model.safetensors, whose tensors are
// base_model.model.{module}.lora_A.weight [r, in] and ...lora_B.weight [out, r], and the value head of a critic.

const CONFIG = 'adapter_config.json';
const BASE = 'adapter_model';

const invalid = (message: string): TroupeError => new TroupeError('INVALID_MODEL', `[lora] ${message}`);

const none = z.union([z.null(), z.literal(false), z.tuple([]), z.object({}).strict()]).optional();
const names = z.union([z.string(), z.array(z.string())]).nullish();

/** What changes neither the sum that an adapter adds nor where. */
const INDIFFERENT = [
  'auto_mapping',
  'base_model_name_or_path',
  'ensure_weight_tying',
  'fan_in_fan_out',
  'inference_mode',
  'layers_pattern',
  'lora_dropout',
  'megatron_config',
  'megatron_core',
  'peft_version',
  'qalora_group_size',
  'revision',
  'runtime_config',
  'task_type',
];

const schema = z
  .object({
    peft_type: z.literal('LORA'),
    r: z.number().int().min(1),
    lora_alpha: z.number().positive(),
    target_modules: names,
    exclude_modules: names,
    layers_to_transform: z.unknown().optional(),
    modules_to_save: z.array(z.string()).nullish(),
    bias: z.literal('none').optional(),
    // Others change the base weights when they begin.
    init_lora_weights: z.union([z.null(), z.boolean(), z.enum(['gaussian', 'eva', 'orthogonal'])]).optional(),
    ...Object.fromEntries(INDIFFERENT.map((key) => [key, z.unknown().optional()])),
  })
  .catchall(none);

type AdapterConfig = z.infer<typeof schema>;

export interface LoadedAdapter {
  rank: number;
  alpha: number;
  targets: AdapterTarget[];
  files: NativeTensorFile[];
}

/**
 * Reads an adapter up to, but not including, the tensors' bytes. Throws INVALID_MODEL naming a setting that Troupe cannot do (dora,
 * biases, ranks by module, ...) and all tensors that are missing, misshapen or of other modules.
 */
export function readAdapter(
  dir: string,
  model: ModelShape,
  targets: readonly AdapterTarget[],
): LoadedAdapter {
  const file = path.join(dir, CONFIG);
  if (!existsSync(file)) throw invalid(`${dir} has no ${CONFIG}: expected an adapter that PEFT saved`);
  const config = parseConfig(file);
  checkSavedModules(file, config, model);
  const stored = readTensors(dir, BASE);
  const chosen = targets.filter(({ module }) => listed(config, module) || hasTensors(stored, module));
  const mapping = adapterMapping(config.r, chosen, trainedHead(model));
  const { files } = planLoad(dir, stored, mapping, {
    what: `do not fit its ${CONFIG} and the model in ${model.dir}`,
    // An adapter of a causal LM has no value head: it starts fresh, or as the model has it.
    optional: (hf) => (config.modules_to_save ?? []).length === 0 && !hf.includes('.lora_'),
  });
  if (chosen.length === 0) throw invalid(`${dir}: the adapter is on no module of the model in ${model.dir}`);
  return { rank: config.r, alpha: config.lora_alpha, targets: chosen, files };
}

function parseConfig(file: string): AdapterConfig {
  const raw = readObject(file, 'lora');
  const parsed = schema.safeParse(raw);
  if (parsed.success) return parsed.data;
  const issue = parsed.error.issues[0];
  // An unknown key is an issue of the whole object in some versions of zod.
  const key = String(issue?.path[0] ?? (issue as { keys?: string[] } | undefined)?.keys?.[0]);
  throw invalid(
    `${file}: ${key}: ${show(raw[key])} is not supported: expected a plain LoRA adapter (peft_type LORA, one r and ` +
      'lora_alpha for all modules, bias none, no variant such as use_dora or use_rslora)',
  );
}

function checkSavedModules(file: string, config: AdapterConfig, model: ModelShape): void {
  const head = valueHeadName(model.config.family);
  // PEFT lists both names that a head may have.
  const known = model.config.head === 'value' ? ['classifier', 'score', head] : [];
  const other = config.modules_to_save?.find((name) => !known.includes(name));
  if (other === undefined) return;
  throw invalid(
    `${file}: modules_to_save: ${show(other)} is not supported: expected ${model.config.head === 'value' ? `none but the value head (${head})` : 'none'}`,
  );
}

function listed(config: AdapterConfig, module: string): boolean {
  const { target_modules: wanted, exclude_modules: excluded, layers_to_transform: layers } = config;
  // A pattern, and a choice of layers, leave it to the tensors.
  if (!Array.isArray(wanted) || (layers !== null && layers !== undefined)) return false;
  const without = Array.isArray(excluded) ? excluded : [];
  return (
    (typeof excluded !== 'string' || excluded === '') &&
    wanted.some((name) => matches(module, name)) &&
    !without.some((name) => matches(module, name))
  );
}

const hasTensors = (stored: ReadonlyMap<string, StoredTensor>, module: string): boolean =>
  ['lora_A', 'lora_B'].some((matrix) => stored.has(`${PREFIX}${module}.${matrix}.weight`));

/** Writes adapter_config.json into `dir` and plans the tensor file beside it, float32. */
export function writeAdapterFiles(lora: Lora, model: ModelShape, dir: string): WritePlan {
  const value = model.config.head === 'value';
  writeJson(path.join(dir, CONFIG), {
    base_model_name_or_path: model.dir,
    bias: 'none',
    fan_in_fan_out: model.config.family === 'gpt2',
    inference_mode: true,
    init_lora_weights: true,
    lora_alpha: lora.alpha,
    lora_dropout: 0,
    modules_to_save: value ? [valueHeadName(model.config.family)] : null,
    peft_type: 'LORA',
    r: lora.rank,
    target_modules: lora.targetModules,
    task_type: value ? 'TOKEN_CLS' : 'CAUSAL_LM',
    use_dora: false,
    use_rslora: false,
  });
  const plan = planWrite(dir, BASE, lora.mapping, () => 'F32');
  if (plan.index !== null) throw invalid(`${dir}: PEFT keeps an adapter in one file: it is too large`);
  return plan;
}

/** The tensors of an adapter that this engine saved. */
export function planAdapterLoad(lora: Lora, model: ModelShape, dir: string): NativeTensorFile[] {
  const config = parseConfig(path.join(dir, CONFIG));
  if (config.r !== lora.rank || config.lora_alpha !== lora.alpha) {
    throw invalid(
      `${dir}: expected an adapter of rank ${lora.rank} and alpha ${lora.alpha} as the engine has, got rank ${config.r} and alpha ${config.lora_alpha}`,
    );
  }
  const what = `do not fit the adapters of the engine (model ${model.dir})`;
  return planLoad(dir, readTensors(dir, BASE), lora.mapping, { what }).files;
}
