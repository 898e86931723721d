// The functions of the native addon; bridge_data.ts, bridge_model.ts, bridge_losses.ts, bridge_rollout.ts and bridge_simulation.ts have what goes in and comes out.
// Internal and unversioned: defaults and validation belong to the public API above it.
import type {
  NativeBuildInfo,
  NativeEngineOptions,
  NativeExportedWeights,
  NativeGroupOptions,
  NativeHeadInputs,
  NativeHeadResult,
  NativeLogProbResult,
  NativeMemoryInfo,
  NativeMiniBatches,
  NativeParameterInfo,
  NativePolicyBatch,
  NativeProfileOptions,
  NativeSftBatch,
  NativeStateBytes,
  NativeStateKinds,
  NativeTensorFile,
  NativeTensorKind,
  NativeTokenBatch,
  NativeValueBatch,
  NativeWeightBucket,
} from './bridge_data';
import type {
  NativeMetrics,
  NativePolicyLossInputs,
  NativePolicyLossOptions,
  NativePolicyLossResult,
  NativeSftLossOptions,
  NativeValueLossInputs,
  NativeValueLossOptions,
  NativeValueLossResult,
} from './bridge_losses';
import type {
  NativeRolloutCommands,
  NativeRolloutOptions,
  NativeRolloutStats,
  NativeRolloutTurn,
} from './bridge_rollout';
import type {
  NativeMemoryWork,
  NativeSequenceLoad,
  NativeSimulatedMemory,
  NativeSimulation,
} from './bridge_simulation';

export type * from './bridge_data';
export type * from './bridge_losses';
export type * from './bridge_model';
export type * from './bridge_rollout';
export type * from './bridge_simulation';

/** Opaque; a wrong or closed handle is an error, never memory corruption. */
export type NativeEngine = object & { readonly __engine: unique symbol };

export interface NativeBinding {
  buildInfo(): NativeBuildInfo;
  memoryInfo(): NativeMemoryInfo;
  /** Once per process, before the first engine: keep freed memory in the process (glibc mallopt). */
  keepFreedMemory(): void;

  /** Rank 0: serves the meeting point of a group and returns its port. */
  openRendezvous(): Promise<number>;
  /** Every rank, at the same time: the group of all engines made with `sharding` from now on. */
  joinGroup(options: NativeGroupOptions): Promise<null>;

  createEngine(options: NativeEngineOptions): Promise<NativeEngine>;
  /** Needs no group: the other ranks are not there. */
  simulateUpdate(
    options: NativeEngineOptions,
    rank: number,
    size: number,
    load: NativeSequenceLoad,
    gpu: boolean,
  ): Promise<NativeSimulation>;
  /** Counts this process's allocations from then on: of a process of its own. `gpu`: of a GPU, of which none is needed. */
  simulateMemory(
    options: NativeEngineOptions,
    rank: number,
    size: number,
    work: NativeMemoryWork,
    gpu: boolean,
  ): Promise<NativeSimulatedMemory>;
  parameters(engine: NativeEngine): Promise<NativeParameterInfo[]>;
  importTensors(engine: NativeEngine, kind: NativeTensorKind, files: NativeTensorFile[]): Promise<null>;
  exportTensors(engine: NativeEngine, kind: NativeTensorKind, files: NativeTensorFile[]): Promise<null>;
  /** A bucket of an export: `version` is that of its first bucket, null for that one; `more`: another follows. */
  exportWeights(
    engine: NativeEngine,
    kind: NativeTensorKind,
    bucket: NativeWeightBucket,
    version: number | null,
    more: boolean,
  ): Promise<NativeExportedWeights>;
  /** bytes: on rank 0, which sends them to the others; null on those. */
  importWeights(engine: NativeEngine, bucket: NativeWeightBucket, bytes: Uint8Array | null): Promise<null>;
  getTensor(engine: NativeEngine, kind: NativeTensorKind, param: string): Promise<Float32Array>;

  stateBytes(engine: NativeEngine): Promise<NativeStateBytes>;
  /** Bytes that this rank has sent in collectives: its group's, which engines share, and the engine's own. */
  bytesSent(engine: NativeEngine): Promise<number>;
  /** To the host, from where it comes group by group for its use, or back to the device. */
  offload(engine: NativeEngine, kinds: NativeStateKinds): Promise<null>;
  onload(engine: NativeEngine, kinds: NativeStateKinds): Promise<null>;

  computeLogProb(
    engine: NativeEngine,
    batch: NativeTokenBatch,
    temperature: number,
    entropy: boolean,
    sumPiSquared: boolean,
    disableAdapters: boolean,
    recordExperts: boolean,
    topK: number,
  ): Promise<NativeLogProbResult>;
  updatePolicy(
    engine: NativeEngine,
    batch: NativePolicyBatch,
    mini: NativeMiniBatches,
    loss: NativePolicyLossOptions,
    temperature: number,
  ): Promise<NativeMetrics[]>;
  computeValues(engine: NativeEngine, batch: NativeTokenBatch): Promise<Float32Array>;
  updateCritic(
    engine: NativeEngine,
    batch: NativeValueBatch,
    mini: NativeMiniBatches,
    loss: NativeValueLossOptions,
  ): Promise<NativeMetrics[]>;
  updateSft(
    engine: NativeEngine,
    batch: NativeSftBatch,
    mini: NativeMiniBatches,
    loss: NativeSftLossOptions,
  ): Promise<NativeMetrics[]>;
  /** Once per engine, every rank at the same time; see Engine::open_rollout. */
  openRollout(engine: NativeEngine, options: NativeRolloutOptions): Promise<NativeRolloutStats>;
  /** All ranks together: the weights as steps need them, until another verb begins. */
  beginRollout(engine: NativeEngine, version: number): Promise<null>;
  /** As parkRollout: every rank of those that generate together. */
  rolloutTurn(engine: NativeEngine, commands: NativeRolloutCommands): Promise<NativeRolloutTurn>;
  /** preempt: what is running gives its part of the cache back, too, and is computed again later. */
  parkRollout(engine: NativeEngine, preempt: boolean): Promise<null>;
  /** Steps that changed the weights. */
  optimizerSteps(engine: NativeEngine): Promise<number>;
  /** Update calls: the position in the learning-rate schedule. */
  scheduleSteps(engine: NativeEngine): Promise<number>;
  setSteps(engine: NativeEngine, optimizerSteps: number, scheduleSteps: number): Promise<null>;
  learningRate(engine: NativeEngine): Promise<number>;

  /** Records the calls from then on, one profile at a time in a process. */
  startProfile(options: NativeProfileOptions): Promise<null>;
  /** Writes a Chrome trace; null: what was recorded is lost. */
  stopProfile(path: string | null): Promise<null>;
  /** A named range of the profile around the calls until leaveRange; nothing without a profile. */
  enterRange(name: string): Promise<null>;
  leaveRange(): Promise<null>;

  policyLoss(
    inputs: NativePolicyLossInputs,
    options: NativePolicyLossOptions,
  ): Promise<NativePolicyLossResult>;
  valueLoss(inputs: NativeValueLossInputs, options: NativeValueLossOptions): Promise<NativeValueLossResult>;
  linearLogProb(inputs: NativeHeadInputs): Promise<NativeHeadResult>;

  /** Bypasses the queue; see Engine::abort. */
  abort(engine: NativeEngine, reason: string): void;
  /** Waits for queued work of this engine, then frees it. Idempotent. */
  close(engine: NativeEngine): Promise<null>;
}
