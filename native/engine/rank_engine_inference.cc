// The verbs that compute log-probs and values of a batch.
#include <ATen/core/grad_mode.h>

#include "base/error.h"
#include "engine/rank_engine.h"
#include "engine/router_watch.h"
#include "model/log_prob_spec.h"
#include "model/value_head.h"

namespace troupe {

namespace {

// The base model alone, for the life of this object.
class AdaptersOff {
 public:
  AdaptersOff(Transformer& transformer, bool off) : transformer_(off ? &transformer : nullptr) {
    if (transformer_ != nullptr) transformer_->enable_adapters(false);
  }
  ~AdaptersOff() {
    if (transformer_ != nullptr) transformer_->enable_adapters(true);
  }
  AdaptersOff(const AdaptersOff&) = delete;
  AdaptersOff& operator=(const AdaptersOff&) = delete;

 private:
  Transformer* transformer_;
};

}  // namespace

void RankEngine::infer(
    const TokenBatch& batch, const BatchLayout& layout,
    const std::function<void(const MicroRows& micro, const at::Tensor& hidden)>& evaluate) {
  const std::vector<MicroBatch> micros = pack(layout, 0, layout.size(), options_.max_tokens);
  const int64_t rounds = agree({static_cast<int64_t>(micros.size())})[0];
  run_micro_batches(batch, layout, micros, rounds, {evaluate, {}});
  sharding_.release_all();
}

LogProbResult RankEngine::compute_log_prob(const TokenBatch& batch, double temperature, bool entropy,
                                           bool sum_pi_squared, bool disable_adapters, bool record_experts,
                                           int64_t top_k) {
  at::NoGradGuard no_grad;
  const Beginning beginning(*this, 1);
  require_head(HeadKind::kLm, "compute_log_prob");
  check_temperature(temperature);
  require(!disable_adapters || options_.lora, ErrorCode::kInvalidArgument,
          "[engine] there are no adapters to disable: the engine was created without lora");
  require(!record_experts || options_.model.moe, ErrorCode::kInvalidArgument,
          "[compute_log_prob] there are no routed experts to record: the model has no experts");
  require(top_k >= 0 && top_k <= options_.model.vocab_size, ErrorCode::kInvalidArgument,
          "[compute_log_prob] top_k: expected 0 to ", options_.model.vocab_size,
          ", the tokens of the vocabulary, got ", top_k);
  prepare();
  const BatchLayout layout = checked_layout(batch);
  std::optional<RoutingRecord> record;
  if (record_experts) record.emplace(batch.tokens.numel(), routing_shape(options_.model));
  const RouterWatch watch(transformer_,
                          {.record = record ? &*record : nullptr, .no_choices = no_choices(batch)});
  const auto result = [&](bool wanted) {
    return wanted ? at::zeros({layout.num_response_tokens()}) : at::Tensor();
  };
  const auto top = [&](at::ScalarType type) {
    return top_k > 0 ? at::zeros({layout.num_response_tokens(), top_k}, type) : at::Tensor();
  };
  LogProbResult all{result(true), result(entropy), result(sum_pi_squared),
                    {},           top(at::kFloat), top(at::kInt)};
  const AdaptersOff off(transformer_, disable_adapters);
  infer(batch, layout, [&](const MicroRows& micro, const at::Tensor& hidden) {
    const PackedTokens& packed = micro.part;
    const int64_t count = packed.targets.size(0);
    const HeadContext context = head_context();
    const ops::LogProbRows out =
        head_rows(context, log_prob_spec(options_.model, temperature, context.vocabulary), packed, hidden,
                  entropy, sum_pi_squared, top_k);
    const auto scatter = [&](const at::Tensor& target, const at::Tensor& source) {
      if (target.defined()) target.index_copy_(0, packed.response_index, source.narrow(0, 0, count).cpu());
    };
    scatter(all.log_probs, out.log_probs);
    scatter(all.entropy, out.entropy);
    scatter(all.sum_pi_squared, out.sum_pi_squared);
    scatter(all.top_log_probs, out.top.log_probs);
    scatter(all.top_ids, out.top.ids);
  });
  all.log_probs = combined(all.log_probs, "log-probs");
  all.entropy = combined(all.entropy, "entropy");
  all.sum_pi_squared = combined(all.sum_pi_squared, "sums of squares");
  all.top_log_probs = combined(all.top_log_probs, "log-probs of the likeliest tokens");
  all.top_ids = combined(all.top_ids, "the likeliest tokens");
  if (record) {
    if (sharing() != nullptr) record->sum(*sharing());
    record->sum(*mesh_.pp());
    all.routed_experts = record->choices();
  }
  return all;
}

at::Tensor RankEngine::compute_values(const TokenBatch& batch) {
  at::NoGradGuard no_grad;
  const Beginning beginning(*this, 1);
  require_head(HeadKind::kValue, "compute_values");
  prepare();
  const BatchLayout layout = checked_layout(batch);
  const at::Tensor values = at::zeros({layout.num_response_tokens()});
  infer(batch, layout, [&](const MicroRows& micro, const at::Tensor& hidden) {
    const Stage& stage = transformer_.stages().back();
    const at::Tensor rows = value_head_forward(hidden, stage.head_weight(), stage.head_bias());
    values.index_copy_(0, micro.part.response_index, rows.narrow(0, 0, micro.part.targets.size(0)).cpu());
  });
  return combined(values, "values");
}

}  // namespace troupe
