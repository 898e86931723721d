// The update verbs: policy, critic, supervised.
#include <ATen/core/grad_mode.h>
#include <ATen/ops/tensor.h>

#include <array>

#include "base/error.h"
#include "base/range.h"
#include "engine/loss_head.h"
#include "engine/prediction_loss.h"
#include "engine/rank_engine.h"
#include "engine/router_watch.h"
#include "engine/stage_work.h"
#include "model/expert_load.h"
#include "model/router_z_loss.h"

// The update verbs of RankEngine. A mini-batch is cut into micro-batches by the packing alone;
// losses are sums over tokens weighted by the counts of the whole mini-batch, so the cut does not
// change the result.
namespace troupe {

namespace {

void check_mini(const MiniBatches& mini, const BatchLayout& layout) {
  require(mini.offsets.size() >= 2, ErrorCode::kInvalidArgument,
          "[batch] expected at least one mini-batch, so two offsets, got ", mini.offsets.size());
  require(mini.offsets.front() == 0 && mini.offsets.back() == layout.size(), ErrorCode::kInvalidArgument,
          "[batch] expected offsets of mini-batches from 0 to the number of sequences, ", layout.size(),
          ", got ", mini.offsets.front(), " to ", mini.offsets.back());
  const size_t count = mini.offsets.size() - 1;
  require(mini.global_tokens.size() == count && mini.global_sequences.size() == count,
          ErrorCode::kInvalidArgument,
          "[batch] expected global counts of tokens and sequences for each of the ", count,
          " mini-batches, got ", mini.global_tokens.size(), " and ", mini.global_sequences.size());
  for (size_t m = 0; m < count; ++m) {
    require(mini.offsets[m] <= mini.offsets[m + 1], ErrorCode::kInvalidArgument,
            "[batch] expected offsets of mini-batches that do not decrease, got ", mini.offsets[m + 1],
            " behind ", mini.offsets[m]);
  }
}

// What run_updates() agrees on: two counts for every mini-batch.
size_t agreed_entries(const MiniBatches& mini) {
  return mini.offsets.empty() ? 0 : 2 * (mini.offsets.size() - 1);
}

}  // namespace

// What all mini-batches of an update share.
struct RankEngine::Update {
  const TokenBatch& tokens;
  const BatchLayout& layout;
  LossHead& head;
  RouterLosses routers;
  // Two parts for each mini-batch: what is propagated backwards, and what is not. rounds: of all ranks.
  std::vector<std::vector<MicroBatch>> micro_batches = {};
  std::vector<int64_t> counts = {}, rounds = {};
  std::optional<ExpertLoad> load = {};     // of a model with experts
  std::optional<RouterZLoss> z_loss = {};  // with a weight in the loss
  std::vector<double> routed = {};         // of z_loss: see routed_tokens()
  std::optional<PredictionLoss> further = {};
};

MetricsList RankEngine::run_updates(const TokenBatch& tokens, const BatchLayout& layout,
                                    const at::Tensor& mask, const at::Tensor& has_gradient,
                                    const MiniBatches& mini, LossHead& head, const RouterLosses& routers) {
  require(options_.optim.has_value(), ErrorCode::kInvalidArgument,
          "[engine] an inference-only engine (optim: null) cannot be updated");
  for (const auto& [name, coef] : {std::pair{"aux", routers.balance_coef}, std::pair{"z", routers.z_coef}}) {
    require(coef == 0 || counts_routers(), ErrorCode::kInvalidArgument, "[update] router_", name,
            "_loss_coef ", coef, ": expected 0 for a model without experts");
  }
  const bool predicts = options_.model.trains_predictions();
  require(!predicts || tokens.images.all.empty(), ErrorCode::kInvalidArgument,
          "[update] layers that predict further tokens are trained on text: expected a batch without images, "
          "got ",
          tokens.images.all.size());
  check_mini(mini, layout);
  Update update{tokens, layout, head, routers};
  // All of them first: a sequence that does not fit must not be found after an optimiser step.
  for (size_t m = 0; m + 1 < mini.offsets.size(); ++m) {
    // The further tokens of every sequence have a loss.
    const Propagation parts =
        propagation(layout, mini.offsets[m], mini.offsets[m + 1], predicts ? at::Tensor() : has_gradient);
    for (const std::vector<int64_t>& sequences : {parts.backward, parts.forward}) {
      update.micro_batches.push_back(pack(layout, sequences, options_.max_tokens));
      update.counts.push_back(static_cast<int64_t>(update.micro_batches.back().size()));
    }
  }
  update.rounds = agree(update.counts);
  if (predicts)
    update.further.emplace(head_context(), options_.prediction, tokens, layout, mask, mini, *mesh_.dp());
  if (counts_routers())
    update.load.emplace(options_.model.num_layers, options_.model.moe->num_experts, device_);
  if (routers.z_coef != 0) {
    update.z_loss.emplace(routers.z_coef, device_);
    update.routed = routed_tokens(layout, update.micro_batches);
  }
  // The rank that counts the choices of a tensor-parallel group finds the gradient of these losses, too.
  RouterWatch watch(transformer_, {.z_loss = update.z_loss && own_choices() ? &*update.z_loss : nullptr,
                                   .no_choices = no_choices(tokens)});
  MetricsList all;
  for (int64_t epoch = 0; epoch < mini.epochs; ++epoch) {
    for (size_t m = 0; m + 1 < mini.offsets.size(); ++m) {
      const Range range("mini_batch", static_cast<int64_t>(all.size()));
      sharding_.clear_gradients();
      find_gradients(update, m, watch);
      Metrics metrics = mini_batch_metrics(update, m);
      optimizer_step(metrics);
      all.push_back(std::move(metrics));
    }
  }
  ++schedule_steps_;
  sharding_.release_all();
  return all;
}

void RankEngine::find_gradients(Update& update, size_t m, RouterWatch& watch) {
  std::optional<ExpertLoad>& load = update.load;
  const auto run = [&](size_t part, const HeadWork& work) {
    run_micro_batches(update.tokens, update.layout, update.micro_batches[part], update.rounds[part], work);
  };
  if (load) {
    load->clear();
    watch.count_in(&*load);
    watch.balance_by({});
  }
  if (update.z_loss) update.z_loss->begin(update.routed[m]);
  if (update.further) update.further->begin(static_cast<int64_t>(m));
  const double balance_coef = update.routers.balance_coef;
  if (balance_coef != 0) {
    // The gradient of the load-balancing loss depends on the choices of all tokens of the mini-batch: one
    // more forward pass collects them first.
    for (const size_t part : {2 * m, 2 * m + 1}) run(part, {[](const MicroRows&, const at::Tensor&) {}, {}});
    load->sum(*mesh_.world(), own_choices());
    watch.count_in(nullptr);
    watch.balance_by(own_choices() ? load->balance_gradient() * balance_coef : at::Tensor());
  }
  HeadWork backward;
  backward.gradient = [&](const MicroRows& micro, const at::Tensor& hidden) {
    return update.head.gradient(static_cast<int64_t>(m), micro, hidden);
  };
  if (update.further) {
    backward.predictions = [&](int64_t micro, const MicroRows& rows) {
      return update.further->task(update.micro_batches[2 * m][static_cast<size_t>(micro)], rows.whole,
                                  row_padding());
    };
  }
  run(2 * m, backward);
  run(2 * m + 1,
      {[&](const MicroRows& micro, const at::Tensor& hidden) { update.head.evaluate(micro, hidden); }, {}});
  if (load && balance_coef == 0) load->sum(*mesh_.world(), own_choices());
  if (update.z_loss) update.z_loss->sum(*mesh_.world());
  if (update.further) update.further->sum(*mesh_.world(), own_choices());
}

Metrics RankEngine::mini_batch_metrics(Update& update, size_t m) {
  // A rank without sequences has no metrics of this mini-batch.
  const bool any = update.counts[2 * m] + update.counts[2 * m + 1] > 0;
  Metrics metrics = any || sharding_.size() == 1 ? update.head.summarize(static_cast<int64_t>(m)) : Metrics();
  if (update.load) metrics.merge(update.load->metrics());
  // The caller sums losses over the ranks that have data of their own. These are the same on all of them, so
  // the first alone adds them.
  const auto report = [&](const char* name, double value, double coef) {
    metrics[name] = value;
    if (mesh_.dp()->rank() < options_.ulysses) metrics["loss"] += coef * value;
  };
  const double balance_coef = update.routers.balance_coef;
  if (balance_coef != 0) report("moe/aux_loss", update.load->balance_loss(), balance_coef);
  if (update.z_loss) report("moe/z_loss", update.z_loss->value(), update.z_loss->coefficient());
  if (update.further) update.further->report(metrics);
  return metrics;
}

std::vector<double> RankEngine::routed_tokens(const BatchLayout& layout,
                                              const std::vector<std::vector<MicroBatch>>& parts) const {
  std::vector<double> own(parts.size() / 2, 0);
  for (size_t part = 0; part < parts.size(); ++part) {
    for (const MicroBatch& micro : parts[part]) {
      // The last token of a sequence predicts nothing and has no row.
      for (const int64_t i : micro.sequences)
        own[part / 2] += static_cast<double>(layout.lengths[static_cast<size_t>(i)] - 1);
    }
  }
  // Neighbours that share sequences (ulysses) each count them.
  const at::Tensor sum = at::tensor(own, at::TensorOptions().dtype(at::kDouble)).to(device_) /
                         static_cast<double>(options_.ulysses);
  if (mesh_.dp()->size() > 1) mesh_.dp()->all_reduce(sum, ReduceOp::kSum, {"update", "tokens of routers"});
  const at::Tensor all = sum.cpu();
  return {all.const_data_ptr<double>(), all.const_data_ptr<double>() + all.numel()};
}

void RankEngine::optimizer_step(Metrics& metrics) {
  const Range range("optimizer_step");
  const OptimizerOptions& optim = *options_.optim;
  // A NaN in an input column can make the loss NaN and leave its gradient zero, because a clipped term has no
  // gradient. Spoiling the gradients makes every rank skip this step.
  const auto loss = metrics.find("loss");
  if (loss != metrics.end() && !std::isfinite(loss->second)) sharding_.spoil_gradients();
  sharding_.sum_gradients();
  if (embedding_peer_) sharding_.sum_with(store_.at("embed.weight").group, *mesh_.pp(), *embedding_peer_);
  const double norm = sharding_.grad_norm(*mesh_.pp());
  const double lr = troupe::learning_rate(optim.schedule, optim.lr, schedule_steps_);
  metrics["grad_norm"] = norm;
  metrics["lr"] = lr;
  metrics["update_skipped"] = std::isfinite(norm) ? 0 : 1;
  if (!std::isfinite(norm)) return;
  // torch.nn.utils.clip_grad_norm_'s coefficient.
  const double scale = optim.grad_clip > 0 ? std::min(1.0, optim.grad_clip / (norm + 1e-6)) : 1.0;
  // Before it, since one that fails on the way has changed some of them.
  weights_changed();
  constexpr std::array kChanged{TensorKind::kParam, TensorKind::kExpAvg, TensorKind::kExpAvgSq};
  for (const TensorKind kind : kChanged) half_changed(kind) = true;
  sharding_.step(optim, {lr, scale, optimizer_steps_ + 1});
  for (const TensorKind kind : kChanged) half_changed(kind) = false;
  ++optimizer_steps_;
}

MetricsList RankEngine::update_policy(const PolicyBatch& batch, const MiniBatches& mini,
                                      const PolicyLossOptions& loss, double temperature) {
  at::NoGradGuard no_grad;
  const Beginning beginning(*this, agreed_entries(mini));
  require_head(HeadKind::kLm, "update_policy");
  check_temperature(temperature);
  prepare();
  const BatchLayout layout = checked_layout(batch.tokens);
  const auto head = make_policy_head(head_context(), batch, layout, mini, loss, temperature);
  return run_updates(batch.tokens, layout, batch.response_mask, batch.has_gradient, mini, *head,
                     {loss.router_aux_loss_coef, loss.router_z_loss_coef});
}

MetricsList RankEngine::update_critic(const ValueBatch& batch, const MiniBatches& mini,
                                      const ValueLossOptions& loss) {
  at::NoGradGuard no_grad;
  const Beginning beginning(*this, agreed_entries(mini));
  require_head(HeadKind::kValue, "update_critic");
  prepare();
  const BatchLayout layout = checked_layout(batch.tokens);
  const auto head = make_value_head(head_context(), batch, layout, mini, loss);
  return run_updates(batch.tokens, layout, batch.response_mask, {}, mini, *head,
                     {0, loss.router_z_loss_coef});
}

MetricsList RankEngine::update_sft(const SftBatch& batch, const MiniBatches& mini,
                                   const SftLossOptions& loss) {
  at::NoGradGuard no_grad;
  const Beginning beginning(*this, agreed_entries(mini));
  require_head(HeadKind::kLm, "update_sft");
  prepare();
  const BatchLayout layout = checked_layout(batch.tokens);
  const auto head = make_sft_head(head_context(), batch, layout, mini);
  return run_updates(batch.tokens, layout, batch.loss_mask, {}, mini, *head, {0, loss.router_z_loss_coef});
}

}  // namespace troupe
