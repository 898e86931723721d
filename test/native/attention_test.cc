#include "kernels/attention.h"

#include <ATen/core/grad_mode.h>

#include <array>

#include "base/counting_allocator.h"
#include "base/simulated.h"
#include "bfloat16_ways.h"
#include "check.h"
#include "kernels/attention_reference.h"
#include "kernels/attention_sinks.h"

using namespace troupe;

namespace {

struct Problem {
  ops::AttentionSpec spec;
  ops::Segments segments;
  int64_t tail;
};

ops::Segments segments_of(const std::vector<int64_t>& lengths) {
  std::vector<int64_t> offsets{0};
  for (const int64_t length : lengths) offsets.push_back(offsets.back() + length);
  return ops::separate_segments(offsets);
}

std::vector<Problem> problems() {
  const ops::Segments ragged = segments_of({1, 7, 130, 33});
  return {
      {{4, 2, 16, 0.25, 0, 0}, ragged, 5},
      {{4, 1, 14, 0.3, 0, 5}, ragged, 0},
      {{3, 3, 24, 0.2, 8.0, 0}, ragged, 1},
      {{8, 2, 64, 0.125, 0, 0}, segments_of({700, 3, 520}), 9},
      {{2, 1, 32, 0.1, 12.0, 100}, segments_of({600, 64}), 0},
      // Blocks of keys that begin in the middle of a block of queries.
      {{7, 1, 32, 0.15, 0, 0}, segments_of({600, 1030}), 3},
      {{4, 2, 16, 0.25, 0, 500}, segments_of({1100}), 0},
      // Prefixes: of three, of one, of none; with windows that end inside and behind them.
      {{4, 2, 16, 0.25, 0, 0}, {{0, 40, -1}, {40, 41, 0}, {41, 170, 0}, {170, 203, 0}, {203, 260, -1}}, 4},
      {{4, 4, 16, 0.25, 5.0, 0}, {{0, 9, -1}, {9, 29, -1}, {29, 60, 1}, {60, 61, 0}}, 0},
      {{6, 2, 16, 0.25, 0, 20}, {{0, 64, -1}, {64, 100, 0}, {100, 170, 0}}, 2},
      {{8, 1, 32, 0.2, 0, 0}, {{0, 530, -1}, {530, 1070, 0}, {1070, 1090, 0}}, 0},
      // Two sequences that both fill the block of keys in which their prefix ends.
      {{2, 1, 16, 0.25, 0, 0}, {{0, 530, -1}, {530, 1070, 0}, {1070, 1700, 0}}, 0},
  };
}

double relative_error(const at::Tensor& actual, const at::Tensor& expected) {
  return ((actual.to(at::kDouble) - expected).abs().max() / expected.abs().max().clamp_min(1e-30))
      .item<double>();
}

}  // namespace

TEST(matches_double_reference_forward_and_backward) {
  at::manual_seed(1);
  for (const Problem& p : problems()) {
    const ops::Segments& segments = p.segments;
    const int64_t real = ops::real_rows(segments);
    const int64_t rows = real + p.tail;
    const int64_t q_cols = p.spec.num_heads * p.spec.head_dim;
    const int64_t qkv_cols = q_cols + 2 * p.spec.num_kv_heads * p.spec.head_dim;
    const at::Tensor qkv = at::randn({rows, qkv_cols}) * 2;
    const at::Tensor dout = at::randn({rows, q_cols});
    const auto fp64 = at::TensorOptions().dtype(at::kDouble);
    const at::Tensor out64 = at::empty({rows, q_cols}, fp64),
                     lse64 = at::zeros({p.spec.num_heads, rows}, fp64);
    const at::Tensor dqkv64 = at::empty({rows, qkv_cols}, fp64);
    ops::attention_forward_reference(p.spec, qkv.to(at::kDouble), segments, out64, lse64);
    ops::attention_backward_reference(p.spec, qkv.to(at::kDouble), out64, lse64, dout.to(at::kDouble),
                                      segments, dqkv64);

    const at::Tensor out = at::full({rows, q_cols}, NAN), lse = at::full({p.spec.num_heads, rows}, NAN);
    const at::Tensor dqkv = at::full({rows, qkv_cols}, NAN);
    ops::attention_forward(p.spec, qkv, segments, out, lse);
    // A score of 30 is off by 2e-6 in float32, and so is its exponential.
    CHECK(relative_error(out, out64) < 4e-6);
    CHECK(relative_error(lse.narrow(1, 0, real), lse64.narrow(1, 0, real)) < 2e-6);
    ops::attention_backward(p.spec, qkv, out, lse, dout, segments, dqkv);
    CHECK(relative_error(dqkv, dqkv64) < 5e-6);

    const at::Tensor qkv16 = qkv.to(at::kBFloat16), dout16 = dout.to(at::kBFloat16);
    ops::attention_forward_reference(p.spec, qkv16.to(at::kDouble), segments, out64, lse64);
    ops::attention_backward_reference(p.spec, qkv16.to(at::kDouble), out64, lse64, dout16.to(at::kDouble),
                                      segments, dqkv64);
    for_each_bfloat16_gemm([&] {
      const at::Tensor out16 = at::empty({rows, q_cols}, at::kBFloat16);
      ops::attention_forward(p.spec, qkv16, segments, out16, lse);
      CHECK(relative_error(out16, out64) < 5e-3);
      // Products of bfloat16 are exact, and no score is rounded.
      CHECK(relative_error(lse.narrow(1, 0, real), lse64.narrow(1, 0, real)) < 2e-6);
      const at::Tensor dqkv16 = at::full({rows, qkv_cols}, NAN, at::kBFloat16);
      ops::attention_backward(p.spec, qkv16, out16, lse, dout16, segments, dqkv16);
      CHECK(relative_error(dqkv16, dqkv64) < 1e-2);
    });
  }
}

// Queries of some rows alone, which begin and end anywhere.
TEST(runs_of_queries_have_the_bits_of_all_rows_and_their_part_of_the_gradients) {
  at::manual_seed(5);
  for (const Problem& p : problems()) {
    ops::Segments whole = p.segments;
    const int64_t real = ops::real_rows(whole), rows = real + p.tail;
    const int64_t q_cols = p.spec.num_heads * p.spec.head_dim;
    const int64_t qkv_cols = q_cols + 2 * p.spec.num_kv_heads * p.spec.head_dim;
    const at::Tensor qkv = at::randn({rows, qkv_cols}) * 2, dout = at::randn({rows, q_cols});
    const at::Tensor out = at::empty({rows, q_cols}), lse = at::empty({p.spec.num_heads, rows});
    const at::Tensor dqkv = at::empty({rows, qkv_cols});
    ops::attention_forward(p.spec, qkv, whole, out, lse);
    ops::attention_backward(p.spec, qkv, out, lse, dout, whole, dqkv);
    const at::Tensor kv = ops::keys_and_values_of(p.spec, qkv).contiguous();
    at::Tensor dkv_sum = at::zeros_like(kv);
    for (int64_t part = 0; part < 3; ++part) {  // the last one has a run in every second segment
      ops::Segments segments = p.segments;
      segments.share.emplace();
      std::vector<int64_t> taken;
      for (size_t s = 0; s < segments.size(); ++s) {
        const int64_t begin = segments[s].begin, size = segments[s].size();
        const int64_t cuts[] = {0, size / 3, size / 3 + (s % 2 == 0 ? size / 2 : 0), size};
        const std::vector<std::pair<int64_t, int64_t>> runs =
            part == 0   ? std::vector<std::pair<int64_t, int64_t>>{{cuts[0], cuts[1]}}
            : part == 1 ? std::vector<std::pair<int64_t, int64_t>>{{cuts[2], cuts[3]}}
                        : std::vector<std::pair<int64_t, int64_t>>{{cuts[1], cuts[2]}};
        for (const auto& [from, to] : runs) {
          if (from == to) continue;
          segments.share->push_back({static_cast<int64_t>(s), begin + from, begin + to});
          for (int64_t row = begin + from; row < begin + to; ++row) taken.push_back(row);
        }
      }
      const at::Tensor index = at::tensor(taken, at::kLong);
      const auto count = static_cast<int64_t>(taken.size());
      const int64_t padded = count + 2;
      const auto take = [&](const at::Tensor& all) {
        const at::Tensor own = at::full({padded, all.size(1)}, 7.0);
        own.narrow(0, 0, count).copy_(all.index_select(0, index));
        return own;
      };
      const at::Tensor own_q = take(ops::queries_of(p.spec, qkv)), own_dout = take(dout);
      const at::Tensor own_out = at::full({padded, q_cols}, NAN),
                       own_lse = at::full({p.spec.num_heads, padded}, NAN);
      ops::attention_forward(p.spec, own_q, kv, segments, own_out, own_lse);
      CHECK(own_out.narrow(0, 0, count).equal(out.index_select(0, index)));
      CHECK(own_lse.narrow(1, 0, count).equal(lse.index_select(1, index)));
      CHECK(own_out.narrow(0, count, 2).eq(0).all().item<bool>());
      const at::Tensor dq = at::full_like(own_q, NAN), dkv = at::full_like(kv, NAN);
      ops::attention_backward(p.spec, own_q, kv, own_out, own_lse, own_dout, segments, dq, dkv);
      CHECK((dq.narrow(0, 0, count) - ops::queries_of(p.spec, dqkv).index_select(0, index))
                .abs()
                .max()
                .item<double>() < 1e-5 * dqkv.abs().max().item<double>());
      CHECK(dq.narrow(0, count, 2).eq(0).all().item<bool>());
      const at::Tensor reference = at::full_like(dkv, NAN), dq_reference = at::full_like(dq, NAN);
      ops::attention_backward_reference(p.spec, own_q, kv, own_out, own_lse, own_dout, segments, dq_reference,
                                        reference);
      CHECK(relative_error(dkv, reference.to(at::kDouble)) < 2e-5);
      dkv_sum += dkv;
    }
    CHECK(relative_error(dkv_sum, ops::keys_and_values_of(p.spec, dqkv).to(at::kDouble)) < 5e-6);
  }
}

TEST(reference_is_the_same_in_blocks_of_queries) {
  at::manual_seed(6);
  const auto fp64 = at::TensorOptions().dtype(at::kDouble);
  for (const Problem& p : problems()) {
    const int64_t rows = ops::real_rows(p.segments) + p.tail;
    const int64_t q_cols = p.spec.num_heads * p.spec.head_dim;
    const int64_t qkv_cols = q_cols + 2 * p.spec.num_kv_heads * p.spec.head_dim;
    const at::Tensor qkv = at::randn({rows, qkv_cols}, fp64), dout = at::randn({rows, q_cols}, fp64);
    const auto run = [&](int64_t most_scores) {
      const at::Tensor out = at::empty({rows, q_cols}, fp64), lse = at::zeros({p.spec.num_heads, rows}, fp64),
                       dqkv = at::empty({rows, qkv_cols}, fp64);
      ops::attention_forward_reference(p.spec, ops::queries_of(p.spec, qkv),
                                       ops::keys_and_values_of(p.spec, qkv), p.segments, out, lse,
                                       most_scores);
      ops::attention_backward_reference(
          p.spec, ops::queries_of(p.spec, qkv), ops::keys_and_values_of(p.spec, qkv), out, lse, dout,
          p.segments, ops::queries_of(p.spec, dqkv), ops::keys_and_values_of(p.spec, dqkv), most_scores);
      return std::array{out, lse, dqkv};
    };
    const auto whole = run(int64_t{1} << 40), blocks = run(40 * p.spec.num_heads);
    for (size_t i = 0; i < whole.size(); ++i) CHECK(relative_error(blocks[i], whole[i]) < 1e-12);
  }
}

// Where flash attention does not fit, as with a soft cap. On a simulated GPU the memory shows.
TEST(a_long_sequence_on_a_gpu_takes_no_memory_by_its_square) {
  install_counting_allocator(at::kMeta);
  const SimulateGpu machine(true);
  constexpr int64_t kRows = 40'000, kHeads = 16, kDim = 64;
  const ops::AttentionSpec spec{kHeads, 8, kDim, 0.1, 50.0, 0};
  const ops::Segments segments = segments_of({kRows});
  const auto meta = [](at::IntArrayRef shape, at::ScalarType dtype) {
    return at::empty(shape, at::device(at::kMeta).dtype(dtype));
  };
  const at::Tensor qkv = meta({kRows, 2 * kHeads * kDim}, at::kBFloat16),
                   out = meta({kRows, kHeads * kDim}, at::kBFloat16), lse = meta({kHeads, kRows}, at::kFloat),
                   dqkv = at::empty_like(qkv);
  const auto count = std::make_shared<ByteCount>();
  const CountAllocations scope(count, at::kMeta);
  constexpr int64_t kBlock = 4 * ops::kMostScores, kKeys = kRows * kHeads * kDim * 4;
  ops::attention_forward(spec, qkv, segments, out, lse);
  CHECK(count->peak() >= 2 * kBlock);
  CHECK(count->peak() < 4 * kBlock + 2 * kKeys);
  ops::attention_backward(spec, qkv, out, lse, out, segments, dqkv);
  CHECK(count->peak() < 4 * kBlock + 5 * kKeys);
}

TEST(reference_gradient_is_autograd_of_reference_forward) {
  at::manual_seed(2);
  const ops::AttentionSpec spec{4, 2, 6, 0.4, 3.0, 4};
  const ops::Segments segments = {{0, 5, -1}, {5, 7, 0}, {7, 8, -1}, {8, 11, 0}};
  const auto fp64 = at::TensorOptions().dtype(at::kDouble);
  const at::Tensor qkv = at::randn({11, 48}, fp64), dout = at::randn({11, 24}, fp64);
  const at::Tensor out = at::empty({11, 24}, fp64), lse = at::zeros({4, 11}, fp64),
                   dqkv = at::empty({11, 48}, fp64);
  ops::attention_forward_reference(spec, qkv, segments, out, lse);
  ops::attention_backward_reference(spec, qkv, out, lse, dout, segments, dqkv);
  const double step = 1e-6;
  for (int64_t i = 0; i < qkv.numel(); i += 17) {
    const auto loss = [&](double delta) {
      const at::Tensor moved = qkv.clone();
      moved.view({-1})[i] += delta;
      const at::Tensor result = at::empty({11, 24}, fp64);
      ops::attention_forward_reference(spec, moved, segments, result, at::Tensor());
      return (result * dout).sum().item<double>();
    };
    CHECK_CLOSE((loss(step) - loss(-step)) / (2 * step), dqkv.view({-1})[i].item<double>(), 1e-6);
  }
}

// As a key of the value zero whose score is the sink, in double precision; gradients by autograd.
TEST(sinks_are_keys_without_values) {
  at::manual_seed(7);
  const int64_t heads = 6, key_heads = 2, dim = 8;
  for (const int64_t window : {0, 3}) {
    for (const double magnitude : {1.0, 60.0}) {  // sinks far above and below the scores, too
      ops::AttentionSpec spec{heads, key_heads, dim, 0.4, 0, window};
      spec.sinks = magnitude * at::randn({heads});
      const std::vector<int64_t> offsets{0, 5, 6, 75};
      const int64_t real = offsets.back(), rows = real + 2;  // the last belong to none
      const at::Tensor qkv = at::randn({rows, (heads + 2 * key_heads) * dim}),
                       dout = at::randn({rows, heads * dim});
      dout.narrow(0, real, 2).zero_();
      const at::Tensor out = at::empty({rows, heads * dim}), lse = at::empty({heads, rows});
      ops::attention_forward(spec, qkv, ops::separate_segments(offsets), out, lse);
      const at::Tensor dqkv = at::empty_like(qkv);
      ops::attention_backward(spec, qkv, out, lse, dout, ops::separate_segments(offsets), dqkv);
      const at::Tensor d_sinks = ops::sinks_gradient(spec, out, lse, dout, real);
      at::Tensor alone = at::empty_like(out);  // without a place for the sums
      ops::attention_forward(spec, qkv, ops::separate_segments(offsets), alone, {});
      CHECK(at::equal(alone, out));

      const at::AutoGradMode on(true);
      const at::Tensor leaf = qkv.to(at::kDouble).requires_grad_();
      const at::Tensor sinks = spec.sinks.to(at::kDouble).requires_grad_();
      at::Tensor loss = at::zeros({}, at::kDouble);
      for (size_t s = 0; s + 1 < offsets.size(); ++s) {
        const int64_t n = offsets[s + 1] - offsets[s];
        const at::Tensor own =
            leaf.narrow(0, offsets[s], n).view({n, heads + 2 * key_heads, dim}).transpose(0, 1);
        const auto each = [&](int64_t first) {
          return own.narrow(0, first, key_heads).repeat_interleave(heads / key_heads, 0);
        };
        const at::Tensor distance = at::arange(n).unsqueeze(1) - at::arange(n).unsqueeze(0);
        at::Tensor hidden = distance < 0;
        if (window > 0) hidden = hidden.logical_or(distance >= window);
        const at::Tensor scores =
            at::matmul(own.narrow(0, 0, heads), each(heads).transpose(1, 2)) * spec.scale;
        const at::Tensor joined = at::cat(
            {scores.masked_fill(hidden, -INFINITY), sinks.view({heads, 1, 1}).expand({heads, n, 1})}, 2);
        const at::Tensor result =
            at::matmul(at::softmax(joined, -1).narrow(2, 0, n), each(heads + key_heads)).transpose(0, 1);
        CHECK(relative_error(out.narrow(0, offsets[s], n), result.reshape({n, -1}).detach()) < 3e-6);
        loss = loss + (result.reshape({n, -1}) * dout.narrow(0, offsets[s], n)).sum();
      }
      loss.backward();
      CHECK(relative_error(dqkv, leaf.grad()) < 2e-5);
      CHECK(relative_error(d_sinks, sinks.grad()) < 2e-5);
      CHECK(!out.narrow(0, real, 2).any().item<bool>());
    }
  }
}

TEST(a_sequence_does_not_see_its_neighbours_bitwise) {
  at::manual_seed(3);
  const ops::AttentionSpec spec{4, 2, 16, 0.25, 0, 0};
  const at::Tensor sequence = at::randn({37, 128}), other = at::randn({90, 128});
  const auto run = [&](const at::Tensor& qkv, const std::vector<int64_t>& offsets) {
    const at::Tensor out = at::empty({qkv.size(0), 64});
    ops::attention_forward(spec, qkv, ops::separate_segments(offsets), out, at::Tensor());
    return out;
  };
  const at::Tensor alone = run(sequence, {0, 37});
  CHECK(at::equal(alone, run(at::cat({other, sequence}), {0, 90, 127}).narrow(0, 90, 37)));
  CHECK(at::equal(alone, run(at::cat({sequence, other, other}), {0, 37, 127, 217}).narrow(0, 0, 37)));
}

TEST(a_shared_prefix_gives_the_bits_of_a_separate_one) {
  at::manual_seed(4);
  for (const ops::AttentionSpec& spec :
       {ops::AttentionSpec{4, 2, 16, 0.25, 0, 0}, ops::AttentionSpec{4, 1, 24, 0.2, 6.0, 37}}) {
    const int64_t q_cols = spec.num_heads * spec.head_dim;
    const int64_t cols = q_cols + 2 * spec.num_kv_heads * spec.head_dim;
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
      const auto run = [&](const at::Tensor& qkv, const ops::Segments& segments) {
        const at::Tensor out = at::empty({qkv.size(0), q_cols}, qkv.options());
        const at::Tensor lse = at::zeros({spec.num_heads, qkv.size(0)});
        ops::attention_forward(spec, qkv, segments, out, lse);
        return std::pair(out, lse);
      };
      for (const int64_t prefix : {1, 31, 32, 100, 515}) {
        const at::Tensor prompt = at::randn({prefix, cols}).to(dtype);
        const at::Tensor a = at::randn({70, cols}).to(dtype), b = at::randn({3, cols}).to(dtype);
        const auto [shared, shared_lse] =
            run(at::cat({prompt, a, b}),
                {{0, prefix, -1}, {prefix, prefix + 70, 0}, {prefix + 70, prefix + 73, 0}});
        const auto [alone, alone_lse] = run(at::cat({prompt, a}), {{0, prefix + 70, -1}});
        CHECK(at::equal(shared.narrow(0, 0, prefix + 70), alone));
        CHECK(at::equal(shared_lse.narrow(1, 0, prefix + 70), alone_lse));
        const auto [other, other_lse] = run(at::cat({prompt, b}), {{0, prefix + 3, -1}});
        CHECK(at::equal(shared.narrow(0, prefix + 70, 3), other.narrow(0, prefix, 3)));
        CHECK(at::equal(shared_lse.narrow(1, prefix + 70, 3), other_lse.narrow(1, prefix, 3)));
      }
    }
  }
}

TEST(some_of_the_heads_have_the_bits_of_all) {
  at::manual_seed(5);
  const ops::Segments segments = segments_of({700, 1, 53, 130});
  const int64_t rows = 890;
  for (const auto& [heads, dim] : {std::pair{8, 64}, {8, 16}, {16, 128}, {2, 80}, {7, 64}}) {
    const ops::AttentionSpec whole{heads, 1, dim, 0.125, 0, 0};
    const at::Tensor q = at::randn({rows, heads * dim}), kv = at::randn({rows, 2 * dim});
    const at::Tensor out = at::empty({rows, heads * dim});
    ops::attention_forward(whole, at::cat({q, kv}, 1), segments, out, at::Tensor());
    for (int64_t count = 1; count < heads; count *= 2) {
      ops::AttentionSpec part = whole;
      part.num_heads = count;
      part.shape_groups = heads;
      for (const int64_t first : {int64_t{0}, heads - count}) {
        const at::Tensor own = q.narrow(1, first * dim, count * dim);
        const at::Tensor result = at::empty({rows, count * dim});
        ops::attention_forward(part, at::cat({own, kv}, 1), segments, result, at::Tensor());
        CHECK(result.equal(out.narrow(1, first * dim, count * dim)));
      }
    }
  }
}

TEST_MAIN()
