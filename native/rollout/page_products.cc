// Keys and values of pages as words of successive k, and the tiles over them.
#include "rollout/page_products.h"

#include <ATen/ATen.h>

#include "kernels/cpu/attention_kernels.h"
#include "kernels/cpu/paged_attention_kernels.h"
#include "kernels/paged_attention.h"

namespace troupe {

using kernels::kGemmCols;
using kernels::kPagePositions;
using ops::panels::Source;

bool PageProducts::available() {
  return kernels::bfloat16_gemm_kernels() != nullptr;
}

kernels::Word* PageProducts::room(at::Tensor& buffer, int64_t count) {
  if (!buffer.defined() || buffer.numel() < count) buffer = ops::panels::words(count, at::kCPU);
  return ops::panels::words_of(buffer);
}

const kernels::Word* PageProducts::left(const at::BFloat16* source, int64_t k, at::Tensor& buffer) const {
  const int64_t block = multiplier_.rows(), steps = multiplier_.steps(k);
  Word* const packed = room(buffer, round_up(rows_, block) * steps);
  const Source rows(source, k);
  for (int64_t r = 0; r < rows_; r += block)
    multiplier_.pack_rows(rows, r, std::min(block, rows_ - r), k, 0, steps, packed + r * steps);
  return packed;
}

void PageProducts::scores(const char* const* pages, int64_t count, float* out, int64_t ld) {
  const int64_t block = multiplier_.rows(), steps = multiplier_.steps(dim_);
  const Word* const q = ops::panels::words_of(packed_queries_);
  Word* const keys = room(key_words_, steps * kPagePositions);
  const auto kernel = multiplier_.kernel<float>();
  for (int64_t page = 0; page < count; ++page) {
    kernels::paged_attention_kernels().key_words(pages[page], dim_, steps, keys);
    for (int64_t r = 0; r < rows_; r += block) {
      kernel(steps, q + r * steps, keys, kPagePositions / kernels::kGemmLanes,
             out + r * ld + page * kPagePositions, ld, std::min(block, rows_ - r), false);
    }
  }
}

void PageProducts::values(const float* weights, int64_t ld, const char* const* pages, int64_t begin,
                          int64_t end, float* out, bool add) {
  const int64_t count = end - begin, block = multiplier_.rows(), steps = multiplier_.steps(count);
  auto* const rounded = reinterpret_cast<uint16_t*>(room(weights_, (rows_ * count + 1) / 2));
  kernels::attention_kernels().round(weights, rows_, count, ld, rounded);
  const Word* const a = left(reinterpret_cast<const at::BFloat16*>(rounded), count, packed_weights_);
  Word* const panel = room(value_words_, steps * kGemmCols);
  const auto kernel = multiplier_.kernel<float>();
  ops::panels::for_each_panel(
      dim_, 0, ops::panels::num_panels(dim_), [&](int64_t first, int64_t width, int64_t there) {
        kernels::paged_attention_kernels().value_words({pages, begin, end, dim_, first, there, width}, steps,
                                                       panel);
        for (int64_t r = 0; r < rows_; r += block) {
          ops::panels::tile(kernel, steps, a + r * steps, panel, width, there, out + r * dim_ + first, dim_,
                            std::min(block, rows_ - r), add);
        }
      });
}

}  // namespace troupe
