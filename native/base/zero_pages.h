// Zeroed memory that costs nothing until it is written.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace troupe {

// A zeroed float32 buffer of `count` elements. On a CPU its pages are mapped from the kernel and take
// up memory only once they are written: an engine that has not been updated yet holds no gradients
// and no moments.
at::Tensor zero_pages(int64_t count, at::Device device);

}  // namespace troupe
