import { ConfigError, type ErrorCode, TroupeError } from '../errors';
import type { NativeBinding, NativeBuildInfo, NativeEngine, NativeEngineOptions } from '../native/bridge';
import type { RolloutCommands, RolloutTurn, TakenResponses } from './kept_responses';
import type { ProfileOrder, WorkerTrace } from './profiling';

// What a worker process and its controller say to each other. Every message is one member of a union,
// discriminated by `type`; typed arrays travel as they are (see frames.ts).

/** What an engine does for its controller: functions of the binding, and those that the worker adds or stands in front of (engine_host.ts). */
export interface WorkerFunctions extends Omit<NativeBinding, 'rolloutTurn'> {
  rolloutTurn(engine: NativeEngine, commands: RolloutCommands): Promise<RolloutTurn>;
  /** The responses of a batch, once it has ended; the worker has them no longer. */
  takeRollout(engine: NativeEngine, firstId: number): Promise<TakenResponses>;
  /** Those of a batch that nobody wants. */
  dropRollout(engine: NativeEngine, firstId: number): Promise<null>;
  /** What engines do from here on is recorded. */
  beginProfile(order: ProfileOrder): Promise<null>;
  /** What was recorded; none unless it is to be kept. */
  endProfile(keep: boolean): Promise<WorkerTrace[]>;
}

/** Functions that take an engine, apart from those that end its life. */
export type EngineMethod = Exclude<
  {
    [M in keyof WorkerFunctions]: WorkerFunctions[M] extends (
      engine: NativeEngine,
      ...rest: never[]
    ) => unknown
      ? M
      : never;
  }[keyof WorkerFunctions],
  'abort' | 'close' | 'buildInfo' | 'memoryInfo' | 'keepFreedMemory' | 'openRendezvous' | 'leaveRange'
>;
// A map, because the compiler cannot look into a conditional type over a type parameter.
type EngineArgsMap = {
  [M in EngineMethod]: Parameters<WorkerFunctions[M]> extends [NativeEngine, ...infer Rest] ? Rest : never;
};
export type EngineArgs<M extends EngineMethod> = EngineArgsMap[M];
export type EngineResult<M extends EngineMethod> = Awaited<ReturnType<WorkerFunctions[M]>>;

/** Functions that need no engine. */
export type BindingMethod =
  | 'buildInfo'
  | 'memoryInfo'
  | 'openRendezvous'
  | 'joinGroup'
  | 'simulateUpdate'
  | 'simulateMemory'
  | 'policyLoss'
  | 'valueLoss'
  | 'beginProfile'
  | 'endProfile';
export type BindingArgs<M extends BindingMethod> = Parameters<WorkerFunctions[M]>;
export type BindingResult<M extends BindingMethod> = Awaited<ReturnType<WorkerFunctions[M]>>;

// Written as records so that the compiler notices a method that is missing here.
const engineMethods: Record<EngineMethod, true> = {
  parameters: true,
  importTensors: true,
  exportTensors: true,
  exportWeights: true,
  importWeights: true,
  getTensor: true,
  stateBytes: true,
  bytesSent: true,
  offload: true,
  onload: true,
  computeLogProb: true,
  updatePolicy: true,
  computeValues: true,
  updateCritic: true,
  updateSft: true,
  openRollout: true,
  beginRollout: true,
  rolloutTurn: true,
  takeRollout: true,
  dropRollout: true,
  parkRollout: true,
  optimizerSteps: true,
  scheduleSteps: true,
  setSteps: true,
  learningRate: true,
};
const bindingMethods: Record<BindingMethod, true> = {
  buildInfo: true,
  memoryInfo: true,
  openRendezvous: true,
  joinGroup: true,
  simulateUpdate: true,
  simulateMemory: true,
  policyLoss: true,
  valueLoss: true,
  beginProfile: true,
  endProfile: true,
};

export function isEngineMethod(name: string): name is EngineMethod {
  return Object.hasOwn(engineMethods, name);
}

export function isBindingMethod(name: string): name is BindingMethod {
  return Object.hasOwn(bindingMethods, name);
}

/** Work for a worker: each is answered by one `result` or `error` with its requestId, in order. */
export type WorkRequest =
  | { type: 'createEngine'; requestId: number; engine: string; options: NativeEngineOptions }
  | {
      type: 'callEngine';
      requestId: number;
      engine: string;
      method: string;
      args: unknown[];
      /** The arrays of the answer have their place already (message_arrays.ts). */
      answerLands?: boolean;
    }
  | { type: 'closeEngine'; requestId: number; engine: string }
  | { type: 'callBinding'; requestId: number; method: string; args: unknown[] };

export type ControllerMessage =
  /** Answers `hello`: the worker now loads the native addon. */
  | { type: 'welcome'; heartbeatMs: number }
  /** Answers `hello`, too; the connection ends. */
  | { type: 'refused'; reason: string }
  | { type: 'heartbeat' }
  | WorkRequest
  /** Overtakes queued work: ends the running call of every engine with ABORTED. */
  | { type: 'abort'; reason: string }
  /** Behind queued work: close the engines and exit. */
  | { type: 'shutdown' };

export type WorkerMessage =
  /** The first message on a stream. */
  | { type: 'hello'; rank: number; pid: number }
  /** The addon is loaded: requests are served from now on. */
  | { type: 'ready'; buildInfo: NativeBuildInfo }
  /** `busyMs`: for which its engine computed since the last answer that said so, or wanted to; the rest it waited. */
  | { type: 'result'; requestId: number; value: unknown; lands?: true; busyMs?: number }
  /** requestId null: the worker could not start and exits. */
  | { type: 'error'; requestId: number | null; error: WireError }
  | { type: 'heartbeat' };

export interface WireError {
  code: ErrorCode;
  message: string;
  stack: string | null;
}

/** Takes whatever was thrown, from native code or ours, apart for the wire. */
export function toWireError(thrown: unknown): WireError {
  if (typeof thrown !== 'object' || thrown === null) {
    return { code: 'INTERNAL', message: String(thrown), stack: null };
  }
  const error = thrown as { message?: unknown; stack?: unknown; code?: unknown; troupeCode?: unknown };
  const code = error.troupeCode ?? (thrown instanceof TroupeError ? thrown.code : 'INTERNAL');
  return {
    code: code as ErrorCode,
    message: String(error.message),
    stack: typeof error.stack === 'string' ? error.stack : null,
  };
}

/** The error a caller of the controller gets; the worker's stack is appended to its own. */
export function fromWireError(wire: WireError, rank: number): TroupeError {
  const error =
    wire.code === 'INVALID_CONFIG' ? new ConfigError(wire.message) : new TroupeError(wire.code, wire.message);
  if (wire.stack !== null) error.stack = `${error.stack}\n  in worker rank ${rank}: ${wire.stack}`;
  return error;
}
