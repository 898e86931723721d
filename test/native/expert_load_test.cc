// Counts of experts and the loss that evens them out: against sums and autograd in double precision, and over
// layouts.
#include "model/expert_load.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "base/parallel.h"
#include "model/moe.h"
#include "tensor_training.h"

using namespace troupe;
using namespace troupe::test;

namespace {

EngineOptions mixture(int64_t ep, int64_t tp = 1) {
  EngineOptions options = tensor_options("qwen3_moe", HeadKind::kLm, tp, tp > 1);
  options.parallel.ep = ep;
  options.model.moe_layers.back() = true;
  return options;
}

Task balanced(int64_t updates) {
  Task task;
  task.updates = updates;
  task.policy.router_aux_loss_coef = 0.5;
  return task;
}

// E sum_e f_e P_e over tokens that count, f held fixed.
at::Tensor balance_of(const at::Tensor& probs, const at::Tensor& chosen, const at::Tensor& tokens) {
  const int64_t experts = probs.size(1);
  const at::Tensor often =
      at::one_hot(chosen, experts).sum(1).to(at::kDouble).mul(tokens.unsqueeze(1)).sum(0);
  const at::Tensor mean = (probs * tokens.unsqueeze(1)).sum(0);
  return (often * mean).sum() * static_cast<double>(experts) / tokens.sum().square();
}

}  // namespace

TEST(sums_are_those_of_tokens_and_not_of_rows) {
  // 4 experts, 2 of them chosen. The second row stands for three tokens, the last one for none.
  const at::Tensor probs =
      at::tensor({0.5F, 0.25F, 0.125F, 0.125F, 0.25F, 0.25F, 0.25F, 0.25F, 0.F, 0.F, 0.F, 1.F}).view({3, 4});
  const at::Tensor experts = at::tensor({0, 1, 0, 3, 3, 2}, at::kLong).view({3, 2});
  const at::Tensor tokens = at::tensor({1.F, 3.F, 0.F});
  ExpertLoad load(3, 4, at::kCPU);
  CHECK(load.metrics().empty() && load.balance_loss() == 0);
  load.add(1, probs, experts, tokens);
  // Counts 4, 1, 0, 3: shares 1/2, 1/8, 0, 3/8.
  const Metrics metrics = load.metrics();
  CHECK(metrics.at("moe/max_vio/max") == 1 && metrics.at("moe/max_vio/avg") == 1);
  CHECK(metrics.at("moe/min_vio/max") == -1 && metrics.at("moe/avg_vio/avg") == (1 + 0.5 + 1 + 0.5) / 4);
  const double entropy = (1.75 * std::log(2.0) + 3 * std::log(4.0)) / 4;
  CHECK_CLOSE(metrics.at("moe/entropy"), entropy, 1e-7);
  // f = 1, 1/4, 0, 3/4; P = 5/16, 1/4, 7/32, 7/32.
  CHECK_CLOSE(load.balance_loss(), 4 * (5.0 / 16 + 1.0 / 16 + 21.0 / 128), 1e-12);
  CHECK(load.balance_gradient().equal(at::tensor({1.F, 0.25F, 0.F, 0.75F})));
  // A second layer with an even load: largest and mean over layers differ.
  load.add(2, probs, at::tensor({0, 1, 2, 3, 0, 0}, at::kLong).view({3, 2}), at::tensor({1.F, 1.F, 0.F}));
  CHECK(load.metrics().at("moe/max_vio/max") == 1 && load.metrics().at("moe/max_vio/avg") == 0.5);
  load.clear();
  CHECK(load.metrics().empty());
}

TEST(the_gradient_is_that_of_autograd_in_double_precision) {
  constexpr int64_t kTokens = 40, kHidden = 16;
  for (const bool normalize : {false, true}) {
    at::manual_seed(3);
    ModelConfig config = mixture(1).model;
    config.hidden_size = kHidden;
    config.moe = MoeConfig{6, 2, 5, normalize};
    ParameterStore store(decoder_layout(config), at::kCPU, at::kFloat, /*training=*/true, 1);
    const int64_t layer = config.num_layers - 1;
    const std::string name = "layers." + std::to_string(layer) + ".moe.router.weight";
    at::Tensor(store.at(name).master).copy_(at::randn({6, kHidden}));
    store.refresh_compute();
    const at::Tensor x = at::randn({kTokens, kHidden}),
                     tokens = at::arange(kTokens).remainder(3).to(at::kFloat);

    const at::Tensor weight = store.at(name).master.to(at::kDouble).detach().clone();
    at::Tensor d_weight, d_x;
    double expected = 0;
    {
      const at::AutoGradMode on(true);
      const at::Tensor w = weight.requires_grad_(true), input = x.to(at::kDouble).requires_grad_(true);
      const at::Tensor probs = at::softmax(at::mm(input, w.t()), -1);
      const at::Tensor loss = balance_of(probs, std::get<1>(probs.topk(2, -1)), tokens.to(at::kDouble));
      (loss * 0.7).backward();
      expected = loss.item<double>();
      d_weight = w.grad();
      d_x = input.grad();
    }

    const at::NoGradGuard no_grad;
    ExpertLoad load(config.num_layers, 6, at::kCPU);
    const MoeMlp moe(store, config, layer);
    MoeSaved saved;
    at::Tensor out = at::empty_like(x), dx = at::empty_like(x);
    MoeMlp::Pass pass;
    pass.router = {&load, layer, tokens, {}};
    moe.forward(x, out, kRowTile, &saved, pass);
    CHECK_CLOSE(load.balance_loss(), expected, 1e-6);
    // Of an output that moves no loss.
    pass.router.balance = load.balance_gradient() * 0.7;
    moe.backward(at::zeros_like(x), x, saved, dx, pass);
    CHECK((store.at(name).grad - d_weight).abs().max().item<double>() <
          1e-6 * d_weight.abs().max().item<double>() + 1e-7);
    CHECK((dx - d_x).abs().max().item<double>() < 1e-6 * d_x.abs().max().item<double>() + 1e-7);
  }
}

TEST(every_layout_has_the_loads_and_the_loss_of_one_process) {
  compare(mixture(2), 2, balanced(2));
  compare(mixture(2, 2), 2, balanced(2));
  compare(mixture(1), std::vector<int64_t>(kLongSequences, 0), 2, balanced(2));  // a rank without sequences
  for (const auto& [cp, tp, ep] : {std::tuple{2, 1, 1}, {3, 1, 1}, {2, 2, 1}, {2, 1, 2}}) {
    EngineOptions options = mixture(ep, tp);  // of the tokens of whole sequences, of which each rank has some
    options.parallel.cp = cp;
    compare(options, cp == 3 ? 1 : 2, balanced(2));
  }
  EngineOptions options = mixture(1);
  options.pipeline.stages = 2;
  options.gradient_checkpointing = true;
  const std::vector<int64_t> all(kLongSequences, 0);
  EngineOptions one = options;
  one.pipeline = {};
  const Outcome expected = work(*create_engine(one), HeadKind::kLm, long_batch(0, all), balanced(2));
  std::vector<Outcome> stages(2);
  test::on_ranks(2, [&](int64_t rank, const std::shared_ptr<Communicator>& comm) {
    stages[static_cast<size_t>(rank)] =
        work(*create_engine(options, comm), HeadKind::kLm, long_batch(0, all), balanced(2));
  });
  for (const Outcome& stage : stages) {
    for (const auto& [name, value] : expected.metrics[0]) CHECK_CLOSE(stage.metrics[0].at(name), value, 1e-6);
    CHECK(relative(flat(stage.weights), flat(expected.weights)) < 1e-6);
  }
}

TEST(micro_batches_do_not_show) {
  std::vector<Outcome> outcomes;
  for (const int64_t capacity : {kAccumulating, kAtOnce}) {
    EngineOptions options = mixture(1);
    options.max_tokens = capacity;
    outcomes.push_back(work(*create_engine(options), HeadKind::kLm,
                            long_batch(0, std::vector<int64_t>(kLongSequences, 0)), balanced(2)));
  }
  for (const auto& [name, value] : outcomes[0].metrics[0])
    CHECK_CLOSE(outcomes[1].metrics[0].at(name), value, 1e-6);
  CHECK(relative(flat(outcomes[1].weights), flat(outcomes[0].weights)) < 1e-6);
}

TEST(updates_even_out_the_load) {
  EngineOptions options = mixture(1);
  options.optim->lr = 5e-4;
  const LongBatch batch = long_batch(0, std::vector<int64_t>(kLongSequences, 0));
  const auto engine = create_engine(options);
  PolicyLossOptions loss;
  loss.router_aux_loss_coef = 10;
  Metrics first, last;
  for (int64_t i = 0; i < 25; ++i) {
    last =
        engine->update_policy({batch.tokens, batch.mask, batch.a, batch.b, {}, {}, {}}, batch.mini, loss, 1)
            .back();
    if (i == 0) first = last;
  }
  const double even = static_cast<double>(options.model.moe->top_k);
  CHECK(first.at("moe/aux_loss") - even > 2 * std::abs(last.at("moe/aux_loss") - even));
  CHECK(last.at("moe/max_vio/avg") < first.at("moe/max_vio/avg"));
}

TEST(a_model_without_experts_has_no_such_loss) {
  const LongBatch batch = long_batch(0, std::vector<int64_t>(kLongSequences, 0));
  const auto engine = create_engine(tensor_options("qwen3", HeadKind::kLm, 1, false));
  PolicyLossOptions loss;
  loss.router_aux_loss_coef = 0.1;
  CHECK_THROWS(
      engine->update_policy({batch.tokens, batch.mask, batch.a, batch.b, {}, {}, {}}, batch.mini, loss, 1),
      "expected 0 for a model without experts");
}

TEST_MAIN()
