import type { NativeLinearConfig } from '../native/bridge';

/** Columns of the input projection of linear attention: of queries, keys, values and gates, and the numbers of every value head. */
export function linearColumns({ rule, keyHeads, valueHeads, keyDim, valueDim }: NativeLinearConfig): number {
  return 2 * keyHeads * keyDim + 2 * valueHeads * valueDim + (rule === 'mamba2' ? 1 : 2) * valueHeads;
}
