// The choice of tokens on the host, row by row, or through the table of device_ops.h.
#include "kernels/token_choices.h"

#include <ATen/ATen.h>

#include <cmath>
#include <limits>
#include <vector>

#include "base/error.h"
#include "kernels/device_ops.h"
#include "kernels/one_thread.h"

namespace troupe::ops {

namespace {

using kernels::LogitScan;

template <typename Entry>
const Entry* entries(const at::Tensor& bytes) {
  return bytes.numel() == 0 ? nullptr : reinterpret_cast<const Entry*>(bytes.const_data_ptr<uint8_t>());
}

// A row's numbers per block.
struct RowNumbers {
  std::vector<float> maxima;
  std::vector<double> sums, groups;

  LogitScan scan(const float* logits, int64_t vocab, const SamplerOptions& options) {
    const auto blocks = static_cast<size_t>(kernels::logit_blocks(vocab));
    maxima.resize(blocks);
    sums.resize(blocks);
    groups.resize(static_cast<size_t>(kernels::sum_groups(static_cast<int64_t>(blocks))));
    const auto& passes = kernels::logit_block_kernels();
    const float max = passes.block_max(logits, vocab, maxima.data());
    if (std::isfinite(max))
      passes.block_sums(logits, vocab, max, kernels::inverse_temperature(options), sums.data());
    return {logits, vocab, max, maxima.data(), sums.data(), groups.data()};
  }
};

}  // namespace

bool chooses_tokens(const at::Tensor& logits) {
  // PrivateUse1: the tests' device, of the host's memory.
  return logits.is_cpu() || logits.is_privateuseone() || kernels::device_ops_for(logits) != nullptr;
}

void choose_tokens(const kernels::TokenChoices& task) {
  const int64_t rows = task.wishes.size(0), vocab = task.logits.size(1);
  require(task.logits.scalar_type() == at::kFloat && task.logits.stride(1) == 1 &&
              task.logits.size(0) >= rows && task.out.scalar_type() == at::kInt && task.out.is_contiguous() &&
              task.out.size(0) == rows && vocab <= std::numeric_limits<int32_t>::max(),
          ErrorCode::kInternal, "[choose_tokens] expected float32 logits of ", rows, " rows and int32 [",
          rows, ", words] to choose into but got ", task.logits.scalar_type(), " ", task.logits.sizes(),
          " and ", task.out.scalar_type(), " ", task.out.sizes());
  if (const auto* device = kernels::device_ops_for(task.logits)) return device->choose_tokens(task);
  const auto* logits = static_cast<const float*>(task.logits.const_data_ptr());
  const auto* wishes = entries<kernels::TokenWish>(task.wishes);
  const auto* changes = entries<kernels::RowChanges>(task.changes);
  const kernels::LogitChanges lists{entries<kernels::SeenToken>(task.seen),
                                    entries<kernels::TokenBias>(task.biases),
                                    static_cast<const uint32_t*>(task.words.const_data_ptr())};
  int32_t* out = task.out.mutable_data_ptr<int32_t>();
  const kernels::OneThread team;
  kernels::ChoiceScratch scratch;
  RowNumbers own, other;
  std::vector<float> changed(static_cast<size_t>(vocab));
  for (int64_t r = 0; r < rows; ++r) {
    const kernels::TokenWish& wish = wishes[r];
    const float* row = logits + r * task.logits.stride(0);
    const LogitScan scan = own.scan(row, vocab, wish.options);
    LogitScan from = scan;
    if (wish.changed >= 0) {
      kernels::change_logits(team, row, vocab, changes[wish.changed], lists, changed.data());
      from = other.scan(changed.data(), vocab, wish.options);
    }
    kernels::choose_token(team, scan, from, wish, scratch, out + r * task.out.size(1));
  }
}

}  // namespace troupe::ops
