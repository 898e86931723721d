// Which models tensor-parallel ranks can share: native/model/decoder_part.h, before any process is started.
import type { NativeLinearConfig, NativeModelConfig } from '../native/bridge';

/** Why `tp` ranks cannot share a model of these heads; null: they can. */
export function tensorProblem(
  tp: number,
  {
    numHeads,
    numKvHeads,
    linear = null,
    secondHeads = null,
  }: Pick<NativeModelConfig, 'numHeads' | 'numKvHeads'> &
    Partial<Pick<NativeModelConfig, 'linear' | 'secondHeads'>>,
): string | null {
  const problem = linearProblem(tp, linear);
  if (problem !== null) return problem;
  if (numHeads % tp !== 0) return `expected a divisor of the ${numHeads} attention heads`;
  for (const heads of [numKvHeads, secondHeads?.numKvHeads ?? numKvHeads])
    if (heads % tp !== 0 && tp % heads !== 0)
      return `expected a divisor or a multiple of the ${heads} key heads`;
  return null;
}

/** What ranks share. */
const SHARED: Readonly<Record<NativeLinearConfig['rule'], string>> = {
  gated_delta: 'key heads of the linear attention',
  mamba2: 'groups of Mamba 2',
  short_conv: 'channels of the short convolution',
};

/** Why that many ranks cannot share the heads of linear attention; null: they can. */
export function linearProblem(ranks: number, linear: NativeModelConfig['linear']): string | null {
  if (linear === null || linear.keyHeads % ranks === 0) return null;
  return `expected a divisor of the ${linear.keyHeads} ${SHARED[linear.rule]}`;
}
