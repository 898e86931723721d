import type { NativeLinearConfig } from '../native/bridge';

/** Numbers of every value head that the input projection makes beside queries, keys, values and gates; of a short convolution the second gate. */
const NUMBERS: Readonly<Record<NativeLinearConfig['rule'], number>> = {
  gated_delta: 2,
  mamba2: 1,
  short_conv: 1,
};

/** Columns of the input projection of linear attention. */
export function linearColumns({ rule, keyHeads, valueHeads, keyDim, valueDim }: NativeLinearConfig): number {
  return 2 * keyHeads * keyDim + 2 * valueHeads * valueDim + NUMBERS[rule] * valueHeads;
}
