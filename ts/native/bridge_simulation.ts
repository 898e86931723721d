// What goes through the addon's simulations (bridge.ts): one rank's work on tensors without memory. Same names, same order as
// native/engine/simulation.h, memory_phases.h and memory_simulation.h.
import type { NativeStateBytes, NativeTensorFile } from './bridge_data';
import type { NativeQuantization } from './bridge_rollout';

export interface NativeSimulatedGroup {
  name: string;
  whole: number;
  own: number;
}

export interface NativeSimulatedCollective {
  /** tp, dp, pp, ep, ...: along which it goes; all: every rank of the engine. */
  axis: string;
  phase: string;
  name: string;
  subject: string;
  count: number;
  bytes: number;
}

/** One optimiser step as one rank takes part in it, on tensors without memory (native/engine/simulation.h). */
export interface NativeSimulation {
  state: NativeStateBytes;
  /** Elements of each group's flat buffer, with all padding, and of one rank's share of it. */
  groups: NativeSimulatedGroup[];
  /** Collectives that move the same thing: how many, and the bytes that this rank sends in all of them. */
  collectives: NativeSimulatedCollective[];
}

/** Of an image, the tokens that stand for it: rows, and columns. */
export interface NativeImageLoad {
  height: number;
  width: number;
}

/** Sequences alike, of one rank or of the ranks that share its micro-batches (`ulysses`). */
export interface NativeSequenceLoad {
  count: number; // 0: the verb is left out
  length: number; // tokens, prompt and response
  response: number;
  images: NativeImageLoad[]; // of each prompt
}

export interface NativeRolloutLoad {
  verb: string;
  prompts: number;
  n: number; // samples per prompt
  prompt: number;
  response: number;
  images: NativeImageLoad[]; // of each prompt
}

/** What a policy's loss has beside the tokens. */
export interface NativeLossLoad {
  kl: boolean; // log-probs of a reference
  topK: number; // of a teacher: its likeliest tokens in the place of each; 0: none
  routerBalance: boolean; // of a mixture
  routerZ: boolean;
}

/** Of the experts of a batch's tokens: recorded by log-probs, and given to updates; or recorded by the rollout, and given to both. */
export type NativeRoutingLoad = 'none' | 'recorded' | 'given';

/** Of the rollout that several loads share. */
export interface NativeRolloutLimits {
  maxSequences: number;
  maxStepTokens: number;
  kvCacheBytes: number;
  tensorParallel: number;
  quantization: NativeQuantization;
  latentCache: boolean;
  routedExperts: boolean; // are recorded
  predicts: boolean; // drafts by the model's own layer
}

/** What one rank does (native/engine/memory_phases.h). */
export interface NativeMemoryWork {
  load: NativeTensorFile[]; // without a path
  inference: NativeSequenceLoad;
  topK: number; // of the likeliest tokens that log-probs are asked for, too
  update: NativeSequenceLoad;
  loss: NativeLossLoad;
  routing: NativeRoutingLoad;
  rollouts: NativeRolloutLoad[];
  /** Of the rollout that they share. */
  limits: NativeRolloutLimits;
}

/** The most that is held in a verb, and what it is made of: bytes. */
export interface NativePhasePeak {
  verb: string; // create, load, inference, update, save, and those of the rollouts
  bytes: number;
  state: number;
  gathered: number;
  activations: number;
  head: number;
  kvCache: number;
  /** What the allocation was for that made it so much. */
  last: 'state' | 'gathered' | 'activations' | 'head' | 'kvCache';
}

/** native/engine/memory_simulation.h */
export interface NativeSimulatedMemory {
  state: NativeStateBytes;
  parameters: number;
  phases: NativePhasePeak[];
}
