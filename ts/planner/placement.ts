// Where the state of a role lies, and how it is brought together.
import type { NativeEngineOptions, NativeStateKinds, Reduction } from '../native/bridge';

export type ShardingStrategy = NativeEngineOptions['sharding'];

export interface Placement {
  /** What is kept on the host. */
  offload: NativeStateKinds;
  prefetch: boolean;
  reduction: Reduction;
  reduceDtype: NativeEngineOptions['reduceDtype'];
}

export const ON_DEVICE: Placement = {
  offload: { parameters: false, gradients: false, moments: false },
  prefetch: false,
  reduction: 'micro_batch',
  reduceDtype: 'float32',
};
