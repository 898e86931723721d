#include "kernels/linear_log_prob.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/autograd.h>

#include "base/parallel.h"
#include "check.h"
#include "kernels/gemm.h"

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

TEST(further_tokens_of_a_row_have_log_probs_and_gradients) {
  at::manual_seed(11);
  struct Case {
    int64_t n, h, v, k;
    double temperature, softcap;
  };
  // The last has several chunks of rows.
  for (const Case& c : std::vector<Case>{{128, 16, 40, 5, 1, 0},
                                         {256, 24, 1600, 7, 0.7, 12},
                                         {128, 8, 9, 9, 1.3, 0},
                                         {512, 8, 44'000, 6, 0.9, 0}}) {
    const ops::LogProbSpec spec{c.temperature, c.softcap};
    const at::Tensor hidden = at::randn({c.n, c.h}), weight = at::randn({c.v, c.h});
    const at::Tensor targets = at::randint(c.v, {c.n}, at::kInt);
    // Half of them are likely ones; of two rows one is the target, and one a token twice.
    ops::LogProbRows found = make_rows(c.n, at::kFloat);
    found.top = {at::empty({c.n, c.k}, at::kInt), at::empty({c.n, c.k})};
    ops::linear_log_prob_forward(spec, hidden, weight, targets, found);
    at::Tensor ids = at::randint(c.v, {c.n, c.k}, at::kInt);
    ids.narrow(1, 0, c.k / 2).copy_(found.top.ids.narrow(1, 0, c.k / 2));
    ids[3][0] = targets[3];
    ids[5][1] = ids[5][0];
    const at::Tensor g = at::randn({c.n}), h = at::randn({c.n}), by_given = at::randn({c.n, c.k});
    const auto run = [&](at::ScalarType type, auto&& backward) {
      const auto of = [&](const at::Tensor& t) { return t.to(type); };
      Outcome outcome{make_rows(c.n, type), of(at::full_like(hidden, NAN)), of(at::zeros_like(weight))};
      outcome.rows.given = {ids, at::full({c.n, c.k}, NAN, type), at::zeros({c.n, c.k}, at::kBool),
                            at::zeros({c.n, c.k}, type)};
      backward(
          spec, of(hidden), of(weight), targets, outcome.rows, true,
          [&](int64_t begin, int64_t end, const at::Tensor& lp, const at::Tensor& ent) {
            lp.copy_(g.narrow(0, begin, end - begin));
            ent.copy_(h.narrow(0, begin, end - begin));
            CHECK(!outcome.rows.given.log_probs.narrow(0, begin, end - begin).isnan().any().item<bool>());
            outcome.rows.given.gradients.narrow(0, begin, end - begin)
                .copy_(by_given.narrow(0, begin, end - begin));
          },
          outcome.d_hidden, outcome.d_weight);
      return outcome;
    };
    const Outcome own = run(at::kFloat, ops::linear_log_prob_backward);
    const Outcome reference = run(at::kDouble, ops::linear_log_prob_backward_reference);
    CHECK(worst(own.rows.given.log_probs, reference.rows.given.log_probs) < 1e-5);
    CHECK(at::equal(own.rows.given.among_top, reference.rows.given.among_top));
    CHECK(at::equal(own.rows.log_probs, found.log_probs));
    // A sum over 44,000 tokens; LibTorch's products take it in fewer parts than our own.
    CHECK(worst_of_largest(own.d_hidden, reference.d_hidden) < (ops::packs(hidden) ? 1e-5 : 5e-5));
    CHECK(worst_of_largest(own.d_weight, reference.d_weight) < 1e-5);
    // What is found among the likeliest has the same bits as what is given.
    const at::Tensor likely = found.top.log_probs.narrow(1, 0, c.k / 2);
    const at::Tensor plain = ids.narrow(1, 0, c.k / 2).eq(found.top.ids.narrow(1, 0, c.k / 2));
    CHECK(own.rows.given.log_probs.narrow(1, 0, c.k / 2)
              .eq(likely)
              .logical_or(plain.logical_not())
              .all()
              .item<bool>());
    // The likeliest against all log-probs in double.
    const at::Tensor raw = at::mm(hidden.to(at::kDouble), weight.to(at::kDouble).t());
    const at::Tensor capped = c.softcap > 0 ? at::tanh(raw / c.softcap) * c.softcap : raw;
    const at::Tensor all = at::log_softmax(capped / c.temperature, 1);
    const auto [best, places] = all.topk(c.k, 1);
    CHECK(worst(found.top.log_probs, best) < 1e-5);
    CHECK(worst(all.gather(1, found.top.ids.to(at::kLong)), best) < 1e-6);
    // Autograd of the same loss, with the entropy.
    const at::AutoGradMode with_grad(true);
    const at::Tensor leaf = hidden.to(at::kDouble).requires_grad_();
    const at::Tensor raw_leaf = at::mm(leaf, weight.to(at::kDouble).t());
    const at::Tensor z =
        (c.softcap > 0 ? at::tanh(raw_leaf / c.softcap) * c.softcap : raw_leaf) / c.temperature;
    const at::Tensor lp = at::log_softmax(z, 1);
    const at::Tensor loss = (lp.gather(1, targets.to(at::kLong).unsqueeze(1)).squeeze(1) * g).sum() -
                            ((lp.exp() * lp).sum(1) * h).sum() +
                            (lp.gather(1, ids.to(at::kLong)) * by_given).sum();
    CHECK(worst_of_largest(reference.d_hidden, torch::autograd::grad({loss}, {leaf})[0]) < 1e-9);
  }
}
