// What can be known of the machines that workers start on.
export type Device = 'cpu' | 'cuda';

export interface Machine {
  /** GPUs that its workers may use; null: not known. */
  gpus(): number | null;
  /** 'cpu', or the CUDA that the addon was built for. @throws TroupeError NATIVE_UNAVAILABLE */
  addonVariant(): string;
}
