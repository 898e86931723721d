#include "rollout/decode_attention.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include "check.h"
#include "kernels/device_ops.h"
#include "toy_decoder.h"

using namespace troupe;

namespace {

struct Shape {
  int64_t heads, kv_heads, dim;
};

// The reference does little per operation: waking threads for it would take longer than its work.
struct OneThread {
  OneThread() { at::set_num_threads(1); }
  ~OneThread() { at::set_num_threads(before); }
  const int before = at::get_num_threads();
};

at::Tensor random(at::IntArrayRef sizes, uint64_t seed, at::ScalarType dtype) {
  auto generator = at::make_generator<at::CPUGeneratorImpl>(seed);
  return at::randn(sizes, generator, at::kFloat).to(dtype);
}

// One step over rows with prompts and own segments of many lengths, kernel against LibTorch.
void compare(const Shape& shape, int64_t window, double softcap, at::ScalarType dtype, at::Device device) {
  ModelConfig config = test::toy_config();
  config.num_heads = shape.heads;
  config.num_kv_heads = shape.kv_heads;
  config.head_dim = shape.dim;
  const int64_t layer = 1;
  KvCache cache(config, dtype, device);
  const ops::AttentionSpec spec{
      shape.heads, shape.kv_heads, shape.dim, 1 / std::sqrt(static_cast<double>(shape.dim)), softcap, window};
  const std::vector<std::pair<int64_t, int64_t>> lengths = {{1, 1},  {31, 2},  {32, 1},   {33, 31}, {5, 32},
                                                            {5, 33}, {70, 64}, {100, 65}, {1, 200}, {300, 1}};
  std::vector<KvSegment> prompts(lengths.size()), own(lengths.size());
  std::vector<CachedKeys> rows;
  for (size_t i = 0; i < lengths.size(); ++i) {
    for (const bool is_own : {false, true}) {
      KvSegment& segment = is_own ? own[i] : prompts[i];
      cache.grow(segment, is_own ? lengths[i].second : lengths[i].first);
      // What no position has written may hold anything.
      for (at::Tensor& page : segment.pages) page.fill_(std::nan(""));
      cache.store(layer, segment, 0,
                  random({segment.length, config.qkv_size()}, 10 * i + is_own, dtype).to(device));
    }
    rows.push_back({&prompts[i], &own[i]});
  }
  const auto count = static_cast<int64_t>(rows.size());
  const at::Tensor qkv = random({count + 2, config.qkv_size()}, 99, dtype).to(device);
  const at::Tensor out = at::zeros({count + 2, config.q_size()}, qkv.options());
  const at::Tensor expected = at::zeros_like(out);
  decode_attention_reference(spec, cache, layer, rows, qkv, expected);
  for (const KvSegment& segment : own) {  // the step itself must store the last position
    const int64_t last = segment.length - 1;
    cache.store(layer, segment, last, at::full({1, config.qkv_size()}, std::nan(""), qkv.options()));
  }
  decode_attention(spec, cache, layer, DecodeRows(rows, cache), qkv, out);
  CHECK(at::isfinite(out).all().item<bool>());
  const double tolerance = dtype == at::kFloat ? 3e-6 : 8e-3;
  CHECK(at::allclose(out.to(at::kFloat), expected.to(at::kFloat), tolerance, tolerance));

  const at::Tensor alone = at::zeros_like(out);
  for (int64_t i = 0; i < count; ++i) {
    decode_attention(spec, cache, layer, DecodeRows({rows[static_cast<size_t>(i)]}, cache),
                     qkv.narrow(0, i, 1), alone.narrow(0, i, 1));
  }
  CHECK(at::equal(alone, out));
}

void compare_all(at::Device device) {
  const OneThread one_thread;
  for (const Shape& shape :
       {Shape{1, 1, 16}, Shape{4, 4, 64}, Shape{6, 2, 10}, Shape{14, 2, 64}, Shape{20, 2, 16},
        Shape{8, 1, 128}, Shape{5, 1, 80}, Shape{2, 1, 1}, Shape{3, 1, 256}}) {
    for (const int64_t window : {0, 1, 20, 33, 100}) {
      for (const double softcap : {0.0, 2.0}) {
        for (const auto dtype : {at::kFloat, at::kBFloat16}) compare(shape, window, softcap, dtype, device);
      }
    }
  }
}

}  // namespace

TEST(kernel_equals_reference) {
  compare_all(at::kCPU);
}

// On a machine without a GPU, or in a build without CUDA, there is nothing to compare.
TEST(gpu_kernel_equals_reference) {
  if (kernels::device_ops() == nullptr || !at::hasCUDA()) {
    std::printf("  no GPU: not compared\n");
    return;
  }
  compare_all(at::kCUDA);
}

TEST(results_do_not_depend_on_threads) {
  const OneThread one_thread;
  KvCache cache(test::toy_config(), at::kFloat, at::kCPU);
  const ops::AttentionSpec spec{6, 2, 10, 0.3, 0, 0};
  KvSegment prompt;
  cache.grow(prompt, 150);
  cache.store(0, prompt, 0, random({150, 100}, 1, at::kFloat));
  std::vector<KvSegment> own(40);
  std::vector<CachedKeys> rows;
  for (KvSegment& segment : own) {
    cache.grow(segment, 1);
    rows.push_back({&prompt, &segment});
  }
  const at::Tensor qkv = random({40, 100}, 2, at::kFloat);
  std::vector<at::Tensor> results;
  for (const int threads : {1, 2, 3}) {
    at::set_num_threads(threads);
    results.push_back(at::empty({40, 60}));
    decode_attention(spec, cache, 0, DecodeRows(rows, cache), qkv, results.back());
  }
  CHECK(at::equal(results[0], results[1]));
  CHECK(at::equal(results[0], results[2]));
}

TEST(pages_are_used_again) {
  KvCache cache(test::toy_config(), at::kFloat, at::kCPU);
  CHECK(cache.page_bytes() == 2 * 2 * 2 * 10 * 32 * 4);
  KvSegment a, b;
  cache.grow(a, 33);
  CHECK(a.pages.size() == 2 && a.length == 33);
  cache.grow(a, 64);
  CHECK(a.pages.size() == 2 && a.length == 64);
  cache.release(a);
  CHECK(a.pages.empty() && a.length == 0);
  cache.grow(b, 65);
  CHECK(b.pages.size() == 3 && cache.allocated_pages() == 3);
}

TEST_MAIN()
