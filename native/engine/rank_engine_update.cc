// The update verbs: policy, critic, supervised.
#include "base/error.h"
#include "base/upload.h"
#include "engine/rank_engine.h"
#include "base/parallel.h"
#include "engine/policy_gradient.h"
#include "kernels/linear_log_prob.h"
#include "model/value_head.h"
#include "optim/adamw.h"

// The update verbs of RankEngine. A mini-batch is cut into micro-batches by the packing alone;
// losses are sums over tokens weighted by the counts of the whole mini-batch, so the cut does not
// change the result.
namespace troupe {

namespace {

// Response arrays of the sequences of a micro-batch.
at::Tensor pick(const at::Tensor& column, const at::Tensor& index) {
  return column.defined() ? column.index_select(0, index) : column;
}

at::Tensor offsets_tensor(const std::vector<int64_t>& offsets, size_t begin, size_t end) {
  std::vector<int64_t> shifted;
  for (size_t i = begin; i <= end; ++i) shifted.push_back(offsets[i] - offsets[begin]);
  return at::tensor(shifted, at::kLong);
}

losses::ResponseLayout micro_layout(const PackedTokens& packed, const at::Tensor& mask,
                                    const MiniBatches& mini, int64_t m) {
  return {offsets_tensor(packed.response_offsets, 0, packed.response_offsets.size() - 1),
          pick(mask, packed.response_index), mini.global_tokens[static_cast<size_t>(m)],
          mini.global_sequences[static_cast<size_t>(m)]};
}

// Of the part of a micro-batch that one rank computes.
losses::ResponseLayout part_layout(const PackedTokens& whole, const PackedTokens& part,
                                   const at::Tensor& mask, const MiniBatches& mini, int64_t m) {
  losses::ResponseLayout layout = micro_layout(part, mask, mini, m);
  layout.mask_sums = losses::mask_sums(micro_layout(whole, mask, mini, m));
  return layout;
}

// The response arrays of a whole mini-batch.
class MiniBatchColumns {
 public:
  MiniBatchColumns(const BatchLayout& layout, const MiniBatches& mini, int64_t m)
      : layout_(layout),
        first_(static_cast<size_t>(mini.offsets[static_cast<size_t>(m)])),
        last_(static_cast<size_t>(mini.offsets[static_cast<size_t>(m) + 1])),
        tokens_(mini.global_tokens[static_cast<size_t>(m)]),
        sequences_(mini.global_sequences[static_cast<size_t>(m)]) {}

  at::Tensor of(const at::Tensor& column) const {
    const int64_t begin = layout_.response_offsets[first_], end = layout_.response_offsets[last_];
    return column.defined() ? column.narrow(0, begin, end - begin) : column;
  }
  losses::ResponseLayout layout(const at::Tensor& mask) const {
    return {offsets_tensor(layout_.response_offsets, first_, last_), of(mask), tokens_, sequences_};
  }

 private:
  const BatchLayout& layout_;
  size_t first_, last_;  // sequences
  double tokens_, sequences_;
};

void check_column(const at::Tensor& column, const char* name, const BatchLayout& layout) {
  require(!column.defined() || column.numel() == layout.num_response_tokens(), ErrorCode::kInvalidArgument,
          "[batch] ", name, ": expected one value per response token (", layout.num_response_tokens(),
          "), got ", column.defined() ? column.numel() : 0);
}

void check_mini(const MiniBatches& mini, const BatchLayout& layout) {
  require(mini.offsets.size() >= 2 && mini.offsets.front() == 0 && mini.offsets.back() == layout.size(),
          ErrorCode::kInvalidArgument,
          "[batch] mini-batch offsets must run from 0 to the number of sequences (", layout.size(), ")");
  require(mini.global_tokens.size() + 1 == mini.offsets.size() &&
              mini.global_sequences.size() + 1 == mini.offsets.size(),
          ErrorCode::kInvalidArgument, "[batch] expected one global token and sequence count per mini-batch");
  for (size_t m = 0; m + 1 < mini.offsets.size(); ++m) {
    require(mini.offsets[m] <= mini.offsets[m + 1], ErrorCode::kInvalidArgument,
            "[batch] mini-batch offsets must not decrease");
  }
}

// What run_updates() agrees on: two counts for every mini-batch.
size_t agreed_entries(const MiniBatches& mini) {
  return mini.offsets.empty() ? 0 : 2 * (mini.offsets.size() - 1);
}

}  // namespace

MetricsList RankEngine::run_updates(const TokenBatch& tokens, const BatchLayout& layout,
                                     const at::Tensor& has_gradient, const MiniBatches& mini,
                                     const MicroStep& step, const Summary& summarize) {
  require(options_.optim.has_value(), ErrorCode::kInvalidArgument,
          "[engine] an inference-only engine (optim: null) cannot be updated");
  check_mini(mini, layout);
  // All of them first: a sequence that does not fit must not be found after an optimiser step.
  // Two entries per mini-batch: what is propagated backwards, and what is not.
  std::vector<std::vector<MicroBatch>> micro_batches;
  std::vector<int64_t> counts;
  for (size_t m = 0; m + 1 < mini.offsets.size(); ++m) {
    const Propagation parts = propagation(layout, mini.offsets[m], mini.offsets[m + 1], has_gradient);
    for (const std::vector<int64_t>& sequences : {parts.backward, parts.forward}) {
      micro_batches.push_back(pack(layout, sequences, options_.max_tokens));
      counts.push_back(static_cast<int64_t>(micro_batches.back().size()));
    }
  }
  const std::vector<int64_t> rounds = agree(counts);
  const auto run_part = [&](size_t m, bool backward) {
    const size_t part = 2 * m + (backward ? 0 : 1);
    for (int64_t i = 0; i < rounds[part]; ++i) {
      check_abort();
      if (i < counts[part]) {
        const PackedTokens whole = gather_rows(tokens, layout, micro_batches[part][static_cast<size_t>(i)]);
        step(static_cast<int64_t>(m), whole, own_part(whole), backward);
      } else {
        transformer_.idle_pass(backward);
      }
    }
  };
  MetricsList all;
  for (int64_t epoch = 0; epoch < mini.epochs; ++epoch) {
    for (size_t m = 0; m + 1 < mini.offsets.size(); ++m) {
      sharding_.clear_gradients();
      run_part(m, true);
      run_part(m, false);
      // A rank without sequences has nothing to say about them.
      const bool any = counts[2 * m] + counts[2 * m + 1] > 0;
      Metrics metrics = any || sharding_.size() == 1 ? summarize(static_cast<int64_t>(m)) : Metrics();
      optimizer_step(metrics);
      all.push_back(std::move(metrics));
    }
  }
  ++schedule_steps_;
  sharding_.release_all();
  return all;
}

void RankEngine::optimizer_step(Metrics& metrics) {
  const AdamWOptions& optim = *options_.optim;
  // NaN in a column can leave the loss without a number and its gradient at zero, which clips pass on.
  const auto loss = metrics.find("loss");
  if (loss != metrics.end() && !std::isfinite(loss->second)) sharding_.spoil_gradients();
  sharding_.sum_gradients();
  const double norm = sharding_.grad_norm();
  const double lr = troupe::learning_rate(optim.schedule, optim.lr, schedule_steps_);
  metrics["grad_norm"] = norm;
  metrics["lr"] = lr;
  metrics["update_skipped"] = std::isfinite(norm) ? 0 : 1;
  if (!std::isfinite(norm)) return;
  // torch.nn.utils.clip_grad_norm_'s coefficient.
  const double scale = optim.grad_clip > 0 ? std::min(1.0, optim.grad_clip / (norm + 1e-6)) : 1.0;
  sharding_.step(optim, lr, scale, ++optimizer_steps_);
  weights_changed();
}

MetricsList RankEngine::update_policy(const PolicyBatch& batch, const MiniBatches& mini,
                                       const PolicyLossOptions& loss, double temperature) {
  at::NoGradGuard no_grad;
  const Beginning beginning(*this, agreed_entries(mini));
  require_head(HeadKind::kLm, "update_policy");
  check_temperature(temperature);
  prepare();
  const BatchLayout layout =
      check_layout(batch.tokens, options_.model.vocab_size, options_.model.max_positions);
  check_column(batch.response_mask, "responseMask", layout);
  check_column(batch.old_log_probs, "oldLogProbs", layout);
  check_column(batch.advantages, "advantages", layout);
  check_column(batch.ref_log_probs, "refLogProbs", layout);
  check_column(batch.rollout_is_weights, "rolloutIsWeights", layout);
  check_column(batch.rollout_log_probs, "rolloutLogProbs", layout);
  require(!batch.has_gradient.defined() || batch.has_gradient.numel() == layout.size(),
          ErrorCode::kInvalidArgument, "[batch] hasGradient: expected one value per sequence (",
          layout.size(), "), got ", batch.has_gradient.defined() ? batch.has_gradient.numel() : 0);
  const GivenLoss& given = batch.given_loss;
  check_column(given.values, "givenLoss.values", layout);
  check_column(given.by_log_prob, "givenLoss.byLogProb", layout);
  check_column(given.by_entropy, "givenLoss.byEntropy", layout);
  require(!loss.use_kl_loss || batch.ref_log_probs.defined(), ErrorCode::kInvalidArgument,
          "[batch] refLogProbs is missing: the KL loss (use_kl_loss) needs it");
  // On the device until the end of a mini-batch: the host need not wait for each micro-batch.
  const auto kept = [&] {
    return at::zeros({layout.num_response_tokens()}, at::device(device_).dtype(at::kFloat));
  };
  const at::Tensor log_probs = kept();
  const at::Tensor entropy = kept();
  const auto keep = [&](const at::Tensor& response_index, const at::Tensor& new_log_probs,
                        const at::Tensor& new_entropy) {
    const at::Tensor index = upload(response_index, device_);
    log_probs.index_copy_(0, index, new_log_probs);
    entropy.index_copy_(0, index, new_entropy);
  };
  const ops::LogProbSpec spec{temperature, options_.model.final_softcap};

  const auto evaluate = [&](const PackedTokens& packed) {
    const at::Tensor hidden = transformer_.forward(packed, nullptr, false);
    const ops::LogProbRows rows = head_rows(spec, packed, hidden, true, false);
    const int64_t count = packed.targets.size(0);
    keep(packed.response_index, rows.log_probs.narrow(0, 0, count), rows.entropy.narrow(0, 0, count));
    transformer_.end_inference();
  };
  const MicroStep step = [&](int64_t m, const PackedTokens& whole, const PackedTokens& packed,
                             bool backward) {
    if (!backward) return evaluate(packed);
    ForwardState state;
    const at::Tensor hidden = transformer_.forward(packed, &state, options_.gradient_checkpointing);
    const at::Tensor& index = whole.response_index;
    PolicyGradient gradient(
        {micro_layout(whole, batch.response_mask, mini, m),
         {},
         {},
         pick(batch.old_log_probs, index),
         pick(batch.advantages, index),
         pick(batch.ref_log_probs, index),
         pick(batch.rollout_is_weights, index),
         pick(batch.rollout_log_probs, index),
         {pick(given.values, index), pick(given.by_log_prob, index), pick(given.by_entropy, index)}},
        packed, sequence_.get(), loss);
    const at::Tensor d_hidden = at::empty_like(hidden);
    gradient.run(spec, hidden, transformer_.head_weight(),
                 upload(pad_rows(packed.targets, hidden.size(0)), device_), d_hidden,
                 transformer_.head_weight_grad());
    keep(packed.response_index, gradient.log_probs(), gradient.entropy());
    transformer_.backward(d_hidden, state);
  };
  const Summary summarize = [&](int64_t m) {
    const MiniBatchColumns columns(layout, mini, m);
    return losses::policy_loss(
               {columns.layout(batch.response_mask),
                combined(columns.of(log_probs), "log-probs").cpu(),
                combined(columns.of(entropy), "entropy").cpu(),
                columns.of(batch.old_log_probs),
                columns.of(batch.advantages),
                columns.of(batch.ref_log_probs),
                columns.of(batch.rollout_is_weights),
                columns.of(batch.rollout_log_probs),
                {columns.of(given.values), columns.of(given.by_log_prob), columns.of(given.by_entropy)}},
               loss)
        .metrics;
  };
  return run_updates(batch.tokens, layout, batch.has_gradient, mini, step, summarize);
}

MetricsList RankEngine::update_critic(const ValueBatch& batch, const MiniBatches& mini,
                                       const ValueLossOptions& loss) {
  at::NoGradGuard no_grad;
  const Beginning beginning(*this, agreed_entries(mini));
  require_head(HeadKind::kValue, "update_critic");
  prepare();
  const BatchLayout layout =
      check_layout(batch.tokens, options_.model.vocab_size, options_.model.max_positions);
  check_column(batch.response_mask, "responseMask", layout);
  check_column(batch.values, "values", layout);
  check_column(batch.returns, "returns", layout);
  const at::Tensor predictions = at::zeros({layout.num_response_tokens()});

  const MicroStep step = [&](int64_t m, const PackedTokens& whole, const PackedTokens& packed, bool) {
    ForwardState state;
    const at::Tensor hidden = transformer_.forward(packed, &state, options_.gradient_checkpointing);
    const int64_t count = packed.targets.size(0);
    const at::Tensor micro = value_head_forward(hidden, transformer_.head_weight(), transformer_.head_bias())
                                 .narrow(0, 0, count)
                                 .cpu();
    predictions.index_copy_(0, packed.response_index, micro);
    const losses::ValueLoss result = losses::value_loss(
        {part_layout(whole, packed, batch.response_mask, mini, m), micro,
         pick(batch.values, packed.response_index), pick(batch.returns, packed.response_index)},
        loss);
    const at::Tensor grad = pad_rows(result.grad_predictions, hidden.size(0)).to(device_);
    transformer_.backward(value_head_backward(grad, hidden, transformer_.head_weight(),
                                              transformer_.head_weight_grad(), transformer_.head_bias_grad()),
                          state);
  };
  const Summary summarize = [&](int64_t m) {
    const MiniBatchColumns columns(layout, mini, m);
    return losses::value_loss(
               {columns.layout(batch.response_mask), combined(columns.of(predictions), "values"),
                columns.of(batch.values), columns.of(batch.returns)},
               loss)
        .metrics;
  };
  return run_updates(batch.tokens, layout, {}, mini, step, summarize);
}

MetricsList RankEngine::update_sft(const SftBatch& batch, const MiniBatches& mini) {
  at::NoGradGuard no_grad;
  const Beginning beginning(*this, agreed_entries(mini));
  require_head(HeadKind::kLm, "update_sft");
  prepare();
  const BatchLayout layout =
      check_layout(batch.tokens, options_.model.vocab_size, options_.model.max_positions);
  check_column(batch.loss_mask, "lossMask", layout);
  const at::Tensor log_probs = at::zeros({layout.num_response_tokens()});
  const auto rows_options = at::TensorOptions().dtype(at::kFloat).device(device_);

  const MicroStep step = [&](int64_t m, const PackedTokens& whole, const PackedTokens& packed, bool) {
    ForwardState state;
    const at::Tensor hidden = transformer_.forward(packed, &state, options_.gradient_checkpointing);
    const int64_t padded = hidden.size(0);
    // The gradient of this loss does not depend on the log-probs: one pass over the head is enough.
    const losses::ResponseLayout micro = part_layout(whole, packed, batch.loss_mask, mini, m);
    const at::Tensor grad =
        pad_rows(losses::sft_loss(micro, at::zeros({packed.targets.size(0)})).grad_log_probs, padded)
            .to(device_);
    const ops::LogProbRows rows{at::empty({padded}, rows_options), at::empty({padded}, rows_options), {}, {}};
    const at::Tensor d_hidden = at::empty_like(hidden);
    ops::linear_log_prob_backward(
        {1.0, options_.model.final_softcap}, hidden, transformer_.head_weight(),
        pad_rows(packed.targets, padded).to(device_), rows, false,
        [&](int64_t begin, int64_t end, const at::Tensor& grad_rows, const at::Tensor&) {
          grad_rows.copy_(grad.narrow(0, begin, end - begin));
        },
        d_hidden, transformer_.head_weight_grad());
    log_probs.index_copy_(0, packed.response_index,
                          rows.log_probs.narrow(0, 0, packed.targets.size(0)).cpu());
    transformer_.backward(d_hidden, state);
  };
  const Summary summarize = [&](int64_t m) {
    const MiniBatchColumns columns(layout, mini, m);
    return losses::sft_loss(columns.layout(batch.loss_mask), combined(columns.of(log_probs), "log-probs"))
        .metrics;
  };
  return run_updates(batch.tokens, layout, {}, mini, step, summarize);
}

}  // namespace troupe
