// The row kernels of this processor.
#pragma once

#include <vector>

#include "kernels/cpu/isa.h"
#include "kernels/cpu/row_kernels.h"

namespace troupe::kernels {

// The row kernels of the best instruction set of this processor, or of the selected one.
const RowKernels& row_kernels();

// For tests and benchmarks: what this processor can run, and a choice among it that row_kernels()
// follows from then on (kInvalidArgument if it cannot run here).
std::vector<Isa> supported_isas();
void select_isa(Isa isa);

}  // namespace troupe::kernels
