import type { NativeLoraOptions, NativeModelConfig, NativeTensorFile } from '../native/bridge';
import type { TensorMapping } from './tensor_mapping';
import { moduleName } from './tensor_names';

/** What there is to know of a model before its weights. */
export interface ModelShape {
  dir: string;
  config: NativeModelConfig;
  mapping: TensorMapping[];
}

/** The adapters of an engine. */
export interface Lora {
  rank: number;
  alpha: number;
  /** As PEFT's target_modules. */
  targetModules: string[];
  /** What is trained, under the names that it has in a PEFT adapter file. */
  mapping: TensorMapping[];
  native: NativeLoraOptions;
  /** What `importTensors` takes to start from an adapter; empty for fresh ones. */
  files: NativeTensorFile[];
}

/** A linear layer of the Hugging Face model that can carry an adapter, and where its outputs lie in Troupe's parameters. */
export interface AdapterTarget {
  /** Module name: model.layers.0.self_attn.q_proj */
  module: string;
  /** Name of the site in the core: `{site}.lora_a` and `{site}.lora_b` are its parameters. */
  site: string;
  param: string;
  row: number;
  rows: number;
  /** Inputs of the layer. */
  inputs: number;
}

const TARGETED =
  /\.(attn\.(qkv|q|q_a|kv_a|kv_b|out)|(delta|mamba|short_conv)\.(in|out)|mlp\.(in|out)|moe\.shared\.(gate|in|out)|moe\.latent\.(in|out)|token\.(in|out))\.weight$/;

/**
 * Every linear layer of attention, linear or not, of dense MLPs, of shared experts with their gates and of a token's gate, in the order of the layers: what PEFT's all-linear finds under transformers 5,
 * which keeps the experts of a mixture and their router as bare parameters. The head is none of them, nor is what
 * a tower for images has.
 */
export function adapterTargets(
  config: NativeModelConfig,
  mapping: readonly TensorMapping[],
): AdapterTarget[] {
  return mapping
    .filter(({ param, shape }) => TARGETED.test(param) && !param.startsWith('vision.') && shape.length === 2)
    .map(({ hf, param, row, rows, shape, transpose }) => {
      const module = moduleName(config, hf).replace(/\.weight$/, '');
      const site = `${param.replace(/\.weight$/, '')}.${leafOf(module)}`;
      return { module, site, param, row, rows, inputs: shape[transpose ? 0 : 1] as number };
    });
}

/** PEFT's rule for lists: the whole name, or its end after a dot. */
export const matches = (module: string, name: string): boolean =>
  module === name || module.endsWith(`.${name}`);

/**
 * The shortest list of names that PEFT takes for exactly these modules: last components where every layer of that name carries
 * an adapter and a tower has none, else whole names. Experts have no modules under transformers 5 but had some before: with them, whole names.
 */
export function targetNames(
  { config, mapping }: ModelShape,
  targets: readonly AdapterTarget[],
  chosen: readonly AdapterTarget[],
): string[] {
  const modules = new Set(chosen.map(({ module }) => module));
  const others = [...targets.map(({ module }) => module), ...towerModules(mapping)];
  const partial = new Set(others.filter((module) => !modules.has(module)).map(leafOf));
  const names = chosen.map(({ module }) =>
    config.moe !== null || partial.has(leafOf(module)) ? module : leafOf(module),
  );
  return [...new Set(names)].sort();
}

/** Of a tower for images, which has no adapters. */
const towerModules = (mapping: readonly TensorMapping[]): string[] =>
  mapping.flatMap(({ hf, param }) => (param.startsWith('vision.') ? [hf.replace(/\.\w+$/, '')] : []));

const leafOf = (module: string): string => module.slice(module.lastIndexOf('.') + 1);

/** The tensors of an adapter file, under PEFT's names, and the parameters that hold them. */
export function adapterMapping(
  rank: number,
  targets: readonly AdapterTarget[],
  head: readonly TensorMapping[],
): TensorMapping[] {
  const entries = targets.flatMap(({ module, site, inputs, rows }): TensorMapping[] => [
    tensor(`${module}.lora_A.weight`, `${site}.lora_a`, rank, inputs),
    tensor(`${module}.lora_B.weight`, `${site}.lora_b`, rows, rank),
  ]);
  return [...entries, ...head.map((m) => ({ ...m, hf: `${PREFIX}${m.hf}` }))];
}

/** The value head of a critic, which is trained with its adapters: PEFT's modules_to_save for token classification. */
export function trainedHead(model: ModelShape): TensorMapping[] {
  return model.config.head === 'value' ? model.mapping.filter(({ param }) => param.startsWith('head.')) : [];
}

/** PEFT's wrapper of a model. */
export const PREFIX = 'base_model.model.';

const tensor = (hf: string, param: string, rows: number, cols: number): TensorMapping => ({
  hf: `${PREFIX}${hf}`,
  shape: [rows, cols],
  param,
  row: 0,
  rows,
  transpose: false,
});
