#include "kernels/linear_log_prob.h"

#include "base/parallel.h"
#include "check.h"

using namespace troupe;

namespace {

ops::LogProbRows make_rows(int64_t n, at::ScalarType type) {
  const auto make = [&] { return at::full({n}, NAN, at::TensorOptions().dtype(type)); };
  return {make(), make(), make(), make()};
}

double worst(const at::Tensor& actual, const at::Tensor& expected) {
  return ((actual.to(at::kDouble) - expected).abs() / expected.abs().clamp_min(1)).max().item<double>();
}

double worst_of_largest(const at::Tensor& actual, const at::Tensor& expected) {
  return ((actual.to(at::kDouble) - expected).abs().max() / expected.abs().max()).item<double>();
}

struct Outcome {
  ops::LogProbRows rows;
  at::Tensor d_hidden, d_weight;
};

// Both passes in the dtype of the operands, d_weight added to ones, and the reference's in double. The
// forward and the backward must give the same log-probs.
std::pair<Outcome, Outcome> run_beside_double(const ops::LogProbSpec& spec, const at::Tensor& hidden,
                                              const at::Tensor& weight) {
  const int64_t n = hidden.size(0);
  const at::Tensor targets = at::randint(weight.size(0), {n}, at::kInt);
  const at::Tensor g = at::randn({n}), h = at::randn({n});
  const ops::RowGradients gradients = [&](int64_t begin, int64_t end, const at::Tensor& lp,
                                          const at::Tensor& ent) {
    lp.copy_(g.narrow(0, begin, end - begin));
    ent.copy_(h.narrow(0, begin, end - begin));
  };
  const at::Tensor hidden64 = hidden.to(at::kDouble), weight64 = weight.to(at::kDouble);
  const Outcome own{make_rows(n, at::kFloat), at::full_like(hidden, NAN),
                    at::ones_like(weight, at::TensorOptions().dtype(at::kFloat))};
  const Outcome reference{make_rows(n, at::kDouble), at::empty_like(hidden64), at::ones_like(weight64)};
  ops::linear_log_prob_forward(spec, hidden, weight, targets, own.rows);
  const at::Tensor first = own.rows.log_probs.clone();
  ops::linear_log_prob_backward(spec, hidden, weight, targets, own.rows, true, gradients, own.d_hidden,
                                own.d_weight);
  CHECK(at::equal(first, own.rows.log_probs));
  ops::linear_log_prob_backward_reference(spec, hidden64, weight64, targets, reference.rows, true, gradients,
                                          reference.d_hidden, reference.d_weight);
  return {own, reference};
}

}  // namespace

TEST(matches_double_reference_over_shapes_and_extremes) {
  at::manual_seed(1);
  struct Case {
    int64_t n, h, v;
    double temperature, softcap, magnitude;
  };
  for (const Case& c : std::vector<Case>{{128, 16, 5, 1, 0, 1},
                                         {256, 48, 1025, 0.7, 0, 1},
                                         {128, 33, 3001, 5, 12, 3},
                                         {256, 64, 2048, 0.05, 0, 0.1},
                                         {128, 8, 1500, 1, 0, 300},
                                         {128, 1, 1, 1, 0, 1}}) {
    const at::Tensor hidden = at::randn({c.n, c.h}) * c.magnitude, weight = at::randn({c.v, c.h});
    const auto [own, reference] = run_beside_double({c.temperature, c.softcap}, hidden, weight);
    const double scale = 1e-6 * std::max(1.0, c.magnitude / c.temperature);
    CHECK(worst(own.rows.log_probs, reference.rows.log_probs) < 4 * scale);
    CHECK(worst(own.rows.entropy, reference.rows.entropy) < 40 * scale);
    CHECK(worst(own.rows.sum_pi_squared, reference.rows.sum_pi_squared) < 40 * scale);
    CHECK(worst(own.d_hidden, reference.d_hidden) < 400 * scale);
    CHECK(worst(own.d_weight, reference.d_weight) < 400 * scale);
  }
}

TEST(bfloat16_operands_are_summed_in_float32) {
  at::manual_seed(4);
  for (const int64_t width : {48, 33}) {  // an odd one: the last step of the products is half empty
    const at::Tensor hidden = at::randn({256, width}).to(at::kBFloat16);
    const at::Tensor weight = at::randn({1700, width}).to(at::kBFloat16);
    const auto [own, reference] = run_beside_double({0.7, 0}, hidden, weight);
    CHECK(worst(own.rows.log_probs, reference.rows.log_probs) < 1e-5);
    CHECK(worst(own.rows.entropy, reference.rows.entropy) < 1e-4);
    // The gradient by the logits is rounded to bfloat16, each by 2^-8 at most, and then that by the hidden
    // states.
    CHECK(worst_of_largest(own.d_weight, reference.d_weight) < 0.004);
    CHECK(worst_of_largest(own.d_hidden, reference.d_hidden) < 0.008);
  }
}

TEST(reference_gradient_is_the_finite_difference) {
  at::manual_seed(2);
  const ops::LogProbSpec spec{0.8, 5.0};
  const auto fp64 = at::TensorOptions().dtype(at::kDouble);
  const at::Tensor hidden = at::randn({4, 6}, fp64), weight = at::randn({11, 6}, fp64);
  const at::Tensor targets = at::randint(11, {4}, at::kInt), g = at::randn({4}, fp64),
                   h = at::randn({4}, fp64);
  const at::Tensor d_hidden = at::empty({4, 6}, fp64), d_weight = at::zeros({11, 6}, fp64);
  ops::linear_log_prob_backward_reference(
      spec, hidden, weight, targets, make_rows(4, at::kDouble), true,
      [&](int64_t, int64_t, const at::Tensor& lp, const at::Tensor& ent) {
        lp.copy_(g);
        ent.copy_(h);
      },
      d_hidden, d_weight);
  const auto loss = [&](const at::Tensor& x, const at::Tensor& w) {
    const ops::LogProbRows rows = make_rows(4, at::kDouble);
    ops::linear_log_prob_forward_reference(spec, x, w, targets, rows);
    return (rows.log_probs * g + rows.entropy * h).sum().item<double>();
  };
  const double step = 1e-6;
  for (int64_t i = 0; i < 24; i += 5) {
    const at::Tensor up = hidden.clone(), down = hidden.clone();
    up.view({-1})[i] += step;
    down.view({-1})[i] -= step;
    CHECK_CLOSE((loss(up, weight) - loss(down, weight)) / (2 * step), d_hidden.view({-1})[i].item<double>(),
                1e-6);
  }
  for (int64_t i = 0; i < 66; i += 7) {
    const at::Tensor up = weight.clone(), down = weight.clone();
    up.view({-1})[i] += step;
    down.view({-1})[i] -= step;
    CHECK_CLOSE((loss(hidden, up) - loss(hidden, down)) / (2 * step), d_weight.view({-1})[i].item<double>(),
                1e-6);
  }
}

TEST(rows_are_bitwise_independent_of_their_neighbours) {
  at::manual_seed(3);
  const at::Tensor hidden = at::randn({kRowTile * 3, 40}), weight = at::randn({2500, 40});
  const at::Tensor targets = at::randint(2500, {kRowTile * 3}, at::kInt);
  const at::Tensor order = at::randperm(kRowTile * 3);
  const auto run = [&](const at::Tensor& x, const at::Tensor& t) {
    const ops::LogProbRows rows = make_rows(x.size(0), at::kFloat);
    ops::linear_log_prob_forward({1, 0}, x, weight, t, rows);
    return rows;
  };
  const ops::LogProbRows straight = run(hidden, targets);
  const ops::LogProbRows shuffled = run(hidden.index_select(0, order), targets.index_select(0, order));
  CHECK(at::equal(straight.log_probs.index_select(0, order), shuffled.log_probs));
  CHECK(at::equal(straight.entropy.index_select(0, order), shuffled.entropy));
  const ops::LogProbRows one =
      run(hidden.narrow(0, 0, kRowTile), targets.narrow(0, 0, kRowTile).contiguous());
  CHECK(at::equal(straight.log_probs.narrow(0, 0, kRowTile), one.log_probs));
}

TEST_MAIN()
