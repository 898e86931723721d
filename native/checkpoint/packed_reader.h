// Packed values of a file, as numbers.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <string>
#include <vector>

#include "checkpoint/packed_format.h"
#include "checkpoint/tensor_slice.h"

namespace troupe {

// Fills `target` with `size` bytes of a file, from `offset` on. From several threads.
using ReadBytes = std::function<void(void* target, int64_t size, int64_t offset)>;

// [rows, columns] of `shape`, on the CPU, in format.values: the rows from `first` on of a matrix of which
// `slice` has the first codes at its offset, and the first scale at its scales'. Blocks of codes become
// numbers where they are read, thread by thread: beside the numbers there are scales and little else. Without
// `codes` (in a simulation) nothing is read. kNonFinite naming scales that are not finite, or 0 where values
// are not; kInvalidModel for rows that are not whole blocks of MXFP4.
at::Tensor read_packed(const PackedFormat& format, const TensorSlice& slice, int64_t first,
                       const std::vector<int64_t>& shape, const ReadBytes* codes, const ReadBytes* scales);

}  // namespace troupe
