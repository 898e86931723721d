#include "rollout/paged_attention.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <cmath>
#include <numeric>

#include "bfloat16_ways.h"
#include "check.h"
#include "host_reads.h"
#include "kernels/device_ops.h"
#include "kernels/gemm.h"
#include "kernels/key_splits.h"
#include "paged_case.h"

using namespace troupe;
using namespace troupe::test;

namespace {

const std::vector<int64_t> kLengths = {1, 31, 32, 33, 65, 70, 200};

void compare_all(at::Device device) {
  const OneThread one_thread;
  for (const Shape& shape : {Shape{1, 1, 16}, Shape{6, 2, 10}, Shape{14, 2, 64}, Shape{8, 1, 128},
                             Shape{5, 1, 80}, Shape{2, 1, 1}, Shape{3, 1, 256}}) {
    for (const int64_t window : {0, 1, 33}) {
      for (const double softcap : {0.0, 2.0}) {
        for (const auto dtype : {at::kFloat, at::kBFloat16}) {
          PagedCase c(shape, window, softcap, dtype, {1, 33, 70});
          c.qkv = c.qkv.to(device);
          if (window != 1) c.spec.sinks = random({shape.heads}, 5, dtype).to(device);
          const at::Tensor out = c.run(16), expected = c.run(64, true);
          CHECK(at::isfinite(out).all().item<bool>());
          const double tolerance = dtype == at::kFloat ? 3e-6 : 8e-3;
          CHECK(at::allclose(out.to(at::kFloat), expected.to(at::kFloat), tolerance, tolerance));
          CHECK(!device.is_cpu() || at::equal(out, c.run(1)));
          CHECK(!device.is_cpu() || at::equal(out, c.run(1000)));
          // Rows that are wanted have the bits that they have among all.
          if (device.is_cpu()) {
            const at::Tensor some = c.run(16, false, 3), there = some.isnan().logical_not();
            CHECK(at::equal(some.masked_select(there), out.masked_select(there)));
            const at::Tensor rows = there.all(1), none = there.any(1).logical_not();
            CHECK(rows.logical_or(none).all().item<bool>() && rows.any().item<bool>() &&
                  none.any().item<bool>());
          }
        }
      }
    }
  }
}

}  // namespace

TEST(kernel_equals_reference_however_rows_are_cut) {
  for_each_bfloat16_gemm([] { compare_all(at::kCPU); });
}

// On a machine without a GPU, or in a build without CUDA, there is nothing to compare.
TEST(gpu_kernel_equals_reference) {
  if (kernels::device_ops() == nullptr || !at::hasCUDA()) {
    std::printf("  no GPU: not compared\n");
    return;
  }
  compare_all(at::kCUDA);
  const OneThread one_thread;
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    for (const Shape& shape : {Shape{3, 1, 13}, Shape{2, 2, 300}, Shape{6, 1, 576}}) {
      PagedCase c(shape, 0, 0, dtype, {1, 33, 70, 530}, /*latents=*/true);
      c.qkv = c.qkv.to(at::kCUDA);
      const double tolerance = dtype == at::kFloat ? 3e-6 : 8e-3;
      const at::Tensor expected = c.run(1000, true).to(at::kFloat);
      for (const int64_t chunk : {1, 100})
        CHECK(at::allclose(c.run(chunk).to(at::kFloat), expected, tolerance, tolerance));
    }
  }
  // Rows of one part of their keys and of several, with windows that begin anywhere.
  for (const auto& [shape, window] :
       {std::pair(Shape{6, 2, 10}, 0), std::pair(Shape{14, 2, 64}, 600), std::pair(Shape{16, 8, 128}, 20)}) {
    PagedCase c(shape, window, 0, at::kFloat, {1, 512, 513, 1100});
    c.qkv = c.qkv.to(at::kCUDA);
    const at::Tensor out = c.run(100);
    CHECK(at::allclose(out, c.run(2000, true), 3e-6, 3e-6));
    PagedCase alone(shape, window, 0, at::kFloat, {1100});
    alone.qkv = c.qkv.narrow(0, 1026, 1100);
    CHECK(at::equal(alone.run(100), out.narrow(0, 1026, 1100)));
  }
}

TEST(parts_of_a_rows_keys_are_all_of_them_once) {
  for (const int length : {1, 31, 32, 33, 511, 512, 513, 5000}) {
    for (const int window : {0, 1, 32, 33, 512, 600, 6000}) {
      const kernels::KeySplits splits(length, window);
      const int first = window > 0 ? std::max(0, length - window) : 0;
      CHECK(splits.count() >= 1 && splits.begin(0) == first / kPagePositions);
      for (int split = 0; split < splits.count(); ++split) {
        CHECK(splits.begin(split) < splits.end(split));
        CHECK(split == 0 || splits.begin(split) == splits.end(split - 1));
      }
      const int pages = static_cast<int>(KvCache::pages_for(length));
      CHECK(splits.end(splits.count() - 1) == pages);
      CHECK(splits.count() <= kernels::KeySplits::most(pages, window));
      CHECK(splits.count() <= kernels::KeySplits::most(pages + 40, window));
    }
  }
}

// What the GPU's two launches compute of one row and head, in the same order of parts.
TEST(softmaxes_of_parts_come_together_as_that_of_the_whole) {
  for (const int length : {20, 512, 513, 3000}) {
    const at::Tensor scores = random({length}, 4, at::kFloat) * 8, values = random({length}, 5, at::kFloat);
    const kernels::KeySplits splits(length, 0);
    std::vector<kernels::SoftmaxPart> parts;
    std::vector<float> sums;
    float top = -INFINITY, total = 0, value = 0;
    for (int split = 0; split < splits.count(); ++split) {
      const int64_t begin = splits.begin(split) * kPagePositions;
      const int64_t end = std::min<int64_t>(length, splits.end(split) * kPagePositions);
      const at::Tensor own = scores.narrow(0, begin, end - begin);
      const float highest = own.max().item<float>();
      const at::Tensor weights = at::exp(own - highest);
      parts.push_back({highest, weights.sum().item<float>()});
      sums.push_back((weights * values.narrow(0, begin, end - begin)).sum().item<float>());
      top = std::max(top, highest);
    }
    for (size_t i = 0; i < parts.size(); ++i) {
      total += kernels::factor_of(parts[i], top) * parts[i].sum;
      value += kernels::factor_of(parts[i], top) * sums[i];
    }
    const at::Tensor whole = at::softmax(scores.to(at::kDouble), 0);
    CHECK_CLOSE(value / total, (whole * values).sum().item<double>(), 1e-5);
  }
  CHECK(kernels::factor_of({-INFINITY, 0}, 1) == 0);  // a part without keys
}

// Longer than a block of keys (512), with windows whose blocks begin anywhere.
TEST(rows_have_the_bits_of_training) {
  if (!ops::packs(at::zeros({1, 1}))) {
    std::printf("  products are not our own on this processor: not compared\n");
    return;
  }
  for (const Shape& shape : {Shape{4, 4, 64}, Shape{14, 2, 64}, Shape{6, 2, 10}, Shape{16, 8, 128}}) {
    for (const int64_t window : {0, 20, 600}) {
      for (const double softcap : {0.0, 30.0}) {
        for (const auto dtype : {at::kFloat, at::kBFloat16}) {
          PagedCase c(shape, window, softcap, dtype, {1, 33, 200, 2200});
          if (softcap == 0) c.spec.sinks = random({shape.heads}, 5, dtype);
          const auto compare = [&] {
            const at::Tensor trained = at::empty({c.offsets.back(), c.config.q_size()}, c.qkv.options());
            ops::attention_forward(c.spec, c.qkv, ops::separate_segments(c.offsets), trained, {});
            CHECK(at::equal(c.run(1000), trained));
            CHECK(at::equal(c.run(37), trained));
          };
          if (dtype == at::kFloat) {
            compare();
          } else {
            for_each_bfloat16_gemm(compare);
          }
        }
      }
    }
  }
}

TEST(samples_of_one_prompt_read_its_pages_together_with_the_bits_of_each_alone) {
  const OneThread one_thread;
  constexpr int64_t kPrompt = 3 * kPagePositions;
  const auto compare = [](at::ScalarType dtype) {
    for (const int64_t window : {0, 40}) {
      const std::vector<int64_t> lengths{kPrompt + 1, kPrompt + 40, kPrompt + 3, 20, 600};
      PagedCase apart({6, 2, 64}, window, 0, dtype, lengths);
      for (size_t s = 1; s < 3; ++s)
        apart.qkv.narrow(0, apart.offsets[s], kPrompt).copy_(apart.qkv.narrow(0, 0, kPrompt));
      PagedCase together = apart;
      for (size_t s = 1; s < 3; ++s) std::copy_n(together.pages[0].begin(), 3, together.pages[s].begin());
      for (const int64_t chunk : {1, 16, 1000}) CHECK(at::equal(together.run(chunk), apart.run(chunk)));
    }
  };
  compare(at::kFloat);
  for_each_bfloat16_gemm([&] { compare(at::kBFloat16); });
}

TEST(results_do_not_depend_on_threads) {
  const OneThread one_thread;
  const PagedCase c({6, 2, 64}, 0, 0, at::kFloat, kLengths);
  const at::Tensor expected = c.run(50);
  for (const int threads : {2, 3}) {
    at::set_num_threads(threads);
    CHECK(at::equal(c.run(50), expected));
  }
}

// Threads outnumber what one sequence has of key heads, and share the query heads of each.
TEST(query_heads_of_one_key_head_are_shared_by_threads) {
  const OneThread one_thread;
  for (const bool latents : {false, true}) {
    for (const auto dtype : {at::kFloat, at::kBFloat16}) {
      PagedCase c({5, 1, 200}, 0, 0, dtype, {700}, latents);
      c.spec.sinks = random({5}, 5, dtype);
      const at::Tensor expected = c.run(100);
      for (const int threads : {2, 3, 8}) {
        at::set_num_threads(threads);
        for (const int64_t chunk : {1, 3, 100}) CHECK(at::equal(c.run(chunk), expected));
      }
      at::set_num_threads(1);
    }
  }
}

// On a GPU every operation is a launch.
TEST(rows_of_many_pages_are_stored_in_as_many_operations_as_those_of_one) {
  const ModelConfig config = toy_config();
  constexpr int64_t kPages = 8, kRows = kPages * kPagePositions;
  const KvCache cache(config, at::kFloat, at::kCPU, kPages), expected(config, at::kFloat, at::kCPU, kPages);
  const at::Tensor qkv = random({kRows, config.mixer_inputs(0)}, 2, at::kFloat);
  const at::Tensor rows = at::arange(kRows, at::kLong);
  const at::Tensor pages = kPages - 1 - rows.div(kPagePositions, "floor");
  const at::Tensor slots = rows.remainder(kPagePositions);
  std::vector<KvSlot> places;
  for (int64_t row = 0; row < kRows; ++row) {
    places.push_back({static_cast<int32_t>(kPages - 1 - row / kPagePositions),
                      static_cast<int32_t>(row % kPagePositions)});
  }
  for (const int64_t layer : {0, 1}) {
    const auto stored = [&](int64_t count) {
      return test::operations([&] {
        cache.store(layer, pages.narrow(0, 0, count), slots.narrow(0, 0, count), qkv.narrow(0, 0, count));
      });
    };
    CHECK(stored(2) > 0);
    CHECK(stored(kRows) == stored(2));
    expected.store(layer, places, qkv, 0, kRows);
    for (const int64_t part : {0, 1}) {
      for (int32_t page = 0; page < kPages; ++page)
        CHECK(at::equal(cache.gather(layer, part, {page}), expected.gather(layer, part, {page})));
    }
  }
}

TEST(a_page_is_copied_with_all_of_its_layers) {
  const ModelConfig config = toy_config();
  CHECK(KvCache::page_bytes(config, at::kFloat) == 2 * 2 * 2 * 10 * 32 * 4);
  const KvCache cache(config, at::kFloat, at::kCPU, 3);
  CHECK(cache.bytes() == 3 * 2 * 2 * 2 * 10 * 32 * 4);
  const at::Tensor qkv = random({1, config.mixer_inputs(0)}, 1, at::kFloat);
  for (const int64_t layer : {0, 1}) cache.store(layer, {{0, 5}}, qkv, 0, 1);
  cache.copy_page(0, 2);
  for (const int64_t layer : {0, 1}) {
    for (const int64_t part : {0, 1}) {
      const at::Tensor there = cache.gather(layer, part, {2}).select(1, 5).reshape({-1});
      CHECK(at::equal(there, qkv.select(0, 0).narrow(0, 60 + part * 20, 20)));
    }
  }
}

TEST_MAIN()
