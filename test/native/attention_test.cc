#include "kernels/attention.h"

#include "check.h"
#include "kernels/attention_reference.h"

using namespace troupe;

namespace {

struct Problem {
  ops::AttentionSpec spec;
  std::vector<int64_t> lengths;
  int64_t tail;
};

std::vector<Problem> problems() {
  const std::vector<int64_t> ragged = {1, 7, 130, 33};
  return {
      {{4, 2, 16, 0.25, 0, 0}, ragged, 5},
      {{4, 1, 14, 0.3, 0, 5}, ragged, 0},
      {{3, 3, 24, 0.2, 8.0, 0}, ragged, 1},
      {{8, 2, 64, 0.125, 0, 0}, {700, 3, 520}, 9},
      {{2, 1, 32, 0.1, 12.0, 100}, {600, 64}, 0},
      // Blocks of keys that begin in the middle of a block of queries.
      {{7, 1, 32, 0.15, 0, 0}, {600, 1030}, 3},
      {{4, 2, 16, 0.25, 0, 500}, {1100}, 0},
  };
}

std::vector<int64_t> offsets_of(const std::vector<int64_t>& lengths) {
  std::vector<int64_t> offsets{0};
  for (const int64_t length : lengths) offsets.push_back(offsets.back() + length);
  return offsets;
}

double relative_error(const at::Tensor& actual, const at::Tensor& expected) {
  return ((actual.to(at::kDouble) - expected).abs().max() / expected.abs().max().clamp_min(1e-30))
      .item<double>();
}

}  // namespace

TEST(matches_double_reference_forward_and_backward) {
  at::manual_seed(1);
  for (const Problem& p : problems()) {
    const std::vector<int64_t> offsets = offsets_of(p.lengths);
    const int64_t rows = offsets.back() + p.tail;
    const int64_t q_cols = p.spec.num_heads * p.spec.head_dim;
    const int64_t qkv_cols = q_cols + 2 * p.spec.num_kv_heads * p.spec.head_dim;
    const at::Tensor qkv = at::randn({rows, qkv_cols}) * 2;
    const at::Tensor dout = at::randn({rows, q_cols});
    const auto fp64 = at::TensorOptions().dtype(at::kDouble);
    const at::Tensor out64 = at::empty({rows, q_cols}, fp64),
                     lse64 = at::zeros({p.spec.num_heads, rows}, fp64);
    const at::Tensor dqkv64 = at::empty({rows, qkv_cols}, fp64);
    ops::attention_forward_reference(p.spec, qkv.to(at::kDouble), offsets, out64, lse64);
    ops::attention_backward_reference(p.spec, qkv.to(at::kDouble), out64, lse64, dout.to(at::kDouble),
                                      offsets, dqkv64);

    const at::Tensor out = at::full({rows, q_cols}, NAN), lse = at::full({p.spec.num_heads, rows}, NAN);
    const at::Tensor dqkv = at::full({rows, qkv_cols}, NAN);
    ops::attention_forward(p.spec, qkv, offsets, out, lse);
    CHECK(relative_error(out, out64) < 2e-6);
    CHECK(relative_error(lse.narrow(1, 0, offsets.back()), lse64.narrow(1, 0, offsets.back())) < 2e-6);
    ops::attention_backward(p.spec, qkv, out, lse, dout, offsets, dqkv);
    CHECK(relative_error(dqkv, dqkv64) < 5e-6);

    const at::Tensor qkv16 = qkv.to(at::kBFloat16), out16 = at::empty({rows, q_cols}, at::kBFloat16);
    ops::attention_forward(p.spec, qkv16, offsets, out16, lse);
    ops::attention_forward_reference(p.spec, qkv16.to(at::kDouble), offsets, out64, lse64);
    CHECK(relative_error(out16, out64) < 5e-3);
  }
}

TEST(reference_gradient_is_autograd_of_reference_forward) {
  at::manual_seed(2);
  const ops::AttentionSpec spec{4, 2, 6, 0.4, 3.0, 4};
  const std::vector<int64_t> offsets = {0, 9, 11};
  const auto fp64 = at::TensorOptions().dtype(at::kDouble);
  const at::Tensor qkv = at::randn({11, 48}, fp64), dout = at::randn({11, 24}, fp64);
  const at::Tensor out = at::empty({11, 24}, fp64), lse = at::zeros({4, 11}, fp64),
                   dqkv = at::empty({11, 48}, fp64);
  ops::attention_forward_reference(spec, qkv, offsets, out, lse);
  ops::attention_backward_reference(spec, qkv, out, lse, dout, offsets, dqkv);
  const double step = 1e-6;
  for (int64_t i = 0; i < qkv.numel(); i += 17) {
    const auto loss = [&](double delta) {
      const at::Tensor moved = qkv.clone();
      moved.view({-1})[i] += delta;
      const at::Tensor result = at::empty({11, 24}, fp64);
      ops::attention_forward_reference(spec, moved, offsets, result, at::Tensor());
      return (result * dout).sum().item<double>();
    };
    CHECK_CLOSE((loss(step) - loss(-step)) / (2 * step), dqkv.view({-1})[i].item<double>(), 1e-6);
  }
}

TEST(a_sequence_does_not_see_its_neighbours_bitwise) {
  at::manual_seed(3);
  const ops::AttentionSpec spec{4, 2, 16, 0.25, 0, 0};
  const at::Tensor sequence = at::randn({37, 128}), other = at::randn({90, 128});
  const auto run = [&](const at::Tensor& qkv, const std::vector<int64_t>& offsets) {
    const at::Tensor out = at::empty({qkv.size(0), 64});
    ops::attention_forward(spec, qkv, offsets, out, at::Tensor());
    return out;
  };
  const at::Tensor alone = run(sequence, {0, 37});
  CHECK(at::equal(alone, run(at::cat({other, sequence}), {0, 90, 127}).narrow(0, 90, 37)));
  CHECK(at::equal(alone, run(at::cat({sequence, other, other}), {0, 37, 127, 217}).narrow(0, 0, 37)));
}

TEST_MAIN()
