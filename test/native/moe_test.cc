// The MLP of experts against every expert applied to every token in double precision, with its gradients by
// autograd.
#include "model/moe.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <limits>
#include <numeric>

#include "base/parallel.h"
#include "check.h"
#include "model/decoder_layout.h"
#include "moe_shape.h"
#include "parameters/parameter_store.h"

using namespace troupe;
using namespace troupe::test;

namespace {

// Weights large enough that routing is decided and gradients are of order one.
void fill(ParameterStore& store) {
  for (const Parameter& parameter : store.all()) {
    at::Tensor master = parameter.master;
    master.copy_(at::randn_like(master) * 0.3);
  }
  store.refresh_compute();
}

struct Reference {
  at::Tensor out, dx;
  std::map<std::string, at::Tensor> grads;
};

// [T, k], token by token: of the groups whose best experts have the largest sums, the best ones.
at::Tensor choice_of(const Shape& shape, const at::Tensor& ranked) {
  const int64_t size = shape.experts / shape.groups;
  const at::Tensor chosen = at::empty({ranked.size(0), shape.top_k}, at::kLong);
  for (int64_t t = 0; t < ranked.size(0); ++t) {
    std::vector<double> values(shape.experts);
    for (int64_t e = 0; e < shape.experts; ++e) values[static_cast<size_t>(e)] = ranked[t][e].item<double>();
    const auto best = [&](const std::vector<double>& of, int64_t count) {
      std::vector<int64_t> order(of.size());
      std::iota(order.begin(), order.end(), 0);
      std::sort(order.begin(), order.end(), [&](int64_t a, int64_t b) {
        return of[static_cast<size_t>(a)] > of[static_cast<size_t>(b)];
      });
      order.resize(static_cast<size_t>(count));
      return order;
    };
    if (shape.groups > 1) {
      std::vector<double> sums;
      for (int64_t g = 0; g < shape.groups; ++g) {
        std::vector<double> part(values.begin() + g * size, values.begin() + (g + 1) * size);
        double sum = 0;
        for (const int64_t e : best(part, shape.group_best)) sum += part[static_cast<size_t>(e)];
        sums.push_back(sum);
      }
      const std::vector<int64_t> groups = best(sums, shape.top_groups);
      for (int64_t e = 0; e < shape.experts; ++e) {
        if (std::find(groups.begin(), groups.end(), e / size) == groups.end())
          values[static_cast<size_t>(e)] = -std::numeric_limits<double>::infinity();
      }
    }
    const std::vector<int64_t> found = best(values, shape.top_k);
    for (int64_t k = 0; k < shape.top_k; ++k) chosen[t][k] = found[static_cast<size_t>(k)];
  }
  return chosen;
}

// Dense: all experts for all tokens, times a weight that is 0 where an expert was not chosen. balance [E]:
// the loss's gradient by the mean of the router's probabilities, beside dout by the output.
Reference reference(const ParameterStore& store, const Shape& shape, const at::Tensor& x,
                    const at::Tensor& dout, const at::Tensor& given = {}, const at::Tensor& balance = {}) {
  const at::AutoGradMode on(true);
  std::map<std::string, at::Tensor> leaves;
  for (const Parameter& parameter : store.all()) {
    leaves[parameter.info.name] = parameter.master.to(at::kDouble).detach().requires_grad_(true);
  }
  const auto leaf = [&](const std::string& name) { return leaves.at("layers.0.moe." + name); };
  const at::Tensor input = x.to(at::kDouble).detach().requires_grad_(true);
  at::Tensor logits = at::mm(input, leaf("router.weight").t());
  if (shape.biases) logits = logits + leaf("router.bias");
  const at::Tensor scores = shape.sigmoid() ? at::sigmoid(logits) : at::softmax(logits, -1);
  at::Tensor ranked = scores.detach();
  if (shape.sigmoid()) ranked = ranked + leaf("router.correction_bias").detach();
  const at::Tensor chosen = given.defined() ? given : choice_of(shape, ranked);
  const at::Tensor values = scores.gather(1, chosen);
  const at::Tensor weights = shape.scale * (shape.normalize ? values / values.sum(-1, true) : values);
  const at::Tensor dense = at::zeros_like(scores).scatter(1, chosen, weights);
  at::Tensor out = at::zeros_like(input);
  for (int64_t expert = 0; expert < shape.experts; ++expert) {
    const std::string name = "experts." + std::to_string(expert);
    at::Tensor inner = at::mm(input, leaf(name + ".in.weight").t()), result;
    if (shape.biases) {
      inner = inner + leaf(name + ".in.bias");
      const at::Tensor gate = inner.slice(1, 0, std::nullopt, 2).clamp_max(7);
      const at::Tensor up = inner.slice(1, 1, std::nullopt, 2).clamp(-7, 7) + 1;
      result = at::mm(gate * at::sigmoid(1.702 * gate) * up, leaf(name + ".out.weight").t()) +
               leaf(name + ".out.bias");
    } else {
      const at::Tensor gate = inner.narrow(1, 0, shape.intermediate);
      const at::Tensor up = inner.narrow(1, shape.intermediate, shape.intermediate);
      result = at::mm(at::silu(gate) * up, leaf(name + ".out.weight").t());
    }
    out = out + result * dense.select(1, expert).unsqueeze(1);
  }
  if (shape.shared > 0) {
    const at::Tensor inner = at::mm(input, leaf("shared.in.weight").t());
    const at::Tensor gate = inner.narrow(1, 0, shape.shared),
                     up = inner.narrow(1, shape.shared, shape.shared);
    const at::Tensor expert = at::mm(at::silu(gate) * up, leaf("shared.out.weight").t());
    out = out + (shape.gate ? at::sigmoid(at::mm(input, leaf("shared.gate.weight").t())) * expert : expert);
  }
  at::Tensor loss = (out * dout.to(at::kDouble)).sum();
  if (balance.defined()) {
    const at::Tensor probabilities = scores / scores.sum(-1, true);
    loss = loss + at::mv(probabilities, balance.to(at::kDouble)).sum();
  }
  loss.backward();
  Reference result{out.detach(), input.grad(), {}};
  for (auto& [name, tensor] : leaves) {
    if (tensor.grad().defined()) result.grads[name] = tensor.grad();
  }
  return result;
}

// The result for these rows in a batch of whole tiles, as the decoder pads them.
at::Tensor forward_padded(const MoeMlp& moe, const at::Tensor& rows, int64_t tile) {
  const at::Tensor x = at::zeros({round_up(rows.size(0), tile), kHidden});
  x.narrow(0, 0, rows.size(0)).copy_(rows);
  const at::Tensor out = at::empty_like(x);
  moe.forward(x, out, tile, nullptr);
  return out.narrow(0, 0, rows.size(0));
}

double error_of(const at::Tensor& got, const at::Tensor& expected) {
  const double scale = std::max(1.0, expected.abs().max().item<double>());
  return (got.to(at::kDouble) - expected).abs().max().item<double>() / scale;
}

}  // namespace

TEST(agrees_with_all_experts_in_double_precision) {
  // Many experts and few, rows beyond one tile, one token, every expert chosen, experts without rows.
  const std::vector<Shape> shapes = {
      {70, 16, 4, 10, true},
      {70, 16, 4, 10, false},
      {300, 3, 2, 7, true},
      {1, 8, 2, 5, true},
      {5, 4, 4, 6, false},
      {9, 32, 1, 3, true},
      {70, 6, 2, 10, false, 12},
      {300, 4, 1, 5, true, 7},
      {1, 4, 2, 3, false, 9},
      {70, 16, 4, 10, true, 12, false, RouterScore::kSigmoid, 4, 2, 2.5},
      {200, 12, 3, 7, false, 5, false, RouterScore::kSigmoid, 1, 1, 1},
      {5, 6, 2, 3, true, 0, true, RouterScore::kSigmoid, 3, 1, 0.5},
      {70, 8, 3, 10, true, 0, true, RouterScore::kSoftmax, 1, 1, 1, true},
      {300, 3, 2, 7, true, 0, true, RouterScore::kSoftmax, 1, 1, 1, true},
      {70, 16, 4, 10, false, 12, false, RouterScore::kSoftmax, 4, 2, 2.5, false, 1},
      {70, 12, 3, 10, true, 0, true, RouterScore::kSoftmax, 3, 1, 1, false, 3},
      {9, 4, 2, 6, false, 0, true, RouterScore::kSoftmax, 4, 3, 1, false, 1}};
  at::manual_seed(11);
  for (const Shape& shape : shapes) {
    for (const int threads : {1, 2}) {
      at::set_num_threads(threads);
      ParameterStore store(decoder_layout(config_of(shape)), at::kCPU, at::kFloat, /*training=*/true, 1);
      fill(store);
      const MoeMlp moe(store, config_of(shape), 0);
      const at::Tensor x = at::randn({shape.tokens, kHidden}), dout = at::randn_like(x);
      at::Tensor out = at::empty_like(x), dx = at::empty_like(x);
      MoeSaved saved;
      {
        const at::NoGradGuard no_grad;
        moe.forward(x, out, 128, &saved);
        moe.backward(dout, x, saved, dx);
      }
      const Reference expected = reference(store, shape, x, dout);
      CHECK(error_of(out, expected.out) < 2e-6);
      CHECK(error_of(dx, expected.dx) < 5e-6);
      for (const auto& [name, grad] : expected.grads) {
        CHECK(error_of(store.at(name).grad, grad) < 5e-6);
      }
    }
  }
}

TEST(the_gradient_of_an_even_load_goes_through_the_scores) {
  at::manual_seed(16);
  for (const RouterScore score : {RouterScore::kSoftmax, RouterScore::kSigmoid}) {
    const Shape shape{70, 8, 2, 10, true, 0, true, score, 1, 1, 2};
    ParameterStore store(decoder_layout(config_of(shape)), at::kCPU, at::kFloat, /*training=*/true, 1);
    fill(store);
    const MoeMlp moe(store, config_of(shape), 0);
    const at::Tensor x = at::randn({shape.tokens, kHidden}), dout = at::randn_like(x);
    at::Tensor out = at::empty_like(x), dx = at::empty_like(x);
    const at::Tensor balance = at::randn({shape.experts});
    {
      const at::NoGradGuard no_grad;
      MoeSaved saved;
      MoeMlp::Pass pass;
      pass.router.tokens = at::ones({shape.tokens});
      pass.router.balance = balance;
      moe.forward(x, out, 128, &saved, pass);
      moe.backward(dout, x, saved, dx, pass);
    }
    const Reference expected = reference(store, shape, x, dout, {}, balance);
    CHECK(error_of(dx, expected.dx) < 5e-6);
    for (const auto& [name, grad] : expected.grads) CHECK(error_of(store.at(name).grad, grad) < 5e-6);
  }
}

// A buffer: float32 beside weights of any dtype, and out of all that trains.
TEST(the_correction_bias_is_float32_and_has_no_gradient) {
  const Shape shape{9, 8, 2, 10, true, 0, true, RouterScore::kSigmoid, 1, 1, 1};
  ParameterStore store(decoder_layout(config_of(shape)), at::kCPU, at::kBFloat16, /*training=*/true, 1);
  const Parameter& bias = store.at("layers.0.moe.router.correction_bias");
  CHECK(bias.compute.scalar_type() == at::kFloat && bias.compute.is_same(bias.master));
  CHECK(!bias.grad.defined() && !store.groups()[bias.group].trained());
  CHECK(store.exports(TensorKind::kParam, bias.group) && store.exports(TensorKind::kMerged, bias.group));
  CHECK(!store.exports(TensorKind::kExpAvg, bias.group));
  CHECK_THROWS(store.owned(TensorKind::kExpAvg, bias.group), "which is not trained");
  // A bias that tells apart what the weights round to the same changes the choice, and not the weights.
  const MoeMlp moe(store, config_of(shape), 0);
  const at::Tensor x = at::zeros({shape.tokens, kHidden}, at::kBFloat16), out = at::empty_like(x);
  store.at(bias.info.name).master.copy_(at::arange(shape.experts, at::kFloat) * 1e-6);
  MoeMlp::Pass pass;
  pass.router.record = at::zeros({shape.tokens, shape.top_k}, at::kByte);
  MoeSaved saved;
  const at::NoGradGuard no_grad;
  moe.forward(x, out, 128, &saved, pass);
  CHECK(pass.router.record.eq(at::tensor({7, 6}, at::kByte)).all().item<bool>());
  CHECK(saved.routing.weights.eq(0.5).all().item<bool>());
}

// Logits of 24 and 24 + 2^-7, which bfloat16 rounds to 24 as well.
TEST(wide_logits_tell_apart_what_the_compute_dtype_rounds_to_the_same) {
  for (const RouterScore score : {RouterScore::kSoftmax, RouterScore::kSigmoid}) {
    for (const bool wide : {false, true}) {
      const Shape shape{9, 3, 2, 10, false, 0, true, score, 1, 1, 1, false, 1, wide};
      ParameterStore store(decoder_layout(config_of(shape)), at::kCPU, at::kBFloat16, /*training=*/true, 1);
      at::Tensor weight = store.at("layers.0.moe.router.weight").master;
      weight.fill_(1)[2].fill_(-1);
      weight[1][5] = 1 + 0x1p-7;
      store.refresh_compute();
      const at::Tensor x = at::ones({shape.tokens, kHidden}, at::kBFloat16), out = at::empty_like(x);
      const at::NoGradGuard no_grad;
      MoeSaved saved;
      MoeMlp(store, config_of(shape), 0).forward(x, out, 128, &saved);
      const at::Tensor logits = at::tensor({24.0, wide ? 24 + 0x1p-7 : 24.0, -24.0});
      const at::Tensor scores = score == RouterScore::kSoftmax ? logits.softmax(-1) : logits.sigmoid();
      CHECK((saved.routing.scores - scores).abs().max().item<double>() < 1e-7);
    }
  }
}

TEST(a_group_has_as_many_experts_as_it_ranks_by) {
  ModelConfig config = config_of({9, 6, 2, 10, true, 0, true, RouterScore::kSoftmax, 3, 2, 1, false, 2});
  validate(config);
  config.moe->group_best = 3;
  CHECK_THROWS(validate(config), "expected moe.groups to divide the 6 experts into parts of 3");
  config.moe->group_best = 0;
  CHECK_THROWS(validate(config), "moe.group_best");
}

TEST(sends_tokens_where_it_is_told) {
  at::manual_seed(15);
  for (const bool normalize : {true, false}) {
    const Shape shape{70, 16, 4, 10, normalize, 12};
    ParameterStore store(decoder_layout(config_of(shape)), at::kCPU, at::kFloat, /*training=*/true, 1);
    fill(store);
    const MoeMlp moe(store, config_of(shape), 0);
    const at::Tensor x = at::randn({shape.tokens, kHidden}), dout = at::randn_like(x);
    const at::Tensor given = std::get<1>(at::rand({shape.tokens, shape.experts}).topk(shape.top_k, -1));
    at::Tensor out = at::empty_like(x), dx = at::empty_like(x);
    const at::NoGradGuard no_grad;
    MoeSaved saved;
    MoeMlp::Pass pass;
    pass.router.given = given.to(at::kByte);
    pass.router.record = at::zeros({shape.tokens, shape.top_k}, at::kByte);
    moe.forward(x, out, 128, &saved, pass);
    moe.backward(dout, x, saved, dx, pass);
    const Reference expected = reference(store, shape, x, dout, given);
    CHECK(pass.router.record.equal(pass.router.given));
    CHECK(error_of(out, expected.out) < 2e-6 && error_of(dx, expected.dx) < 5e-6);
    for (const auto& [name, grad] : expected.grads) CHECK(error_of(store.at(name).grad, grad) < 5e-6);
  }
}

TEST(a_token_does_not_depend_on_who_shares_its_experts) {
  const at::NoGradGuard no_grad;
  at::manual_seed(12);
  const Shape shape{200, 8, 2, 16, true, 20};
  ParameterStore store(decoder_layout(config_of(shape)), at::kCPU, at::kFloat, /*training=*/false, 1);
  fill(store);
  const MoeMlp moe(store, config_of(shape), 0);
  const at::Tensor x = at::randn({200, kHidden});
  const at::Tensor all = forward_padded(moe, x, kRowTile);
  for (const int threads : {1, 2}) {
    at::set_num_threads(threads);
    for (const auto& [begin, count] : std::vector<std::pair<int64_t, int64_t>>{{0, 1}, {3, 40}, {70, 130}}) {
      const at::Tensor rows = x.narrow(0, begin, count);
      CHECK(at::equal(forward_padded(moe, rows, kRowTile), all.narrow(0, begin, count)));
    }
  }
}

TEST(decoding_reads_the_weights_as_they_lie_with_the_same_result_up_to_rounding) {
  const at::NoGradGuard no_grad;
  at::manual_seed(13);
  const Shape shape{40, 8, 2, 16, true};
  ParameterStore store(decoder_layout(config_of(shape)), at::kCPU, at::kFloat, /*training=*/false, 1);
  fill(store);
  const MoeMlp moe(store, config_of(shape), 0);
  const at::Tensor x = at::randn({40, kHidden});
  const at::Tensor decoding = forward_padded(moe, x, kDecodeRowTile);
  CHECK(error_of(decoding, forward_padded(moe, x, kRowTile).to(at::kDouble)) < 1e-6);
  const at::Tensor alone = forward_padded(moe, x.narrow(0, 7, 1), kDecodeRowTile);
  CHECK(at::equal(alone, decoding.narrow(0, 7, 1)));
}

TEST(weights_packed_once_give_the_bits_of_those_packed_per_pass) {
  const at::NoGradGuard no_grad;
  at::manual_seed(14);
  const Shape shape{200, 8, 2, 16, true};
  ParameterStore store(decoder_layout(config_of(shape)), at::kCPU, at::kFloat, /*training=*/false, 1);
  fill(store);
  const MoeMlp moe(store, config_of(shape), 0);
  const MoeMlp::Packed packed = moe.pack();
  if (!packed.router.packed()) return;
  const at::Tensor x = at::randn({200, kHidden}), all = forward_padded(moe, x, kRowTile);
  for (const auto& [begin, count] : std::vector<std::pair<int64_t, int64_t>>{{0, 1}, {3, 40}, {70, 130}}) {
    const at::Tensor rows = x.narrow(0, begin, count), out = at::empty_like(rows);
    moe.forward(rows, out, kDecodeRowTile, nullptr, {}, packed);
    CHECK(at::equal(out, all.narrow(0, begin, count)));
  }
}

TEST_MAIN()
