// Logits in blocks: what the sampler needs to know of them where they lie.
#pragma once

#include <ATen/core/Tensor.h>

// What the sampler needs of logits that lie on another device, so that it need not bring all of them to the
// host.
namespace troupe::ops {

// Whether the two functions below take logits on this device: the CPU, and a GPU in a build with CUDA.
bool scans_logits(const at::Tensor& logits);

// Passes over all of logits [rows, V] (float32, unit column stride) in blocks of kernels::kLogitBlock
// entries: per block the largest entry to maxima [rows, blocks] float32, NaN where it holds NaN or +infinity,
// and the sum of exp((logit - the row's maximum) * inv_temperature) to sums [rows, blocks] float64 (of no
// meaning in a row with a NaN or of nothing but -infinity). Both contiguous, on the device of the logits. The
// CPU's and a GPU's sums differ by rounding.
void scan_logits(const at::Tensor& logits, float inv_temperature, const at::Tensor& maxima,
                 const at::Tensor& sums);

// out [n, kLogitBlock] float32, contiguous: the entries of block index[i][1] of row index[i][0]; -infinity
// behind the end of a row. index [n, 2] int32, contiguous. All on the device of the logits.
void gather_blocks(const at::Tensor& logits, const at::Tensor& index, const at::Tensor& out);

}  // namespace troupe::ops
