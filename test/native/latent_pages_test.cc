// Pages whose keys hold the values, as those of latents do.
#include <ATen/ATen.h>

#include <cmath>
#include <vector>

#include "bfloat16_ways.h"
#include "check.h"
#include "kernels/cpu/isa.h"
#include "kernels/cpu/paged_attention_kernels.h"
#include "kernels/gemm_panels.h"
#include "paged_case.h"

TROUPE_DECLARE_TABLES(PagedAttentionKernels, paged_attention_table)

using namespace troupe;
using namespace troupe::test;

namespace {

// Of every instruction set that this processor has.
std::vector<const kernels::PagedAttentionKernels*> all_kernels() {
#if defined(__x86_64__)
  std::vector<const kernels::PagedAttentionKernels*> all{&kernels::base::paged_attention_table};
  if (kernels::best_isa() >= kernels::Isa::kAvx2) all.push_back(&kernels::avx2::paged_attention_table);
  if (kernels::best_isa() >= kernels::Isa::kAvx512) all.push_back(&kernels::avx512::paged_attention_table);
  return all;
#else
  return {&kernels::paged_attention_kernels()};
#endif
}

}  // namespace

// The same keys, in pages of keys and values that are stored apart, and in pages of values that are the keys.
TEST(keys_that_hold_the_values_give_the_bits_of_both_apart) {
  const OneThread one_thread;
  const auto compare = [](at::ScalarType dtype) {
    for (const Shape& shape : {Shape{1, 1, 1}, Shape{4, 1, 19}, Shape{3, 1, 40}, Shape{16, 1, 576}}) {
      for (const int64_t window : {0, 33}) {
        PagedCase together(shape, window, 0, dtype, {1, 33, 70, 700}, /*latents=*/true);
        PagedCase apart(shape, window, 0, dtype, together.lengths);
        const at::Tensor values = together.qkv.narrow(1, shape.heads * shape.dim, shape.dim);
        apart.qkv = at::cat({together.qkv, values}, 1);
        const at::Tensor out = together.run(50);
        CHECK(at::isfinite(out).all().item<bool>());
        CHECK(at::equal(out, apart.run(50)));
        CHECK(at::equal(out, together.run(1)));
        CHECK(at::equal(together.run(64, true), apart.run(64, true)));
      }
    }
  };
  for_each_bfloat16_gemm([&] { compare(at::kBFloat16); });
  compare(at::kFloat);
}

TEST(a_page_whose_keys_hold_the_values_is_half_as_large_and_gives_both) {
  ModelConfig config = toy_config();
  config.num_kv_heads = 1;
  const int64_t apart = KvCache::page_bytes(config, at::kFloat);
  config.latent = LatentConfig{.absorbed = true};
  CHECK(2 * KvCache::page_bytes(config, at::kFloat) == apart);
  const at::Tensor qkv = random({3, config.mixer_inputs(0)}, 2, at::kFloat);
  const KvCache on_host(config, at::kFloat, at::kCPU, 2), by_operations(config, at::kFloat, at::kCPU, 2);
  on_host.store(1, {{1, 0}, {1, 1}, {1, 2}}, qkv, 0, 3);
  by_operations.store(1, at::ones({3}, at::kLong), at::arange(3, at::kLong), qkv);
  const at::Tensor expected = qkv.narrow(1, config.q_size(), config.kv_size());
  for (const int64_t part : {0, 1}) {
    for (const KvCache* cache : {&on_host, &by_operations})
      CHECK(at::equal(cache->gather(1, part, {1})[0].narrow(0, 0, 3), expected));
  }
}

TEST(every_instruction_set_lays_values_out_as_keys) {
  for (const int64_t dim : {1, 2, 7, 16, 33, 576}) {
    const at::Tensor wide = random({kPagePositions, dim}, 3, at::kFloat), narrow = wide.to(at::kBFloat16);
    const at::Tensor transposed = narrow.t().contiguous();
    const auto bytes = [](const at::Tensor& t) { return static_cast<const char*>(t.const_data_ptr()); };
    const int64_t steps = (dim + 1) / 2 + 3;
    for (const kernels::PagedAttentionKernels* kernel : all_kernels()) {
      const at::Tensor keys = at::empty({dim, kPagePositions}), halves = at::empty_like(transposed);
      kernel->keys_of_values_float32(bytes(wide), dim, static_cast<char*>(keys.mutable_data_ptr()));
      CHECK(at::equal(keys, wide.t()));
      kernel->keys_of_values_bfloat16(bytes(narrow), dim, static_cast<char*>(halves.mutable_data_ptr()));
      CHECK(at::equal(halves, transposed));
      const auto words_by = [&](auto made, const at::Tensor& page) {
        const at::Tensor words = at::ones({steps * kPagePositions}, at::kInt);
        made(bytes(page), dim, steps, ops::panels::words_of(words));
        return words;
      };
      CHECK(
          at::equal(words_by(kernel->key_words_of_values, narrow), words_by(kernel->key_words, transposed)));
    }
  }
}

TEST_MAIN()
