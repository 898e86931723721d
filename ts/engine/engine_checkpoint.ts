import { existsSync, mkdirSync, statfsSync } from 'node:fs';
import path from 'node:path';
import { z } from 'zod';
import { asTroupeError, writeDirectory } from '../base/atomic_dir';
import { formatBytes } from '../base/byte_size';
import { counted } from '../base/text';
import { readObject } from '../checkpoint/json_object';
import { planLoad } from '../checkpoint/load_plan';
import { keptTensors } from '../checkpoint/model_dir';
import { planAdapterLoad, writeAdapterFiles } from '../checkpoint/peft_adapter';
import { readTensors } from '../checkpoint/safetensors';
import { writeJson, writeModelFiles } from '../checkpoint/save_files';
import { streamTensors } from '../checkpoint/stream_tensors';
import type { FloatDtype, WritePlan } from '../checkpoint/write_plan';
import { DEFAULT_SHARD_BYTES, planWrite } from '../checkpoint/write_plan';
import { oneToAll, rankZero } from '../controller/dispatch';
import { TroupeError } from '../errors';
import type { Lora } from '../model/adapter_sites';
import { decoderMapping, isPredictionLayer } from '../model/prediction_layers';
import type { TensorMapping } from '../model/tensor_mapping';
import type { NativeTensorFile, NativeTensorKind, NativeWeightBucket } from '../native/bridge';
import type { RoleEngine } from './role_engine';

// A checkpoint is a Hugging Face directory with float32 weights, plus
//   optimizer/exp_avg.safetensors, optimizer/exp_avg_sq.safetensors   moments under the weights' names; with Muon the first of those of
//                                                                     linear layers is their momentum, and they have no second
//   engine.json                                                       what else an engine remembers
// With adapters there are no full weights but lora_adapter/, as PEFT saves it; the frozen base is the model directory's.
// Tensors are found by name and rows, so any later layout of ranks can load it.

const FORMAT = 1;
const ADAPTER = 'lora_adapter';
const MOMENTS: readonly { kind: NativeTensorKind; base: string }[] = [
  { kind: 'expAvg', base: 'exp_avg' },
  { kind: 'expAvgSq', base: 'exp_avg_sq' },
];
const DTYPES: Readonly<Record<'float32' | 'bfloat16', FloatDtype>> = { float32: 'F32', bfloat16: 'BF16' };

const stateSchema = z.object({
  format: z.literal(FORMAT),
  role: z.string(),
  /** Steps that changed the weights, and update calls: the position in the learning-rate schedule. */
  optimizerSteps: z.number().int().min(0),
  scheduleSteps: z.number().int().min(0),
  optimizer: z.boolean(),
  /** Adapters instead of full weights. */
  adapter: z.boolean().default(false),
  /** With layers that predict further tokens as a part of what is trained. */
  mtp: z.boolean().default(false),
  /** Momentum of Muon in the place of AdamW's moments of linear layers. */
  muon: z.boolean().default(false),
});

/** Saves the weights as a Hugging Face directory, in one dtype or (null) each tensor in the dtype it was loaded in. */
export function saveModel(
  engine: RoleEngine,
  dir: string,
  dtype: 'float32' | 'bfloat16' | null,
  maxShardBytes = DEFAULT_SHARD_BYTES,
): Promise<void> {
  return writeDirectory(dir, (temporary) => writeModel(engine, temporary, dtype, maxShardBytes));
}

/** Saves the adapters in PEFT's format. */
export async function saveAdapter(engine: RoleEngine, dir: string): Promise<void> {
  engine.checkOpen();
  const { lora, role } = engine;
  if (lora === null) {
    throw new TroupeError(
      'INVALID_ARGUMENT',
      `[saveAdapter] the ${role} was created without the option lora and has no adapter: use saveModel`,
    );
  }
  await writeDirectory(dir, (temporary) => writeAdapter(engine, lora, temporary));
}

async function writeAdapter(engine: RoleEngine, lora: Lora, dir: string): Promise<void> {
  await exportFiles(engine, 'param', writeAdapterFiles(lora, engine.model, dir));
}

/** @throws TroupeError INVALID_ARGUMENT where the state has become another one between two of its parts: then nothing is saved */
export function saveCheckpoint(engine: RoleEngine, dir: string): Promise<void> {
  return writeDirectory(dir, async (temporary) => {
    const begun = await momentOf(engine);
    if (engine.lora === null) {
      await writeModel(engine, temporary, 'float32', DEFAULT_SHARD_BYTES);
    } else {
      mkdirSync(path.join(temporary, ADAPTER));
      await writeAdapter(engine, engine.lora, path.join(temporary, ADAPTER));
    }
    const { role } = engine;
    const optimizer = engine.options.optim !== null;
    if (optimizer) await writeMoments(engine, path.join(temporary, 'optimizer'));
    const ended = await momentOf(engine);
    if (JSON.stringify(ended) !== JSON.stringify(begun))
      throw new TroupeError(
        'INVALID_ARGUMENT',
        `[saveCheckpoint] the state of the ${role} has changed while it was saved, by an update or by other weights, and a part of what was written is of ` +
          'before: expected one call to end before the other begins; nothing was saved',
      );
    writeJson(path.join(temporary, 'engine.json'), {
      format: FORMAT,
      role,
      optimizer,
      adapter: engine.lora !== null,
      mtp: trainsPredictions(engine),
      muon: usesMuon(engine),
      optimizerSteps: ended.optimizerSteps,
      scheduleSteps: ended.scheduleSteps,
    });
  });
}

/**
 * Checks all of a checkpoint first and loads it then, so that one that does not fit leaves the engine as it was. After one whose bytes turn
 * out bad on the way (NaN, an unreadable disk) the engine refuses work until another one has been loaded; without optimiser state also an
 * import of all weights helps.
 */
export function loadCheckpoint(engine: RoleEngine, dir: string): Promise<void> {
  return engine.replaceWeights('loadCheckpoint', (touch) => replaceByCheckpoint(engine, dir, touch));
}

async function replaceByCheckpoint(engine: RoleEngine, dir: string, touch: () => void): Promise<void> {
  const file = path.join(dir, 'engine.json');
  if (!existsSync(file)) {
    throw new TroupeError(
      'INVALID_MODEL',
      `[checkpoint] ${dir} has no engine.json: expected a directory that saveCheckpoint wrote`,
    );
  }
  const parsed = stateSchema.safeParse(readObject(file, 'checkpoint'));
  if (!parsed.success) {
    const issue = parsed.error.issues[0];
    throw new TroupeError(
      'INVALID_MODEL',
      `[checkpoint] ${file}: ${issue?.path.join('.')}: ${issue?.message}`,
    );
  }
  const state = parsed.data;
  if (state.role !== engine.role) {
    throw new TroupeError(
      'INVALID_MODEL',
      `[checkpoint] ${dir} was saved by role '${state.role}', expected '${engine.role}'`,
    );
  }
  if (state.adapter !== (engine.lora !== null)) {
    const keys =
      engine.role === 'critic'
        ? 'critic.model.lora_rank'
        : 'actor_rollout_ref.model.lora_rank, of troupe sft model.lora_rank';
    const [saved, own] = state.adapter ? ['adapters', 'full weights'] : ['full weights', 'adapters'];
    throw new TroupeError(
      'INVALID_MODEL',
      `[checkpoint] ${dir} holds ${saved}, but the ${engine.role} trains ${own}: create it ${state.adapter ? 'with' : 'without'} the option lora (${keys}: ${state.adapter ? 'as it was saved with' : '0'})`,
    );
  }
  const loads: { kind: NativeTensorKind; files: NativeTensorFile[] }[] = [
    {
      kind: 'param',
      files: engine.lora
        ? planAdapterLoad(engine.lora, engine.model, path.join(dir, ADAPTER))
        : planLoad(dir, readTensors(dir), engine.model.mapping, {
            ignored: (hf) => isPredictionLayer(engine.model.config, hf),
          }).files,
    },
  ];
  if (engine.options.optim !== null) {
    if (!state.optimizer) {
      throw new TroupeError(
        'INVALID_MODEL',
        `[checkpoint] ${dir} holds no optimiser state: start from it with 'model' instead`,
      );
    }
    if (state.mtp !== trainsPredictions(engine)) {
      const [saved, own] = state.mtp ? ['trained', 'does not'] : ['did not train', 'does'];
      throw new TroupeError(
        'INVALID_MODEL',
        `[checkpoint] ${dir} was saved by an actor that ${saved} the layers that predict further tokens, and this one ${own}: create it ${state.mtp ? 'with' : 'without'} the option mtp (actor_rollout_ref.model.mtp.enable_train, of troupe sft model.mtp.enable_train: ${state.mtp}), or start from the checkpoint with 'model', without its optimiser state`,
      );
    }
    if (state.muon !== usesMuon(engine)) {
      const [saved, own] = state.muon ? ['Muon', 'AdamW'] : ['AdamW', 'Muon'];
      throw new TroupeError(
        'INVALID_MODEL',
        `[checkpoint] ${dir} holds moments of ${saved}, and the ${engine.role} learns by ${own}: create it ${state.muon ? 'with' : 'without'} the option optim.muon (optim.optimizer: ${state.muon ? 'muon' : 'AdamW'}), or start from the checkpoint with 'model', without its optimiser state`,
      );
    }
    const at = path.join(dir, 'optimizer');
    for (const { kind, base } of MOMENTS)
      loads.push({ kind, files: planLoad(at, readTensors(at, base), await momentsOf(engine, kind)).files });
  }
  touch();
  for (const { kind, files } of loads)
    await oneToAll(engine.group, engine.name, 'importTensors', [kind, files]);
  if (engine.options.optim !== null) {
    await oneToAll(engine.group, engine.name, 'setSteps', [state.optimizerSteps, state.scheduleSteps]);
  }
}

/** What is another one whenever a part of an engine's state is. Without an optimiser its weights, which are saved by one call, are all of it. */
async function momentOf({ group, name, options }: RoleEngine) {
  if (options.optim === null) return { weights: 0, optimizerSteps: 0, scheduleSteps: 0 };
  const nothing: NativeWeightBucket = { dtype: 'float32', chunks: [] };
  const { version: weights } = await rankZero(group, name, 'exportWeights', ['param', nothing, null, false]);
  return {
    weights,
    optimizerSteps: await rankZero(group, name, 'optimizerSteps', []),
    scheduleSteps: await rankZero(group, name, 'scheduleSteps', []),
  };
}

async function writeModel(
  engine: RoleEngine,
  dir: string,
  dtype: 'float32' | 'bfloat16' | null,
  maxShardBytes: number,
): Promise<void> {
  const { model } = engine;
  // A fresh value head has no dtype of its own: it takes that of its neighbours.
  const usual = model.dtypes.values().next().value ?? 'F32';
  const dtypeOf = (hf: string): FloatDtype =>
    dtype === null ? (model.dtypes.get(hf) ?? usual) : DTYPES[dtype];
  const mapping = [...model.mapping, ...model.copies];
  const plan = planWrite(dir, 'model', mapping, dtypeOf, maxShardBytes, keptTensors(model));
  try {
    writeModelFiles(model, dir, plan, dtype, engine.savedTokenizer);
  } catch (e) {
    throw asTroupeError(e, `write ${dir}`);
  }
  await exportFiles(engine, engine.exportKind, plan);
  await streamTensors(plan.kept, model.predictionLayers);
}

const usesMuon = ({ options }: RoleEngine): boolean => (options.optim?.muon ?? null) !== null;

const trainsPredictions = ({ predictions }: RoleEngine): boolean => predictions === 'trained';

/** What the optimiser works on, by its name in files. */
function trainedMapping({ lora, model, trainsTower, predictions }: RoleEngine): TensorMapping[] {
  if (lora !== null) return lora.mapping;
  const own = predictions === 'held' ? decoderMapping(model.config, model.mapping) : model.mapping;
  return own.filter((m) => !m.buffer && (trainsTower || !m.param.startsWith('vision.')));
}

/** Of what moments of a kind there are, by its name in files. */
async function momentsOf(engine: RoleEngine, kind: NativeTensorKind): Promise<TensorMapping[]> {
  const trained = trainedMapping(engine);
  if (!usesMuon(engine) || kind !== 'expAvgSq') return trained;
  const parameters = await rankZero(engine.group, engine.name, 'parameters', []);
  const matrices = new Set(parameters.filter(({ matrix }) => matrix).map(({ name }) => name));
  return trained.filter(({ param }) => !matrices.has(param));
}

async function writeMoments(engine: RoleEngine, dir: string): Promise<void> {
  mkdirSync(dir);
  for (const { kind, base } of MOMENTS) {
    const plan = planWrite(dir, base, await momentsOf(engine, kind), () => 'F32');
    if (plan.index !== null) writeJson(path.join(dir, `${base}.safetensors.index.json`), plan.index);
    await exportFiles(engine, kind, plan);
  }
}

/** Rank 0 creates the files, and every rank writes what it holds into them. */
async function exportFiles(engine: RoleEngine, kind: NativeTensorKind, plan: WritePlan): Promise<void> {
  const withoutHeaders = plan.files.map((file) => ({ ...file, header: new Uint8Array(0) }));
  const byRank = Array.from(
    { length: engine.group.worldSize },
    (_, rank): [NativeTensorKind, NativeTensorFile[]] => [kind, rank === 0 ? plan.files : withoutHeaders],
  );
  const room = roomFor(plan.files);
  try {
    await engine.group.callAll(engine.name, 'exportTensors', byRank);
  } catch (error) {
    if (!(error instanceof TroupeError) || error.code !== 'NO_SPACE') throw error;
    throw new TroupeError(error.code, `${error.message} (${room})`, { cause: error });
  }
}

/** How much files take, and how much there is for them now. */
function roomFor(files: readonly NativeTensorFile[]): string {
  const total = files.reduce((sum, { size }) => sum + size, 0);
  const what = `${counted(files.length, 'file')} of ${formatBytes(total)}`;
  try {
    const { bavail, bsize } = statfsSync(path.dirname((files[0] as NativeTensorFile).path));
    return `${what}, where ${formatBytes(bavail * bsize)} were free`;
  } catch {
    // Some file systems do not say.
    return what;
  }
}
