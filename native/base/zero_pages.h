// Zeroed memory that costs nothing until it is written.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/TensorOptions.h>

#include <cstdint>

namespace troupe {

// [count] zeros. On a CPU their pages are mapped from the kernel and take up memory only once they are
// written: an engine that has not been updated yet holds no gradients and no moments.
at::Tensor zero_pages(int64_t count, const at::TensorOptions& options);

}  // namespace troupe
