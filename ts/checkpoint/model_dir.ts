import { existsSync, statSync } from 'node:fs';
import path from 'node:path';
import { markFloats } from '../base/json_floats';
import { relativeTo } from '../base/relative_to';
import { show } from '../base/text';
import { TroupeError } from '../errors';
import { isUnusedKey } from '../model/gemma4_names';
import type { Head } from '../model/hf_config';
import { resolveModelConfig } from '../model/hf_config';
import { scaleLayouts } from '../model/hf_quantization';
import { readImageProcessor } from '../model/image_processor';
import {
  isPredictionLayer,
  type PredictionUse,
  predictionCopies,
  withPredictions,
} from '../model/prediction_layers';
import type { TensorMapping } from '../model/tensor_mapping';
import { hasFirstNames, publishedName, tensorMapping, valueHeadName } from '../model/tensor_names';
import { hasOtherParts, textPart, textTensorName } from '../model/text_part';
import type { NativeModelConfig, NativeTensorFile, NativeVisionConfig } from '../native/bridge';
import { type Fp8Tensors, withFp8 } from './fp8';
import { parseObject, readObject, readText } from './json_object';
import { planLoad } from './load_plan';
import { withMxfp4 } from './mxfp4';
import { insteadOfModel } from './no_model';
import { isPacked } from './packed_tensor';
import type { StoredTensor } from './safetensors';
import { readTensors } from './safetensors';
import { LM_HEAD, tiedTensors } from './tied_head';
import type { FloatDtype, StoredTensorShape } from './write_plan';
import { isFloatDtype } from './write_plan';

/** A Hugging Face directory, read and checked up to, but not including, the tensors' bytes. */
export interface LoadedModel {
  dir: string;
  /** config.json, or its text part, as it is but for a head that the files do not tie, floats marked (base/json_floats.ts). */
  raw: Record<string, unknown>;
  config: NativeModelConfig;
  mapping: TensorMapping[];
  /** What `importTensors` takes to fill the parameters. */
  files: NativeTensorFile[];
  /** Where the tensors lie, by Hugging Face name. */
  stored: ReadonlyMap<string, StoredTensor>;
  /** Of a causal LM: layers that predict further tokens (MTP) and are no part of the engine. They are saved beside it as they are. */
  predictionLayers: ReadonlyMap<string, StoredTensor>;
  /** Of such layers that are a part of it: tensors of the files that are equal to another one, and are saved again as that is. */
  copies: TensorMapping[];
  /** What each tensor of both is saved in, by Hugging Face name: its own dtype, bfloat16 for packed ones. */
  dtypes: Map<string, FloatDtype>;
  /** generation_config.json's eos ids, else config.json's. */
  eosTokenIds: number[];
  /** The files hold a head that differs from the embedding, though config.json ties them. */
  ownHead: boolean;
  /** The value head is not in the files and starts from its initial values. */
  freshHead: boolean;
  /** Tensors of the files that make no difference here: scales of activations, and of keys and values in a cache. */
  unusedScales: string[];
}

/** How a model directory is read. */
export interface ModelReading {
  /** In place of config.json's; null: those. */
  maxPositionEmbeddings?: number | null;
  /** With the tower for images, where the language model is a model of its own (Qwen3.5) and is read alone otherwise. */
  readsImages?: boolean;
  /** With the layers that predict further tokens as a part of it; null: without. */
  predictions?: PredictionUse | null;
}

/**
 * Reads a model directory for a causal LM (`head: 'lm'`) or a critic (`'value'`). A critic may start from a causal LM: its
 * `lm_head.weight` is left out and the value head starts fresh. Throws INVALID_MODEL naming file, key or tensor.
 */
export function loadModelDirectory(
  dir: string,
  head: Head,
  { maxPositionEmbeddings = null, readsImages = false, predictions = null }: ModelReading = {},
): LoadedModel {
  const configFile = configOf(dir);
  const text = readText(configFile, 'model');
  const whole = parseObject(text, configFile, 'model');
  const read = withPositions(textPart(whole, readsImages), maxPositionEmbeddings, configFile);
  const { native, eosTokenIds } = resolveModelConfig(read, head, configFile, readsImages);
  const config = predictions === null ? native : withPredictions(native, read, configFile, predictions);
  const { tensors, unused: unusedScales } = quantizedIn(readTensors(dir), config, read);
  const { stored, own: ownHead } = named(dir, tensors, config, hasOtherParts(whole, readsImages));
  if (ownHead) config.tiedEmbeddings = false;
  if (config.vision !== null) withPixels(config.vision, dir);
  if (config.prediction !== null && ![...stored.keys()].some((hf) => isPredictionLayer(config, hf)))
    throw new TroupeError(
      'INVALID_MODEL',
      `[model] ${dir} holds none of the layers that predict further tokens, which transformers leaves out where it saves a model: expected the files as they were published, to train them (mtp.enable_train) or to draft with them (speculative_config.method mtp)`,
    );
  const scoreName = valueHeadName(config.family);
  const freshHead = head === 'value' && !stored.has(`${scoreName}.weight`);
  // A value head without a bias, as sequence classification has it, stays without one.
  if (head === 'value' && !freshHead) config.valueBias &&= stored.has(`${scoreName}.bias`);
  const mapping = tensorMapping(config, stored);
  const { files, found } = planLoad(dir, stored, mapping, {
    optional: (hf) => freshHead && hf.startsWith(`${scoreName}.`),
    ignored: (hf) =>
      (hf === LM_HEAD && (head === 'value' || config.tiedEmbeddings)) ||
      isPredictionLayer(config, hf) ||
      isUnusedKey(config, hf),
  });
  const predicting = head === 'lm' ? predictionLayersOf(dir, stored, config) : new Map();
  const copies = copiesIn(dir, stored, config, mapping);
  const predictionLayers = config.prediction === null ? predicting : new Map();
  const marked = textPart(parseObject(markFloats(text), configFile, 'model'), readsImages);
  const raw = withPositions(marked, maxPositionEmbeddings, configFile);
  return {
    dir,
    raw: ownHead ? untied(raw) : raw,
    config,
    mapping,
    ownHead,
    files,
    stored: found,
    predictionLayers,
    copies,
    dtypes: dtypesOf([...found, ...predicting]),
    eosTokenIds: generationEos(dir) ?? eosTokenIds,
    freshHead,
    unusedScales,
  };
}

/** What is saved of a model beside what is trained, by name and shape. */
export const keptTensors = ({ predictionLayers }: LoadedModel): StoredTensorShape[] =>
  [...predictionLayers].map(([hf, { shape }]) => ({ hf, shape }));

/** Bytes of pixels become numbers as the directory says it. */
function withPixels(vision: NativeVisionConfig, dir: string): void {
  const { mean, std, patchSize, mergeSize, temporalPatchSize } = readImageProcessor(dir);
  if (patchSize !== vision.patchSize || mergeSize !== vision.mergeSize)
    throw new TroupeError(
      'INVALID_MODEL',
      `[model] ${dir}: its image processor makes patches of ${patchSize} pixels and tokens of ${mergeSize} x ${mergeSize} of them, its config.json ` +
        `expects ${vision.patchSize} and ${vision.mergeSize} x ${vision.mergeSize}`,
    );
  if (temporalPatchSize !== null && temporalPatchSize !== vision.temporalPatchSize)
    throw new TroupeError(
      'INVALID_MODEL',
      `[model] ${dir}: its image processor makes patches of ${temporalPatchSize} frames (temporal_patch_size), its config.json expects ` +
        `${vision.temporalPatchSize}`,
    );
  vision.pixelMean = mean;
  vision.pixelStd = std;
}

/** What {@link loadModelDirectory} says of it, without a look at the tensors. */
export function readEosTokenIds(dir: string): number[] {
  const file = configOf(dir);
  return generationEos(dir) ?? resolveModelConfig(readObject(file, 'model'), 'lm', file).eosTokenIds;
}

function configOf(dir: string): string {
  const configFile = path.join(dir, 'config.json');
  if (!existsSync(dir) || !statSync(dir).isDirectory()) {
    throw new TroupeError(
      'INVALID_MODEL',
      `[model] expected a Hugging Face model directory, but ${dir}${relativeTo(dir)} is not a directory`,
    );
  }
  const instead = insteadOfModel(dir);
  if (instead === null) return configFile;
  throw new TroupeError(
    'INVALID_MODEL',
    `[model] ${dir}${relativeTo(dir)} has no config.json of a model: expected a Hugging Face model directory${instead}`,
  );
}

/** With what the files have quantised as one tensor each. */
function quantizedIn(
  all: ReadonlyMap<string, StoredTensor>,
  { family }: NativeModelConfig,
  raw: Record<string, unknown>,
): Fp8Tensors {
  const own = family === 'gpt_oss' ? withMxfp4(all) : new Map(all);
  const layouts = scaleLayouts(raw);
  return layouts.length === 0 ? { tensors: own, unused: [] } : withFp8(own, layouts);
}

function named(
  dir: string,
  all: ReadonlyMap<string, StoredTensor>,
  config: NativeModelConfig,
  otherParts: boolean,
): ReturnType<typeof tiedTensors> {
  const nameOf = otherParts ? textTensorName : hasFirstNames(config) ? publishedName : null;
  const stored = nameOf === null ? all : renamed(dir, all, nameOf);
  const embedding = tensorMapping(config).find(({ param }) => param === 'embed.weight');
  return config.tiedEmbeddings && embedding !== undefined
    ? tiedTensors(stored, embedding.hf)
    : { stored, own: false };
}

/** Those that have a name in the model that is read, under that one. */
function renamed(
  dir: string,
  all: ReadonlyMap<string, StoredTensor>,
  nameOf: (hf: string) => string | null,
): Map<string, StoredTensor> {
  const own = new Map<string, StoredTensor>();
  for (const [hf, tensor] of all) {
    const name = nameOf(hf);
    if (name === null) continue;
    const other = own.get(name);
    if (other !== undefined)
      throw new TroupeError(
        'INVALID_MODEL',
        `[model] the tensors ${show(other.name)} and ${show(hf)} of ${dir} are both ${show(name)} of the model: expected one of them`,
      );
    own.set(name, tensor);
  }
  return own;
}

/** Also of the decoder beside a tower, which may say it, too. */
function untied(raw: Record<string, unknown>): Record<string, unknown> {
  const text = raw['text_config'];
  const says = typeof text === 'object' && text !== null && 'tie_word_embeddings' in text;
  return {
    ...raw,
    tie_word_embeddings: false,
    ...(says ? { text_config: { ...text, tie_word_embeddings: false } } : {}),
  };
}

/** As if config.json, or what is read of it, said so. Positions that are weights can only be as many as there are. */
export function withPositions(
  raw: Record<string, unknown>,
  positions: number | null,
  file: string,
): Record<string, unknown> {
  if (positions === null) return raw;
  if (raw['model_type'] === 'gpt2') {
    throw new TroupeError(
      'INVALID_MODEL',
      `[model] max_position_embeddings ${positions} in place of that of ${file}: expected a model with rotary positions, but those of ` +
        `${show(raw['model_type'])} are weights`,
    );
  }
  const text = raw['text_config'];
  if (typeof text === 'object' && text !== null)
    return { ...raw, text_config: { ...text, max_position_embeddings: positions } };
  return { ...raw, max_position_embeddings: positions };
}

function predictionLayersOf(
  dir: string,
  stored: ReadonlyMap<string, StoredTensor>,
  config: NativeModelConfig,
): ReadonlyMap<string, StoredTensor> {
  const layers = [...stored].filter(([hf]) => isPredictionLayer(config, hf));
  const other = layers.find(([, tensor]) => !isFloatDtype(tensor.dtype) && !isPacked(tensor))?.[1];
  if (other === undefined) return new Map(layers);
  throw new TroupeError(
    'INVALID_MODEL',
    `[model] the tensor ${show(other.name)} of ${dir}, of a layer that predicts further tokens, is ${show(other.dtype)}: expected F32, F16, BF16, or F8_E4M3 with scales`,
  );
}

/** Those of layers that are trained. */
function copiesIn(
  dir: string,
  stored: ReadonlyMap<string, StoredTensor>,
  config: NativeModelConfig,
  mapping: readonly TensorMapping[],
): TensorMapping[] {
  if (config.prediction === null) return [];
  return predictionCopies(config)
    .filter(({ hf }) => stored.has(hf))
    .map(({ hf, param }) => {
      const of = mapping.find((entry) => entry.param === param) as TensorMapping;
      const { shape } = stored.get(hf) as StoredTensor;
      if (shape.join() === of.shape.join()) return { ...of, hf };
      throw new TroupeError(
        'INVALID_MODEL',
        `[model] the tensor ${show(hf)} of ${dir} is [${shape.join(', ')}]: expected a copy of ${of.hf} [${of.shape.join(', ')}]`,
      );
    });
}

function dtypesOf(tensors: readonly (readonly [string, StoredTensor])[]): Map<string, FloatDtype> {
  const dtypes = new Map<string, FloatDtype>();
  for (const [hf, tensor] of tensors) {
    if (isPacked(tensor)) dtypes.set(hf, 'BF16');
    else if (isFloatDtype(tensor.dtype)) dtypes.set(hf, tensor.dtype);
  }
  return dtypes;
}

function generationEos(dir: string): number[] | null {
  const file = path.join(dir, 'generation_config.json');
  if (!existsSync(file)) return null;
  const eos = readObject(file, 'model').eos_token_id;
  if (eos === undefined || eos === null) return null;
  const ids: unknown[] = Array.isArray(eos) ? eos : [eos];
  if (!ids.every((id) => Number.isSafeInteger(id)))
    throw new TroupeError(
      'INVALID_MODEL',
      `[model] ${file}: eos_token_id: expected a token id, or an array of them, but got ${show(eos)}: put it right, or take the key away to use that of config.json`,
    );
  return ids.length > 0 ? (ids as number[]) : null;
}
