// Keys and values of pages as words of successive k, and the tiles over them.
#include "rollout/page_products.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <utility>

#include "kernels/attention_blocks.h"
#include "kernels/cpu/attention_kernels.h"
#include "kernels/cpu/paged_attention_kernels.h"
#include "kernels/paged_attention.h"

namespace troupe {

using kernels::kGemmCols;
using kernels::kPagePositions;
using ops::attention::kKeyBlock;
using ops::panels::Source;

namespace {

constexpr int64_t kBlockPages = kKeyBlock / kPagePositions;
// Of a sequence, from its first on: at heads of 64 these are 512 KiB of keys and values, which stay in the
// second-level cache.
constexpr int64_t kKeptPages = 4 * kBlockPages;

// Pages lie apart, and a processor foresees only what follows in one piece: its next page, and the values
// that come after the softmax, are on their way while it multiplies.
void fetch(const char* from, int64_t bytes) {
  constexpr int64_t kLine = 64;
  for (int64_t at = 0; at < bytes; at += kLine) __builtin_prefetch(from + at, 0, 2);
}

}  // namespace

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

void PageProducts::keep(int64_t dim) {
  if (kept_dim_ == dim) return;
  kept_dim_ = dim;
  kept_keys_ = ops::panels::words(kKeptPages * multiplier_.steps(dim) * kPagePositions, at::kCPU);
  kept_values_ = ops::panels::words(
      kKeptPages / kBlockPages * multiplier_.steps(kKeyBlock) * ops::panels::padded_cols(dim), at::kCPU);
  key_contents_.assign(kKeptPages, {});
  value_contents_.assign(kKeptPages, {});
}

const kernels::Word* PageProducts::keys_of(const Pages& pages, int64_t page) {
  const int64_t steps = multiplier_.steps(dim_);
  const char* const from = pages.at[page];
  Word* words = nullptr;
  if (page < std::min(pages.kept, kKeptPages)) {
    keep(dim_);
    words = ops::panels::words_of(kept_keys_) + page * steps * kPagePositions;
    const Content content{from, std::min(kPagePositions, pages.written - page * kPagePositions)};
    if (std::exchange(key_contents_[static_cast<size_t>(page)], content) == content) return words;
  } else {
    words = room(key_words_, steps * kPagePositions);
  }
  const auto& kernels = kernels::paged_attention_kernels();
  (pages.keys_hold_values ? kernels.key_words_of_values : kernels.key_words)(from, dim_, steps, words);
  return words;
}

void PageProducts::scores(const Pages& pages, int64_t begin, int64_t end, float* out, int64_t ld) {
  const int64_t block = multiplier_.rows(), steps = multiplier_.steps(dim_);
  const Word* const q = ops::panels::words_of(packed_queries_);
  // Keys and values of a page.
  const int64_t bytes =
      (pages.keys_hold_values ? 1 : 2) * dim_ * kPagePositions * int64_t{sizeof(at::BFloat16)};
  const auto kernel = multiplier_.kernel<float>();
  fetch(pages.at[begin], bytes);
  for (int64_t page = begin; page < end; ++page, out += kPagePositions) {
    if (page + 1 < end) fetch(pages.at[page + 1], bytes);
    const Word* const keys = keys_of(pages, page);
    for (int64_t r = 0; r < rows_; r += block) {
      kernel({.steps = steps,
              .a = q + r * steps,
              .b = keys,
              .vectors = kPagePositions / kernels::kGemmLanes,
              .c = out + r * ld,
              .ldc = ld,
              .rows = std::min(block, rows_ - r)});
    }
  }
}

const kernels::Word* PageProducts::left(const float* weights, int64_t ld, int64_t count) {
  if (!multiplier_.packs_floats()) {
    auto* const rounded = reinterpret_cast<uint16_t*>(room(weights_, (rows_ * count + 1) / 2));
    kernels::attention_kernels().round(weights, rows_, count, ld, rounded);
    return left(reinterpret_cast<const at::BFloat16*>(rounded), count, packed_weights_);
  }
  const int64_t block = multiplier_.rows(), steps = multiplier_.steps(count);
  Word* const packed = room(packed_weights_, round_up(rows_, block) * steps);
  for (int64_t r = 0; r < rows_; r += block)
    multiplier_.pack_floats(weights + r * ld, ld, std::min(block, rows_ - r), count, 0, steps,
                            packed + r * steps);
  return packed;
}

PageProducts::Values PageProducts::values_of(const Pages& pages, int64_t begin, int64_t end, int64_t steps) {
  const auto& kernels = kernels::paged_attention_kernels();
  const auto pack = [&](int64_t from, int64_t to, int64_t count, int64_t panel_steps, Word* words) {
    ops::panels::for_each_panel(
        dim_, 0, ops::panels::num_panels(dim_), [&](int64_t first, int64_t width, int64_t there) {
          const int64_t first_value = pages.keys_hold_values ? 0 : kPagePositions;
          kernels.value_words({pages.at, from, to, dim_, first, there, width, first_value}, count,
                              words + first * panel_steps + (from - begin) / 2 * width);
        });
  };
  const int64_t first_page = begin / kPagePositions, end_page = (end + kPagePositions - 1) / kPagePositions;
  if (begin % kKeyBlock != 0 || end_page > std::min(pages.kept, kKeptPages)) {
    Word* const words = room(value_words_, steps * ops::panels::padded_cols(dim_));
    pack(begin, end, steps, steps, words);
    return {words, steps};
  }
  keep(dim_);
  const int64_t block_steps = multiplier_.steps(kKeyBlock);
  Word* const words =
      ops::panels::words_of(kept_values_) + begin / kKeyBlock * block_steps * ops::panels::padded_cols(dim_);
  for (int64_t page = first_page; page < end_page; ++page) {
    const int64_t from = page * kPagePositions, to = std::min(from + kPagePositions, pages.written);
    const Content content{pages.at[page], to - from};
    if (std::exchange(value_contents_[static_cast<size_t>(page)], content) == content) continue;
    pack(from, to, kPagePositions / 2, block_steps, words);
  }
  return {words, block_steps};
}

void PageProducts::values(const float* weights, int64_t ld, const Pages& pages, int64_t begin, int64_t end,
                          float* out, bool add) {
  const int64_t count = end - begin, block = multiplier_.rows(), steps = multiplier_.steps(count);
  const Word* const a = left(weights, ld, count);
  const Values words = values_of(pages, begin, end, steps);
  const auto kernel = multiplier_.kernel<float>();
  ops::panels::for_each_panel(dim_, 0, ops::panels::num_panels(dim_),
                              [&](int64_t first, int64_t width, int64_t there) {
                                for (int64_t r = 0; r < rows_; r += block) {
                                  float* const c = out + r * dim_ + first;
                                  ops::panels::tile(kernel,
                                                    {.steps = steps,
                                                     .a = a + r * steps,
                                                     .b = words.at + first * words.steps,
                                                     .vectors = width / kernels::kGemmLanes,
                                                     .c = c,
                                                     .ldc = dim_,
                                                     .rows = std::min(block, rows_ - r),
                                                     .addend = add ? c : nullptr,
                                                     .addend_ld = dim_},
                                                    there);
                                }
                              });
}

}  // namespace troupe
