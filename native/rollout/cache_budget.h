// How much memory keys and values may take.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace troupe {

// On a GPU: `share` of its memory less what this process holds there, and no more than is free. On a CPU: a
// quarter of `share` of the memory of the machine (or of the control group that the process is in).
int64_t cache_budget(at::Device device, double share);

}  // namespace troupe
