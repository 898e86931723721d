// What of a role the engine is asked for: its options on one rank, and the work of its verbs.
import { storedSlice } from '../checkpoint/load_plan';
import type { StoredTensor } from '../checkpoint/safetensors';
import { floatBytes } from '../checkpoint/write_plan';
import { resolveSchedule } from '../engine/schedule_options';
import type { TensorMapping } from '../model/tensor_mapping';
import { fileTensors, tensorMapping } from '../model/tensor_names';
import type {
  NativeEngineOptions,
  NativeImageLoad,
  NativeMemoryWork,
  NativeSequenceLoad,
  NativeTensorFile,
} from '../native/bridge';
import { rowParts } from './places';
import type { Load, PlanSpec, RoleSpec, RolloutShape } from './plan';
import { imagesWithin } from './prompt_images';

/** AdamW's defaults: they change no shape. */
const OPTIM: NonNullable<NativeEngineOptions['optim']> = {
  lr: 1e-6,
  beta1: 0.9,
  beta2: 0.999,
  eps: 1e-8,
  weightDecay: 0.01,
  gradClip: 1,
  schedule: resolveSchedule('', {}),
  muon: null,
};

export function engineOptions(
  role: RoleSpec,
  { worldSize, threads }: Pick<PlanSpec, 'worldSize' | 'threads'>,
): NativeEngineOptions {
  const { shardSize, capacity, ulysses, layout } = role;
  const dataRanks = worldSize / (layout.parallel.tp * layout.pipeline.stages);
  return {
    model: role.model,
    device: 'cpu',
    dtype: role.dtype,
    masterDtype: role.masterDtype,
    maxTokens: capacity * rowParts(role),
    gradientCheckpointing: role.gradientCheckpointing,
    activationOffload: role.activationOffload,
    optim: role.update === null ? null : { ...OPTIM, muon: role.muon ?? null },
    lora: role.lora?.native ?? null,
    prediction: null, // its defaults: the loss's weight changes no shape
    seed: 0,
    numThreads: threads,
    sharding: role.strategy,
    shardSize: shardSize === null || shardSize >= dataRanks ? 0 : shardSize,
    ulysses,
    ...layout,
    ...role.placement,
  };
}

/**
 * What is asked of a role: all verbs, with the longest responses; of a model that reads images the passes once more with responses of one
 * token, among which most prompts, and so most images, are in a micro-batch. What is between the two takes no more than one of them.
 */
export function memoryWorks(role: RoleSpec): NativeMemoryWork[] {
  const work = memoryWork(role);
  if (role.images === undefined) return [work];
  const short = (load: Load | null): Load | null => load && shortResponses(load);
  const passes = { ...role, inference: short(role.inference), update: short(role.update), rollouts: [] };
  return [work, memoryWork(passes)];
}

/** One for each prompt, because those with the same prompt have its images once. */
const shortResponses = ({ sequences, samples = 1, ...load }: Load): Load => ({
  ...load,
  sequences: Math.ceil(sequences / samples),
  longest: promptOf(load) + 1,
  response: 1,
});

export const promptOf = ({
  longest,
  response,
  prompt = longest - response,
}: Omit<Load, 'sequences'>): number => prompt;

/** All verbs of a role, with weights in files of the dtypes that are there. No sequence is longer than the model's positions, whatever a configuration allows. */
export function memoryWork(role: RoleSpec): NativeMemoryWork {
  const [shape] = role.rollouts;
  const { teacherTokens: topK = 0, routing = 'none', routerLosses } = role;
  return {
    load: [weightFile(role)],
    inference: sequenceLoad(role, role.inference),
    topK: role.name === 'teacher' ? topK : 0,
    update: sequenceLoad(role, role.update),
    loss: {
      kl: role.name === 'actor',
      topK: role.name === 'actor' ? topK : 0,
      routerBalance: routerLosses?.balance === true,
      routerZ: routerLosses?.z === true,
    },
    routing,
    rollouts: role.rollouts.map(({ verb, prompts, n, ...shape }) => {
      const { prompt, response } = generatedLengths(role, shape);
      return { verb, prompts, n, prompt, response, images: imagesOf(role, prompt) };
    }),
    limits: {
      maxSequences: shape?.maxSequences ?? 1,
      maxStepTokens: shape?.maxStepTokens ?? 1,
      kvCacheBytes: shape?.kvCacheBytes ?? 0,
      tensorParallel: shape?.tensorParallel ?? 1,
      quantization: shape?.quantization ?? 'none',
      latentCache: shape?.latentCache ?? false,
      routedExperts: routing === 'given' && shape !== undefined,
      predicts: shape?.predicts ?? false,
    },
  };
}

/** The longest responses, each with keys and values of its own; before a model that reads images the longest prompts, of which all may be images. */
function generatedLengths(
  { images, model }: RoleSpec,
  {
    longest,
    promptLength,
    responseLength,
  }: Pick<RolloutShape, 'longest' | 'promptLength' | 'responseLength'>,
): { prompt: number; response: number } {
  const most = Math.min(longest, model.maxPositions);
  if (images !== undefined) {
    const prompt = Math.min(promptLength, most - 1);
    return { prompt, response: Math.min(responseLength, most - prompt) };
  }
  const response = Math.min(responseLength, most - 1);
  return { prompt: Math.min(promptLength, most - response), response };
}

export function sequenceLoad(role: RoleSpec, load: Load | null): NativeSequenceLoad {
  if (load === null) return { count: 0, length: 0, response: 0, images: [] };
  const length = Math.min(load.longest, role.model.maxPositions);
  const response = Math.min(load.response, length - 1);
  return { count: load.sequences, length, response, images: imagesOf(role, length - response) };
}

/** Of a prompt of so many tokens. */
const imagesOf = ({ images }: RoleSpec, prompt: number): NativeImageLoad[] =>
  images === undefined ? [] : imagesWithin(prompt, images);

/** What is read, as one file. */
export function weightFile({ model, stored }: RoleSpec): NativeTensorFile {
  let size = 0;
  const tensors = fileTensors(tensorMapping(model, stored)).flatMap((parts) => {
    const [whole] = parts;
    const tensor = placed(stored?.get(whole.hf) ?? inBfloat16(whole), size);
    size += tensor.bytes + (tensor.packing?.scales.bytes ?? 0);
    return parts.map((part) => storedSlice(part, tensor));
  });
  return { path: '', header: new Uint8Array(), size, tensors };
}

function inBfloat16({ hf, shape }: TensorMapping): StoredTensor {
  const bytes = shape.reduce((all, extent) => all * extent, floatBytes('BF16'));
  return { name: hf, file: '', dtype: 'BF16', shape, offset: 0, bytes, fileSize: 0 };
}

/** In the one file, with its scales behind it. */
function placed({ packing, ...tensor }: StoredTensor, offset: number): StoredTensor {
  const own = { ...tensor, file: '', offset };
  if (packing === undefined) return own;
  return { ...own, packing: { ...packing, scales: placed(packing.scales, offset + tensor.bytes) } };
}
