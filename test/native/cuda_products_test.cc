// CUDA's products, head and attention against the references in float64 on the CPU.
#include <ATen/ATen.h>

#include "base/parallel.h"
#include "cuda_inputs.h"
#include "kernels/attention_reference.h"
#include "kernels/linear_log_prob.h"
#include "kernels/reference.h"
#include "model/adapter.h"

namespace {

using namespace troupe;
using namespace troupe::test;

TEST(gemm_adds_bfloat16_and_float32_products_to_a_float32_matrix) {
  at::manual_seed(8);
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    for (const auto& [m, k, n] :
         {std::tuple(1, 1, 1), std::tuple(7, 33, 1), std::tuple(130, 1, 65), std::tuple(64, 300, 129)}) {
      const at::Tensor a = random({m, k}, type), b = random({k, n}, type);
      const at::Tensor a_t = random({k, m}, type).t(), b_t = random({n, k}, type).t();
      for (const auto& [left, right] :
           {std::pair(a, b), std::pair(a_t, b), std::pair(a, b_t), std::pair(a_t, b_t)}) {
        const at::Tensor out = on_gpu(at::ones({m, n})), fresh = poisoned({m, n}, at::kFloat);
        const at::Tensor product = at::mm(wide(left), wide(right));
        kernels::device_ops()->gemm(left, right, out, true);
        kernels::device_ops()->gemm(left, right, fresh, false);
        check_near(out, product + 1, 1e-5, named("gemm accumulating", type, m, n));
        check_near(fresh, product, 1e-5, named("gemm", type, m, n));
      }
    }
  }
}

struct HeadCase {
  int64_t rows, hidden, vocab;
  double temperature, softcap, magnitude;
};

ops::LogProbRows make_rows(int64_t rows, const at::TensorOptions& options) {
  const auto make = [&] { return at::full({rows}, kNan, options); };
  return {make(), make(), make(), make()};
}

void check_head(const HeadCase& c, at::ScalarType type) {
  const std::string what = named("head", type, c.rows, c.vocab) + " T=" + std::to_string(c.temperature);
  const at::Tensor hidden = random({c.rows, c.hidden}, type) * c.magnitude,
                   weight = random({c.vocab, c.hidden}, type);
  const at::Tensor targets = on_gpu(at::randint(c.vocab, {c.rows}, at::kInt));
  const at::Tensor g = at::randn({c.rows}), h = at::randn({c.rows});
  const ops::RowGradients gradients = [&](int64_t begin, int64_t end, const at::Tensor& lp,
                                          const at::Tensor& ent) {
    lp.copy_(g.narrow(0, begin, end - begin));
    ent.copy_(h.narrow(0, begin, end - begin));
  };
  const ops::LogProbSpec spec{c.temperature, c.softcap};
  const ops::LogProbRows rows = make_rows(c.rows, g.options().device(at::kCUDA)),
                         rows64 = make_rows(c.rows, at::TensorOptions().dtype(at::kDouble));
  const at::Tensor d_hidden = poisoned({c.rows, c.hidden}, type),
                   d_weight = on_gpu(at::ones({c.vocab, c.hidden}));
  const at::Tensor d_hidden64 = at::empty({c.rows, c.hidden}, at::kDouble), d_weight64 = wide(d_weight);
  ops::linear_log_prob_forward(spec, hidden, weight, targets, rows);
  const at::Tensor first = rows.log_probs.clone();
  ops::linear_log_prob_backward(spec, hidden, weight, targets, rows, true, gradients, d_hidden, d_weight);
  CHECK(at::equal(first, rows.log_probs));
  ops::linear_log_prob_backward_reference(spec, wide(hidden), wide(weight), targets.cpu(), rows64, true,
                                          gradients, d_hidden64, d_weight64);
  const double scale = std::max(1.0, c.magnitude / c.temperature);
  check_near(rows.log_probs, rows64.log_probs, 4e-6 * scale, what + " log_probs");
  check_near(rows.entropy, rows64.entropy, 4e-5 * scale, what + " entropy");
  check_near(rows.sum_pi_squared, rows64.sum_pi_squared, 4e-5 * scale, what + " sum_pi_squared");
  // The gradient by the logits is rounded to the dtype of the model before the last two GEMMs.
  const double bound = type == at::kFloat ? 4e-4 : 2e-2;
  check_near(d_hidden, d_hidden64, bound * scale, what + " d_hidden");
  check_near(d_weight, d_weight64, bound * scale, what + " d_weight");
}

// Small integers: every product and sum is exact in float32, and those above 256 are not in bfloat16.
TEST(gradients_of_adapters_are_summed_in_float32) {
  at::manual_seed(9);
  const auto integers = [](at::IntArrayRef sizes) {
    return at::randint(-1, 2, sizes).to(at::kBFloat16).to(at::kCUDA);
  };
  const int64_t n = 2000, in = 40, out = 24, rank = 4, row = 8, rows = 16;
  const at::Tensor x = integers({n, in}).abs(), dy = integers({n, out}).abs();
  const Adapter adapter{integers({rank, in}).abs(),
                        integers({rows, rank}).abs(),
                        on_gpu(at::full({rank, in}, 1000.5)),
                        on_gpu(at::full({rows, rank}, 2000.25)),
                        row,
                        rows,
                        2};
  adapter.accumulate_grad(dy, x, ops::PackedMatrix::of(x, false));
  const at::Tensor d_out = wide(dy).narrow(1, row, rows);
  const at::Tensor by_b = 2000.25 + 2 * at::mm(d_out.t(), at::mm(wide(x), wide(adapter.a).t()));
  const at::Tensor by_a = 1000.5 + 2 * at::mm(at::mm(d_out, wide(adapter.b)).t(), wide(x));
  CHECK(wide(adapter.b_grad).equal(by_b));
  CHECK(wide(adapter.a_grad).equal(by_a));
}

TEST(linear_log_prob_matches_the_float64_reference_over_shapes_and_extremes) {
  at::manual_seed(5);
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    for (const HeadCase& c : std::vector<HeadCase>{{128, 16, 5, 1, 0, 1},
                                                   {1, 64, 1000, 1, 0, 1},
                                                   {256, 48, 1025, 0.7, 0, 1},
                                                   {128, 33, 3001, 5, 12, 3},
                                                   {256, 64, 2048, 0.05, 0, 0.1},
                                                   {128, 8, 1500, 1, 0, 300},
                                                   {2304, 64, 32003, 1, 0, 1},
                                                   {128, 1, 1, 1, 0, 1}}) {
      check_head(c, type);
    }
  }
}

TEST(logits_of_1e4_give_finite_results) {
  at::manual_seed(6);
  const auto options = at::TensorOptions().device(at::kCUDA);
  const at::Tensor hidden = at::ones({128, 1}, options);
  const at::Tensor weight = at::linspace(-1e4, 1e4, 3000, options).unsqueeze(1);
  const at::Tensor targets = at::zeros({128}, options.dtype(at::kInt));
  const ops::LogProbRows rows = make_rows(128, options);
  ops::linear_log_prob_forward({1, 0}, hidden, weight, targets, rows);
  CHECK_CLOSE(rows.log_probs[0].item<double>(), -2e4, 2);
  CHECK(rows.entropy.isfinite().all().item<bool>() && rows.sum_pi_squared.isfinite().all().item<bool>());
}

TEST(rows_of_the_head_are_bitwise_independent_of_their_neighbours) {
  at::manual_seed(7);
  const int64_t count = 3000;
  const at::Tensor hidden = random({count, 64}, at::kBFloat16), weight = random({32001, 64}, at::kBFloat16);
  const at::Tensor targets = on_gpu(at::randint(32001, {count}, at::kInt));
  const at::Tensor order = on_gpu(at::randperm(count));
  const auto run = [&](const at::Tensor& x, const at::Tensor& t) {
    const ops::LogProbRows rows = make_rows(x.size(0), x.options().dtype(at::kFloat));
    ops::linear_log_prob_forward({1, 0}, x, weight, t, rows);
    return rows;
  };
  const ops::LogProbRows straight = run(hidden, targets);
  const ops::LogProbRows shuffled = run(hidden.index_select(0, order), targets.index_select(0, order));
  CHECK(at::equal(straight.log_probs.index_select(0, order), shuffled.log_probs));
  CHECK(at::equal(straight.entropy.index_select(0, order), shuffled.entropy));
  const ops::LogProbRows few = run(hidden.narrow(0, 0, 5), targets.narrow(0, 0, 5).contiguous());
  CHECK(at::equal(straight.log_probs.narrow(0, 0, 5), few.log_probs));
}

// q, k, v of `rows` rows in bfloat16, and a gradient.
struct AttentionInputs {
  at::Tensor qkv, dout;
  AttentionInputs(const ops::AttentionSpec& spec, int64_t rows)
      : qkv(random({rows, (spec.num_heads + 2 * spec.num_kv_heads) * spec.head_dim}, at::kBFloat16)),
        dout(random({rows, spec.num_heads * spec.head_dim}, at::kBFloat16)) {}
};
struct AttentionResults {
  at::Tensor out, lse, dqkv;
  AttentionResults(const ops::AttentionSpec& spec, const AttentionInputs& x, const ops::Segments& segments)
      : out(poisoned({x.qkv.size(0), spec.num_heads * spec.head_dim}, at::kBFloat16)),
        lse(poisoned({spec.num_heads, x.qkv.size(0)}, at::kFloat)),
        dqkv(poisoned({x.qkv.size(0), x.qkv.size(1)}, at::kBFloat16)) {
    ops::attention_forward(spec, x.qkv, segments, out, lse);
    ops::attention_backward(spec, x.qkv, out, lse, x.dout, segments, dqkv);
  }
};

TEST(attention_matches_the_float64_reference) {
  at::manual_seed(8);
  const ops::Segments ragged = ops::separate_segments({0, 1, 8, 138, 171});
  const ops::Segments shared{{0, 40, -1}, {40, 41, 0}, {41, 170, 0}, {170, 203, 0}, {203, 260, -1}};
  const ops::Segments single = ops::separate_segments({0, 1, 2, 3});
  for (const ops::AttentionSpec& spec :
       {ops::AttentionSpec{4, 2, 64, 0.125, 0, 0}, ops::AttentionSpec{4, 4, 128, 0.1, 0, 20},
        ops::AttentionSpec{8, 1, 24, 0.2, 0, 0}, ops::AttentionSpec{4, 2, 64, 0.125, 30, 0},
        ops::AttentionSpec{4, 2, 14, 0.25, 0, 0}}) {
    for (const ops::Segments& segments : {ragged, shared, single}) {
      const int64_t real = ops::real_rows(segments), rows = real + 5;
      const AttentionInputs x(spec, rows);
      const AttentionResults got(spec, x, segments);
      const at::Tensor out = at::empty({rows, got.out.size(1)}, at::kDouble);
      const at::Tensor lse = at::zeros({spec.num_heads, rows}, at::kDouble);
      const at::Tensor dqkv = at::empty({rows, x.qkv.size(1)}, at::kDouble);
      ops::attention_forward_reference(spec, wide(x.qkv), segments, out, lse);
      ops::attention_backward_reference(spec, wide(x.qkv), out, lse, wide(x.dout), segments, dqkv);
      const std::string what = "attention, head_dim " + std::to_string(spec.head_dim) + ", " +
                               std::to_string(segments.size()) + " segments";
      check_near(got.out, out, kBFloat16Tolerance, what + " out");
      check_near(got.lse.narrow(1, 0, real), lse.narrow(1, 0, real), 1e-3, what + " lse");
      check_near(got.dqkv, dqkv, 3 * kBFloat16Tolerance, what + " dqkv");
      CHECK(got.dqkv.equal(AttentionResults(spec, x, segments).dqkv));
    }
  }
}

TEST(attention_of_a_row_is_bitwise_independent_of_the_packing) {
  at::manual_seed(9);
  const ops::AttentionSpec spec{8, 2, 64, 0.125, 0, 0};
  const ops::Segments shared{{0, 300, -1}, {300, 301, 0}, {301, 700, 0}, {700, 1000, -1}};
  const AttentionInputs x(spec, 1000);
  const AttentionResults together(spec, x, shared);
  // The prompt and its second response as one sequence of their own.
  AttentionInputs alone(spec, 699);
  alone.qkv = at::cat({x.qkv.narrow(0, 0, 300), x.qkv.narrow(0, 301, 399)});
  const AttentionResults sequence(spec, alone, ops::separate_segments({0, 699}));
  CHECK(sequence.out.narrow(0, 0, 300).equal(together.out.narrow(0, 0, 300)));
  CHECK(sequence.out.narrow(0, 300, 399).equal(together.out.narrow(0, 301, 399)));
}

}  // namespace

int main() {
  return run_on_gpu();
}
