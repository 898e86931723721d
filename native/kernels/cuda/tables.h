// The row kernels of CUDA, each defined in its own .cu file.
#pragma once

#include "kernels/cpu/row_kernels.h"

namespace troupe::kernels::cuda {

extern const NormKernels norm_table;
extern const RotaryKernels rotary_table;
extern const ActivationKernels activation_table;
extern const OptimKernels optim_table;
extern const SplitNormKernels split_norm_table;
extern const XieluKernels xielu_table;

}  // namespace troupe::kernels::cuda
