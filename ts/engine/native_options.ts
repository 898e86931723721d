// What the workers' engines get of an engine's options.
import { badOption } from '../base/check_options';
import type { LoadedModel } from '../checkpoint/model_dir';
import { type Device, deviceOfWorkers, machineOf } from '../controller/default_device';
import type { WorkerGroup } from '../controller/worker_group';
import type { Lora } from '../model/adapter_sites';
import type { NativeEngineOptions } from '../native/bridge';
import type { EngineOptions, ResolvedEngineOptions } from './engine_options';

/** Tokens of a micro-batch. */
const DEFAULT_CAPACITY = { cpu: 4096, cuda: 16384 };

/**
 * Where the engine runs, decided before a worker is started: which GPU it sees, how many threads it has and how it talks to the others
 * follow from it.
 */
export function deviceOf(
  where: string,
  o: EngineOptions,
  { device, worldSize }: ResolvedEngineOptions,
): Device {
  if (o.group === undefined) return deviceOfWorkers(where, device, worldSize, machineOf(o.launcher));
  if (device === null || device === o.group.device) return o.group.device;
  throw badOption(
    where,
    `device '${device}': the workers of the given group were started for '${o.group.device}': leave it out, or launch the group with it`,
  );
}

export function nativeOptions(
  group: WorkerGroup,
  device: Device,
  o: ResolvedEngineOptions,
  model: LoadedModel,
  lora: Lora | null,
): NativeEngineOptions {
  const info = group.buildInfo();
  if (device === 'cuda' && !(info.cuda && info.deviceCount > 0)) {
    const why = info.cuda ? 'the worker sees no GPU' : 'the native build has no CUDA support';
    throw badOption(
      o.name,
      `device 'cuda': ${why}; run 'troupe doctor' to see what was found, or give device 'cpu'`,
    );
  }
  return {
    model: model.config,
    device,
    dtype: o.dtype ?? (device === 'cuda' ? 'bfloat16' : 'float32'),
    masterDtype: o.masterDtype,
    maxTokens: o.maxTokens ?? DEFAULT_CAPACITY[device],
    gradientCheckpointing: o.gradientCheckpointing,
    activationOffload: o.activationOffload,
    optim: o.optim,
    lora: lora?.native ?? null,
    prediction: o.mtp?.training ?? null,
    seed: o.seed,
    numThreads: o.numThreads,
    sharding: o.sharding,
    shardSize: o.shardSize,
    ulysses: o.ulysses,
    parallel: o.parallel,
    pipeline: o.pipeline,
    prefetch: o.prefetch,
    reduction: o.reduction,
    reduceDtype: o.reduceDtype,
    offload: o.offload,
  };
}
