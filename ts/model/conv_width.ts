import { invalid } from './hf_decoder';

/** Rows that a causal convolution may have as inputs (native/kernels/cpu/gated_delta_kernels.h). */
const MOST_CONV_WIDTH = 4;

/** @throws TroupeError INVALID_MODEL naming the key */
export function checkConvWidth(key: string, width: number, where: string): void {
  if (width > MOST_CONV_WIDTH)
    throw invalid(where, `${key} ${width} is not supported; supported: 1 to ${MOST_CONV_WIDTH}`);
}
