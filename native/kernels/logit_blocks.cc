// Passes over blocks of logits, on the CPU or through the table of device_ops.h.
#include "kernels/logit_blocks.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/parallel.h"
#include "kernels/cpu/logit_blocks_kernels.h"
#include "kernels/device_ops.h"

namespace troupe::ops {

using kernels::kLogitBlock;

bool scans_logits(const at::Tensor& logits) {
  return logits.is_cpu() || kernels::device_ops_for(logits) != nullptr;
}

void scan_logits(const at::Tensor& logits, float inv_temperature, const at::Tensor& maxima,
                 const at::Tensor& sums) {
  if (const auto* device = kernels::device_ops_for(logits))
    return device->scan_logits(logits, inv_temperature, maxima, sums);
  const int64_t vocab = logits.size(1), blocks = maxima.size(1);
  const float* data = logits.const_data_ptr<float>();
  float* maxima_data = maxima.mutable_data_ptr<float>();
  double* sums_data = sums.mutable_data_ptr<double>();
  const auto& passes = kernels::logit_block_kernels();
  parallel_items(logits.size(0), [&](int64_t r) {
    const float* row = data + r * logits.stride(0);
    const float max = passes.block_max(row, vocab, maxima_data + r * blocks);
    if (std::isfinite(max)) {
      passes.block_sums(row, vocab, max, inv_temperature, sums_data + r * blocks);
    } else {
      maxima_data[r * blocks] = max;  // in which blocks they are does not matter
    }
  });
}

void gather_blocks(const at::Tensor& logits, const at::Tensor& index, const at::Tensor& out) {
  if (const auto* device = kernels::device_ops_for(logits)) return device->gather_blocks(logits, index, out);
  const int32_t* pairs = index.const_data_ptr<int32_t>();
  for (int64_t i = 0; i < index.size(0); ++i) {
    const int64_t begin = pairs[2 * i + 1] * kLogitBlock;
    const int64_t n = std::min(kLogitBlock, logits.size(1) - begin);
    const float* from = logits.const_data_ptr<float>() + pairs[2 * i] * logits.stride(0) + begin;
    float* to = out.mutable_data_ptr<float>() + i * kLogitBlock;
    std::fill(std::copy(from, from + n, to), to + kLogitBlock, -std::numeric_limits<float>::infinity());
  }
}

}  // namespace troupe::ops
