import type { NativeLinearConfig, NativeModelConfig } from '../native/bridge';
import type { MappingBuilder } from './tensor_mapping';

/** The tensors of a layer of Mamba 2, which files have under `hf` and parameters under `own`. */
export function mambaMapping(
  c: NativeModelConfig,
  mamba: NativeLinearConfig,
  map: MappingBuilder,
  hf: string,
  own: string,
): void {
  const { keyHeads, valueHeads, keyDim, valueDim, convBias, convWidth } = mamba;
  const values = valueHeads * valueDim;
  const channels = values + 2 * keyHeads * keyDim;
  map.tensor(`${hf}.in_proj.weight`, `${own}.in.weight`, values + channels + valueHeads, c.hiddenSize);
  map.convolution(`${own}.conv.weight`, [{ hf: `${hf}.conv1d.weight`, rows: channels }], convWidth);
  if (convBias) map.tensor(`${hf}.conv1d.bias`, `${own}.conv.bias`, channels);
  map.tensor(`${hf}.A_log`, `${own}.a_log`, valueHeads);
  map.tensor(`${hf}.dt_bias`, `${own}.dt_bias`, valueHeads);
  map.tensor(`${hf}.D`, `${own}.skip`, valueHeads);
  map.tensor(`${hf}.norm.weight`, `${own}.norm.weight`, values);
  map.tensor(`${hf}.out_proj.weight`, `${own}.out.weight`, c.hiddenSize, values);
}
