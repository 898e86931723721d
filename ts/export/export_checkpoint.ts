import { copyFileSync, existsSync, lstatSync, readdirSync } from 'node:fs';
import path from 'node:path';
import { Actor } from '../actor/actor';
import { asTroupeError, writeDirectory } from '../base/atomic_dir';
import { checkOptionNames, choiceOption, flagOption, numberOption, requirePath } from '../base/check_options';
import { readObject } from '../checkpoint/json_object';
import { keptTensors, loadModelDirectory } from '../checkpoint/model_dir';
import { readTensors } from '../checkpoint/safetensors';
import { writeModelFiles } from '../checkpoint/save_files';
import { streamTensors } from '../checkpoint/stream_tensors';
import {
  asStored,
  DEFAULT_SHARD_BYTES,
  type FloatDtype,
  isFloatDtype,
  planWrite,
} from '../checkpoint/write_plan';
import { Critic } from '../critic/critic';
import { saveModel } from '../engine/engine_checkpoint';
import { TroupeError } from '../errors';
import { hasImageProcessor } from '../model/image_processor';
import type { TensorMapping } from '../model/tensor_mapping';
import { CheckpointStore } from '../run/checkpoint_store';
import { type ExportedRole, type FoundCheckpoint, findCheckpoint } from './find_checkpoint';

export interface ExportOptions {
  /** Default: each tensor as it is stored, quantised ones as bfloat16; checkpoints hold float32. */
  dtype?: 'float32' | 'bfloat16';
  /** Which model of a checkpoint that has two; default: the actor. */
  role?: ExportedRole;
  /** Of a checkpoint with adapters: the whole model with them merged in. Without it the adapter is written, as PEFT has it. */
  mergeLora?: boolean;
  /** The model that the adapters belong to; default: what adapter_config.json names. */
  base?: string;
  /**
   * With the tower for images, of a model whose language model is a model of its own (Qwen3.5). Default: where the directory says how images are
   * read (preprocessor_config.json), and for adapters where they are on the decoder beside a tower.
   */
  readsImages?: boolean;
  /** Above it weights are spread over several files with an index, 5e9. */
  maxShardBytes?: number;
}

export interface ExportSummary {
  /** What was read. */
  source: FoundCheckpoint;
  merged: boolean;
  files: string[];
}

const OPTIONS = ['dtype', 'role', 'mergeLora', 'base', 'readsImages', 'maxShardBytes'];
const DTYPES: Readonly<Record<'float32' | 'bfloat16', FloatDtype>> = { float32: 'F32', bfloat16: 'BF16' };

type Resolved = Required<Pick<ExportOptions, 'maxShardBytes' | 'readsImages'>> &
  Pick<ExportOptions, 'dtype' | 'base'>;

/**
 * Writes the weights of any checkpoint, in whatever layout of workers it was saved, as a plain Hugging Face directory: config.json,
 * tokenizer files, safetensors. `out` must not exist yet; it appears complete or not at all. Tensors are streamed without starting a
 * worker; merging adapters starts one.
 *
 * @throws TroupeError INVALID_MODEL when there is no such checkpoint, IO when it is damaged, `out` exists or cannot be written, NO_SPACE, NON_FINITE naming
 *   a tensor with NaN, infinity, or a value that the dtype cannot hold
 */
export async function exportCheckpoint(
  checkpoint: string,
  out: string,
  o: ExportOptions = {},
): Promise<ExportSummary> {
  const where = 'exportCheckpoint';
  requirePath(where, 'a checkpoint', checkpoint);
  requirePath(where, 'a directory to write', out);
  checkOptionNames(where, o, OPTIONS);
  const dtype = choiceOption(
    where,
    'dtype',
    o.dtype ?? 'stored',
    ['float32', 'bfloat16', 'stored'],
    'stored',
  );
  const mergeLora = flagOption(where, 'mergeLora', o.mergeLora, false);
  const role =
    o.role === undefined ? null : choiceOption(where, 'role', o.role, ['actor', 'critic'], 'actor');
  checkAbsent(out);
  const source = findCheckpoint(checkpoint, role);
  const resolved: Resolved = {
    readsImages: flagOption(where, 'readsImages', o.readsImages, readsImages(source)),
    ...(dtype === 'stored' ? {} : { dtype }),
    ...(o.base === undefined ? {} : { base: o.base }),
    maxShardBytes: numberOption(where, 'maxShardBytes', o.maxShardBytes, DEFAULT_SHARD_BYTES, { min: 1 }),
  };
  await checkSource(source);
  if (mergeLora && !source.adapter) {
    throw new TroupeError(
      'INVALID_ARGUMENT',
      `[export] ${source.dir} holds a whole model and no adapters: leave --merge-lora out`,
    );
  }
  if (mergeLora) await exportMerged(source, out, resolved);
  else if (source.adapter) await exportAdapter(source, out, resolved);
  else await exportModel(source, out, resolved, o.readsImages === true);
  return { source, merged: mergeLora, files: readdirSync(out).sort() };
}

/** Weights of a run's checkpoint must be those that were saved; of anything else there are no checksums. */
async function checkSource({ dir }: FoundCheckpoint): Promise<void> {
  const inside = path.resolve(dir);
  const step = [path.dirname(inside), path.dirname(path.dirname(inside))].find((above) =>
    existsSync(path.join(above, 'trainer.json')),
  );
  if (step === undefined || !/^global_step_\d+$/.test(path.basename(step))) return;
  const store = new CheckpointStore<object>(path.dirname(step));
  await store.check(store.read(step), path.relative(step, inside).split(path.sep).join('/'));
}

/** A link that leads nowhere is there, too: it would be replaced. */
function checkAbsent(out: string): void {
  let found: object | undefined;
  try {
    found = lstatSync(out, { throwIfNoEntry: false });
  } catch (error) {
    throw asTroupeError(error, `write ${out}`);
  }
  if (found === undefined) return;
  throw new TroupeError('IO', `[export] ${out} exists already: choose another directory, or remove it first`);
}

/** `asksImages`: for the tower, by name. */
async function exportModel(
  { dir, role }: FoundCheckpoint,
  out: string,
  o: Resolved,
  asksImages: boolean,
): Promise<void> {
  const model = loadModelDirectory(dir, role === 'actor' ? 'lm' : 'value', o);
  if (asksImages && model.config.vision === null)
    throw new TroupeError(
      'INVALID_ARGUMENT',
      `[export] the model in ${dir} reads text alone: leave --read-images out`,
    );
  if (model.freshHead) {
    throw new TroupeError(
      'INVALID_MODEL',
      `[export] ${dir} holds a causal LM and no value head: leave --role critic out`,
    );
  }
  await writeDirectory(out, async (temporary) => {
    const dtypeOf = chosen((name) => model.dtypes.get(name), o);
    const plan = planWrite(temporary, 'model', model.mapping, dtypeOf, o.maxShardBytes, keptTensors(model));
    writeModelFiles(model, temporary, plan, o.dtype ?? null);
    await streamTensors(plan.files, model.stored);
    await streamTensors(plan.kept, model.predictionLayers);
  });
}

/** Whether a tower for images is part of what is here. */
function readsImages({ dir, adapter }: FoundCheckpoint): boolean {
  if (adapter)
    return [...readTensors(dir, 'adapter_model').keys()].some((name) => name.includes('.language_model.'));
  return hasImageProcessor(dir);
}

/** Adapters stay one file, as PEFT has them. */
async function exportAdapter({ dir }: FoundCheckpoint, out: string, o: Resolved): Promise<void> {
  const stored = readTensors(dir, 'adapter_model');
  const mapping = [...stored.values()].map(({ name, shape, dtype, file }): TensorMapping => {
    if (!isFloatDtype(dtype))
      throw new TroupeError(
        'INVALID_MODEL',
        `[export] tensor ${name} in ${file}: expected F32, F16 or BF16, got ${dtype}`,
      );
    return asStored({ hf: name, shape });
  });
  await writeDirectory(out, async (temporary) => {
    const dtypeOf = chosen((name) => stored.get(name)?.dtype as FloatDtype, o);
    const plan = planWrite(temporary, 'adapter_model', mapping, dtypeOf, Number.POSITIVE_INFINITY);
    copyFileSync(path.join(dir, 'adapter_config.json'), path.join(temporary, 'adapter_config.json'));
    await streamTensors(plan.files, stored);
  });
}

/** W + scale B A is the core's work, in float32: of the weights as they are stored. */
async function exportMerged({ dir, role }: FoundCheckpoint, out: string, o: Resolved): Promise<void> {
  const create = role === 'actor' ? Actor.create : Critic.create;
  const engine = await create({
    model: o.base ?? baseOf(dir),
    dtype: 'float32',
    optim: null,
    lora: { adapter: dir },
    ...(o.readsImages ? { readsImages: true } : {}),
  });
  try {
    await saveModel(engine.engine, out, o.dtype ?? null, o.maxShardBytes);
  } finally {
    await engine.close();
  }
}

function baseOf(dir: string): string {
  const file = path.join(dir, 'adapter_config.json');
  const { base_model_name_or_path: base } = readObject(file, 'export');
  if (typeof base === 'string' && existsSync(path.join(base, 'config.json'))) return base;
  throw new TroupeError(
    'INVALID_MODEL',
    `[export] ${file}: base_model_name_or_path is ${JSON.stringify(base)}, and there is no model in that directory: name it with --base`,
  );
}

/** In place of what a tensor would be written in, what was asked for. */
const chosen =
  (usual: (name: string) => FloatDtype | undefined, o: Resolved) =>
  (name: string): FloatDtype =>
    o.dtype === undefined ? (usual(name) as FloatDtype) : DTYPES[o.dtype];
