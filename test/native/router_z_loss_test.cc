// The z-loss of routers: against autograd in double precision, and over layouts.
#include "model/router_z_loss.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "base/parallel.h"
#include "model/moe.h"
#include "tensor_training.h"

using namespace troupe;
using namespace troupe::test;

namespace {

EngineOptions mixture(const std::string& variant, int64_t ep, int64_t tp = 1, HeadKind head = HeadKind::kLm) {
  EngineOptions options = tensor_options(variant, head, tp, tp > 1);
  options.parallel.ep = ep;
  options.model.moe_layers.back() = true;
  return options;
}

Task penalised(int64_t updates) {
  Task task;
  task.updates = updates;
  task.router_z_loss_coef = 0.5;
  return task;
}

Metrics first_update(Engine& engine, const LongBatch& batch, const PolicyLossOptions& loss) {
  return engine.update_policy({batch.tokens, batch.mask, batch.a, batch.b, {}, {}, {}}, batch.mini, loss, 1)
      .front();
}

LongBatch whole_batch() {
  return long_batch(0, std::vector<int64_t>(kLongSequences, 0));
}

}  // namespace

TEST(it_is_of_tokens_and_not_of_rows) {
  // The second row stands for three tokens, the last one for none.
  const at::Tensor logits = at::tensor({1.F, 1.F, 0.F, 0.F, 7.F, 9.F}).view({3, 2});
  const at::Tensor tokens = at::tensor({1.F, 3.F, 0.F}), gradient = at::zeros({3, 2});
  RouterZLoss loss(0.5, at::kCPU);
  loss.begin(8);  // as many again are on other ranks
  CHECK(loss.value() == 0);
  loss.backward(logits, tokens, gradient);
  const double first = 1 + std::log(2.0), second = std::log(2.0);
  CHECK_CLOSE(loss.value(), (first * first + 3 * second * second) / 8, 1e-7);
  const auto both = [](double value) { return at::full({2}, value, at::kDouble); };
  const at::Tensor expected = at::stack({both(first / 16), both(3 * second / 16), both(0)});
  CHECK((gradient - expected).abs().max().item<double>() < 1e-7);
  loss.backward(logits, tokens, gradient);  // of another layer
  CHECK_CLOSE(loss.value(), (first * first + 3 * second * second) / 4, 1e-7);
  loss.begin(8);
  CHECK(loss.value() == 0);
}

TEST(the_gradient_is_that_of_autograd_in_double_precision) {
  constexpr int64_t kTokens = 300, kHidden = 16;
  // The largest logits are 60, where sigmoids are 1.
  for (const auto& [variant, scale] : {std::pair{"qwen3_moe", 1.0},
                                       {"glm4_moe", 1.0},
                                       {"glm4_moe", 5.0},
                                       {"deepseek_v3", 1.0},
                                       {"gpt_oss", 1.0}}) {
    at::manual_seed(3);
    ModelConfig config = mixture(variant, 1).model;
    config.hidden_size = kHidden;
    const int64_t experts = config.moe->num_experts;
    ParameterStore store(decoder_layout(config), at::kCPU, at::kFloat, /*training=*/true, 1);
    const int64_t layer = config.num_layers - 1;
    const std::string prefix = "layers." + std::to_string(layer) + ".moe.router.";
    at::Tensor(store.at(prefix + "weight").master).copy_(at::randn({experts, kHidden}) * scale);
    if (config.moe->biases) at::Tensor(store.at(prefix + "bias").master).copy_(at::randn({experts}));
    if (config.moe->correction_bias)
      at::Tensor(store.at(prefix + "correction_bias").compute).copy_(at::randn({experts}));
    store.refresh_compute();
    const at::Tensor x = at::randn({kTokens, kHidden}),
                     tokens = at::arange(kTokens).remainder(3).to(at::kFloat);
    const double count = tokens.sum().item<double>();

    at::Tensor d_weight, d_bias, d_x;
    double expected = 0;
    {
      const at::AutoGradMode on(true);
      const auto leaf = [](const at::Tensor& value) {
        return value.to(at::kDouble).detach().clone().requires_grad_(true);
      };
      const at::Tensor w = leaf(store.at(prefix + "weight").master), input = leaf(x);
      at::Tensor logits = at::mm(input, w.t()), b;
      if (config.moe->biases) {
        b = leaf(store.at(prefix + "bias").master);
        logits = logits + b;
      }
      const at::Tensor loss = (at::logsumexp(logits, -1).square() * tokens.to(at::kDouble)).sum() / count;
      (loss * 0.7).backward();
      expected = loss.item<double>();
      d_weight = w.grad();
      d_x = input.grad();
      if (b.defined()) d_bias = b.grad();
    }

    const at::NoGradGuard no_grad;
    const MoeMlp moe(store, config, layer);
    MoeSaved saved;
    at::Tensor out = at::empty_like(x), dx = at::empty_like(x);
    RouterZLoss loss(0.7, at::kCPU);
    loss.begin(count);
    MoeMlp::Pass pass;
    pass.router.layer = layer;
    pass.router.tokens = tokens;
    pass.router.z_loss = &loss;
    moe.forward(x, out, kRowTile, &saved, pass);
    // Of an output that moves no loss.
    moe.backward(at::zeros_like(x), x, saved, dx, pass);
    CHECK_CLOSE(loss.value() / expected, 1, 1e-6);
    const auto close = [](const at::Tensor& actual, const at::Tensor& wanted) {
      return (actual - wanted).abs().max().item<double>() < 1e-6 * wanted.abs().max().item<double>() + 1e-7;
    };
    CHECK(close(store.at(prefix + "weight").grad, d_weight));
    CHECK(close(dx, d_x));
    if (d_bias.defined()) CHECK(close(store.at(prefix + "bias").grad, d_bias));
  }
}

TEST(every_layout_has_the_loss_of_one_process) {
  for (const char* variant : {"qwen3_moe", "glm4_moe"}) {
    compare(mixture(variant, 1), 2, penalised(2));  // sharded over data parallelism
    compare(mixture(variant, 2), 2, penalised(2));
    compare(mixture(variant, 2, 2), 2, penalised(2));
    EngineOptions options = mixture(variant, 1);
    options.parallel.cp = 2;
    compare(options, 2, penalised(2));
    options = mixture(variant, 1);
    options.ulysses = 2;
    compare(options, 2, penalised(2));
    options = mixture(variant, 1);
    options.pipeline.stages = 2;
    options.gradient_checkpointing = true;
    compare(options, 2, penalised(2));
  }
  // A rank without sequences, and every kind of layout of shared experts.
  compare(mixture("qwen3_moe", 1), std::vector<int64_t>(kLongSequences, 0), 2, penalised(2));
  compare(mixture("qwen3_moe", 2), std::vector<int64_t>(kLongSequences, 0), 2, penalised(2));
  for (const auto& [cp, tp, ep] : {std::tuple{3, 1, 1}, {2, 2, 1}, {2, 1, 2}}) {
    EngineOptions options = mixture("qwen3_moe", ep, tp);
    options.parallel.cp = cp;
    compare(options, cp == 3 ? 1 : 2, penalised(2));
  }
}

TEST(every_update_has_it) {
  Task supervised = penalised(2);
  supervised.supervised = true;
  compare(mixture("qwen3_moe", 2), 2, supervised);
  compare(mixture("qwen3_moe", 1, 2, HeadKind::kValue), 2, penalised(2));
  Task both = penalised(2);
  both.policy.router_aux_loss_coef = 0.5;
  compare(mixture("qwen3_moe", 2, 2), 2, both);
}

TEST(the_metric_is_the_term_of_the_loss) {
  const LongBatch batch = whole_batch();
  const auto metrics_with = [&](double coef) {
    PolicyLossOptions loss;
    loss.router_z_loss_coef = coef;
    return first_update(*create_engine(mixture("qwen3_moe", 1)), batch, loss);
  };
  const Metrics without = metrics_with(0), with = metrics_with(0.25);
  CHECK(without.count("moe/z_loss") == 0);
  CHECK(with.at("moe/z_loss") > 0);
  CHECK_CLOSE(with.at("loss") - without.at("loss"), 0.25 * with.at("moe/z_loss"), 1e-9);
  CHECK(with.at("grad_norm") != without.at("grad_norm"));
}

TEST(micro_batches_do_not_show) {
  std::vector<Outcome> outcomes;
  for (const int64_t capacity : {kAccumulating, kAtOnce}) {
    EngineOptions options = mixture("qwen3_moe", 1);
    options.max_tokens = capacity;
    outcomes.push_back(work(*create_engine(options), HeadKind::kLm, whole_batch(), penalised(2)));
  }
  for (const auto& [name, value] : outcomes[0].metrics[0])
    CHECK_CLOSE(outcomes[1].metrics[0].at(name), value, 1e-6);
  CHECK(relative(flat(outcomes[1].weights), flat(outcomes[0].weights)) < 1e-6);
}

TEST(updates_make_logits_smaller) {
  EngineOptions options = mixture("glm4_moe", 1);
  options.optim->lr = 5e-4;
  const LongBatch batch = whole_batch();
  const auto engine = create_engine(options);
  PolicyLossOptions loss;
  loss.router_z_loss_coef = 10;
  const double first = first_update(*engine, batch, loss).at("moe/z_loss");
  for (int64_t i = 0; i < 25; ++i) first_update(*engine, batch, loss);
  CHECK(first_update(*engine, batch, loss).at("moe/z_loss") < 0.5 * first);
}

TEST(a_model_without_experts_has_no_such_loss) {
  const auto engine = create_engine(tensor_options("qwen3", HeadKind::kLm, 1, false));
  PolicyLossOptions loss;
  loss.router_z_loss_coef = 0.1;
  CHECK_THROWS(first_update(*engine, whole_batch(), loss),
               "router_z_loss_coef 0.1: expected 0 for a model without experts");
}

TEST_MAIN()
