// Sequences in pages, and what attention makes of them.
#pragma once

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "rollout/paged_attention.h"
#include "toy_decoder.h"

namespace troupe::test {

struct Shape {
  int64_t heads, kv_heads, dim;
};

// The reference does little per operation: waking threads for it would take longer than its work.
struct OneThread {
  OneThread() { at::set_num_threads(1); }
  ~OneThread() { at::set_num_threads(before); }
  const int before = at::get_num_threads();
};

inline at::Tensor random(at::IntArrayRef sizes, uint64_t seed, at::ScalarType dtype) {
  auto generator = at::make_generator<at::CPUGeneratorImpl>(seed);
  return at::randn(sizes, generator, at::kFloat).to(dtype);
}

// Sequences in pages that lie in no order, their rows of one layer, and what attention makes of them.
struct PagedCase {
  ModelConfig config = toy_config();
  ops::AttentionSpec spec;
  std::vector<int64_t> lengths;
  std::vector<std::vector<int32_t>> pages;
  std::vector<int64_t> offsets{0};
  at::Tensor qkv;  // [sum of lengths, (Q+2K)*D]
  static constexpr int64_t kLayer = 1;
  static constexpr int32_t kPool = 211;  // pages

  // latents: keys hold the values.
  PagedCase(const Shape& shape, int64_t window, double softcap, at::ScalarType dtype,
            std::vector<int64_t> lengths_of, bool latents = false)
      : spec{shape.heads, shape.kv_heads, shape.dim, 1 / std::sqrt(static_cast<double>(shape.dim)),
             softcap,     window},
        lengths(std::move(lengths_of)) {
    config.num_heads = shape.heads;
    config.num_kv_heads = shape.kv_heads;
    config.head_dim = shape.dim;
    if (latents) config.latent = LatentConfig{.absorbed = true};
    int32_t next = 0;
    for (const int64_t length : lengths) {
      pages.emplace_back();
      for (int64_t page = 0; page < KvCache::pages_for(length); ++page)
        pages.back().push_back(next++ * 7 % kPool);
      offsets.push_back(offsets.back() + length);
    }
    qkv = random({offsets.back(), config.mixer_inputs(0)}, 3, dtype);
  }

  KvCache cache() const {
    KvCache cache(config, qkv.scalar_type(), qkv.device(), kPool);
    // What no position has written may hold anything.
    const at::Tensor everything =
        at::full({kPagePositions, config.mixer_inputs(0)}, std::nan(""), qkv.options());
    for (int32_t page = 0; page < kPool; ++page) {
      std::vector<KvSlot> slots;
      for (int32_t slot = 0; slot < kPagePositions; ++slot) slots.push_back({page, slot});
      if (qkv.is_cpu()) {
        cache.store(kLayer, slots, everything, 0, kPagePositions);
      } else {
        cache.store(kLayer, at::full({kPagePositions}, page, qkv.options().dtype(at::kLong)),
                    at::arange(kPagePositions, qkv.options().dtype(at::kLong)), everything);
      }
    }
    return cache;
  }

  // All rows, in steps of at most `chunk` positions of every sequence. every: of a run only each every-th row
  // is wanted, and the others are NaN.
  at::Tensor run(int64_t chunk, bool reference = false, int64_t every = 1) const {
    const KvCache pool = cache();
    const at::Tensor out = at::zeros({offsets.back(), config.q_size()}, qkv.options());
    for (int64_t begin = 0; begin < *std::max_element(lengths.begin(), lengths.end()); begin += chunk) {
      std::vector<RowRun> runs;
      std::vector<int64_t> rows;
      for (size_t s = 0; s < lengths.size(); ++s) {
        const int64_t count = std::min(chunk, lengths[s] - begin);
        if (count <= 0) continue;
        runs.push_back({static_cast<int64_t>(rows.size()), begin, count, &pages[s]});
        for (int64_t i = 0; i < count; ++i) rows.push_back(offsets[s] + begin + i);
      }
      const at::Tensor index = at::tensor(rows, at::kLong).to(qkv.device());
      const at::Tensor step_out = at::full({index.size(0), config.q_size()}, NAN, qkv.options());
      std::vector<RowRun> wanted;
      for (const RowRun& run : runs) {
        for (int64_t i = 0; i < run.count; i += every)
          wanted.push_back({run.row + i, run.position + i, 1, run.pages});
      }
      const StepRows step(runs, pool, chunk == 1);
      const at::Tensor inputs = qkv.index_select(0, index);
      if (reference) {
        paged_attention_reference(spec, pool, kLayer, step, inputs, step_out);
      } else {
        paged_attention(spec, pool, kLayer, step, inputs, step_out, every > 1 ? &wanted : nullptr);
      }
      out.index_copy_(0, index, step_out);
    }
    return out;
  }
};

}  // namespace troupe::test
