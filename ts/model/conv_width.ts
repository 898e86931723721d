/** Rows that the causal convolution of linear attention has as inputs (native/kernels/cpu/gated_delta_kernels.h), as in all published models. */
export const CONV_WIDTH = 4;
