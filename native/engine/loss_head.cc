// The losses of the update verbs.
#include "engine/loss_head.h"

#include <ATen/ATen.h>

#include "base/error.h"
#include "base/parallel.h"
#include "base/upload.h"
#include "engine/policy_gradient.h"
#include "losses/distillation.h"
#include "losses/losses.h"
#include "model/log_prob_spec.h"
#include "model/value_head.h"

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

// Of a batch with K values per response token.
void check_rows(const at::Tensor& column, const char* name, const BatchLayout& layout, int64_t k) {
  require(column.defined() && column.dim() == 2 && column.size(0) == layout.num_response_tokens() &&
              column.size(1) == k,
          ErrorCode::kInvalidArgument, "[batch] ", name, ": the distillation needs ", k,
          " per response token (", layout.num_response_tokens(), "), got ",
          column.defined() ? column.numel() : 0);
}

void check_distillation(const PolicyBatch& batch, const DistillationOptions& options,
                        const BatchLayout& layout, int64_t vocab) {
  check_rows(batch.teacher_log_probs, "teacherLogProbs", layout, std::max<int64_t>(options.top_k, 1));
  if (options.top_k == 0) return;
  require(options.top_k <= vocab, ErrorCode::kInvalidArgument, "[batch] the distillation compares ",
          options.top_k, " tokens at each position (topK): expected at most the ", vocab,
          " of the vocabulary");
  check_rows(batch.teacher_ids, "teacherIds", layout, options.top_k);
  if (batch.teacher_ids.numel() == 0 || simulated(batch.teacher_ids)) return;
  const int64_t least = batch.teacher_ids.min().item<int64_t>(),
                most = batch.teacher_ids.max().item<int64_t>();
  require(least >= 0 && most < vocab, ErrorCode::kInvalidArgument, "[batch] teacherIds: expected ids in [0, ",
          vocab, "), got ", least < 0 ? least : most);
}

class PolicyHead final : public LossHead {
 public:
  PolicyHead(const HeadContext& context, const PolicyBatch& batch, const BatchLayout& layout,
             const MiniBatches& mini, const PolicyLossOptions& loss, double temperature)
      : context_(context),
        batch_(batch),
        layout_(layout),
        mini_(mini),
        loss_(loss),
        spec_(log_prob_spec(context.model, temperature, context.vocabulary)),
        log_probs_(kept()),
        entropy_(kept()) {
    check_column(batch.response_mask, "responseMask", layout);
    check_column(batch.old_log_probs, "oldLogProbs", layout);
    check_column(batch.advantages, "advantages", layout);
    check_column(batch.ref_log_probs, "refLogProbs", layout);
    check_column(batch.rollout_is_weights, "rolloutIsWeights", layout);
    require(!batch.has_gradient.defined() || batch.has_gradient.numel() == layout.size(),
            ErrorCode::kInvalidArgument, "[batch] hasGradient: expected one value per sequence (",
            layout.size(), "), got ", batch.has_gradient.defined() ? batch.has_gradient.numel() : 0);
    const GivenLoss& given = batch.given_loss;
    check_column(given.values, "givenLoss.values", layout);
    check_column(given.by_log_prob, "givenLoss.byLogProb", layout);
    check_column(given.by_entropy, "givenLoss.byEntropy", layout);
    require(!loss.use_kl_loss || batch.ref_log_probs.defined(), ErrorCode::kInvalidArgument,
            "[batch] refLogProbs is missing: the KL loss (use_kl_loss) needs it");
    if (loss.distillation) {
      check_distillation(batch, *loss.distillation, layout, context.model.vocab_size);
      if (loss.distillation->top_k > 0) distilled_ = kept(losses::TopKlRow::kCount);
    }
  }

  void evaluate(const MicroRows& micro, const at::Tensor& hidden) override {
    const ops::LogProbRows rows = head_rows(context_, spec_, micro.part, hidden, true, false);
    const int64_t count = micro.part.targets.size(0);
    keep(micro.part.response_index, rows.log_probs.narrow(0, 0, count), rows.entropy.narrow(0, 0, count));
  }

  at::Tensor gradient(int64_t m, const MicroRows& micro, const at::Tensor& hidden) override {
    const auto& [whole, packed] = micro;
    const at::Tensor& index = whole.response_index;
    const GivenLoss& given = batch_.given_loss;
    PolicyGradient gradient(
        {micro_layout(whole, batch_.response_mask, mini_, m),
         {},
         {},
         pick(batch_.old_log_probs, index),
         pick(batch_.advantages, index),
         pick(batch_.ref_log_probs, index),
         pick(batch_.rollout_is_weights, index),
         {pick(given.values, index), pick(given.by_log_prob, index), pick(given.by_entropy, index)},
         pick(batch_.teacher_log_probs, index)},
        pick(batch_.teacher_ids, index), packed, context_.sharing, loss_);
    const at::Tensor d_hidden = at::empty_like(hidden);
    gradient.run(spec_, hidden, context_.stage.head_weight(),
                 upload(pad_rows(packed.targets, hidden.size(0)), context_.device), d_hidden,
                 context_.stage.head_weight_grad());
    keep(packed.response_index, gradient.log_probs(), gradient.entropy());
    if (distilled_.defined())
      distilled_.index_copy_(0, upload(packed.response_index, context_.device), gradient.distilled());
    return d_hidden;
  }

  Metrics summarize(int64_t m) override {
    const MiniBatchColumns columns(layout_, mini_, m);
    const GivenLoss& given = batch_.given_loss;
    return losses::policy_loss(
               {columns.layout(batch_.response_mask),
                context_.combined(columns.of(log_probs_), "log-probs").cpu(),
                context_.combined(columns.of(entropy_), "entropy").cpu(),
                columns.of(batch_.old_log_probs),
                columns.of(batch_.advantages),
                columns.of(batch_.ref_log_probs),
                columns.of(batch_.rollout_is_weights),
                {columns.of(given.values), columns.of(given.by_log_prob), columns.of(given.by_entropy)},
                columns.of(batch_.teacher_log_probs),
                distilled_.defined()
                    ? context_.combined(columns.of(distilled_).contiguous(), "distillation").cpu()
                    : distilled_},
               loss_)
        .metrics;
  }

 private:
  // On the device until the end of a mini-batch: the host need not wait for each micro-batch.
  at::Tensor kept() const {
    return at::zeros({layout_.num_response_tokens()}, at::device(context_.device).dtype(at::kFloat));
  }
  at::Tensor kept(int64_t columns) const {
    return at::zeros({layout_.num_response_tokens(), columns}, at::device(context_.device).dtype(at::kFloat));
  }
  void keep(const at::Tensor& response_index, const at::Tensor& log_probs, const at::Tensor& entropy) {
    const at::Tensor index = upload(response_index, context_.device);
    log_probs_.index_copy_(0, index, log_probs);
    entropy_.index_copy_(0, index, entropy);
  }

  HeadContext context_;
  const PolicyBatch& batch_;
  const BatchLayout& layout_;
  const MiniBatches& mini_;
  const PolicyLossOptions& loss_;
  const ops::LogProbSpec spec_;
  at::Tensor log_probs_, entropy_;  // [sum R]
  at::Tensor distilled_;            // [sum R, TopKlRow::kCount], of a distillation with top_k
};

class ValueHead final : public LossHead {
 public:
  ValueHead(const HeadContext& context, const ValueBatch& batch, const BatchLayout& layout,
            const MiniBatches& mini, const ValueLossOptions& loss)
      : context_(context),
        batch_(batch),
        layout_(layout),
        mini_(mini),
        loss_(loss),
        predictions_(at::zeros({layout.num_response_tokens()})) {
    check_column(batch.response_mask, "responseMask", layout);
    check_column(batch.values, "values", layout);
    check_column(batch.returns, "returns", layout);
  }

  void evaluate(const MicroRows& micro, const at::Tensor& hidden) override { predict(micro.part, hidden); }

  at::Tensor gradient(int64_t m, const MicroRows& micro, const at::Tensor& hidden) override {
    const auto& [whole, packed] = micro;
    const losses::ValueLoss result = losses::value_loss(
        {part_layout(whole, packed, batch_.response_mask, mini_, m), predict(packed, hidden),
         pick(batch_.values, packed.response_index), pick(batch_.returns, packed.response_index)},
        loss_);
    const at::Tensor grad = upload(pad_rows(result.grad_predictions, hidden.size(0)), context_.device);
    const Stage& stage = context_.stage;
    return value_head_backward(grad, hidden, stage.head_weight(), stage.head_weight_grad(),
                               stage.head_bias_grad());
  }

  Metrics summarize(int64_t m) override {
    const MiniBatchColumns columns(layout_, mini_, m);
    return losses::value_loss(
               {columns.layout(batch_.response_mask), context_.combined(columns.of(predictions_), "values"),
                columns.of(batch_.values), columns.of(batch_.returns)},
               loss_)
        .metrics;
  }

 private:
  at::Tensor predict(const PackedTokens& packed, const at::Tensor& hidden) {
    const Stage& stage = context_.stage;
    const at::Tensor micro = value_head_forward(hidden, stage.head_weight(), stage.head_bias())
                                 .narrow(0, 0, packed.targets.size(0))
                                 .cpu();
    predictions_.index_copy_(0, packed.response_index, micro);
    return micro;
  }

  HeadContext context_;
  const ValueBatch& batch_;
  const BatchLayout& layout_;
  const MiniBatches& mini_;
  const ValueLossOptions& loss_;
  at::Tensor predictions_;  // [sum R]
};

class SftHead final : public LossHead {
 public:
  SftHead(const HeadContext& context, const SftBatch& batch, const BatchLayout& layout,
          const MiniBatches& mini)
      : context_(context),
        batch_(batch),
        layout_(layout),
        mini_(mini),
        log_probs_(at::zeros({layout.num_response_tokens()})) {
    check_column(batch.loss_mask, "lossMask", layout);
  }

  void evaluate(const MicroRows& micro, const at::Tensor& hidden) override {
    keep(micro.part, head_rows(context_, spec(), micro.part, hidden, false, false));
  }

  at::Tensor gradient(int64_t m, const MicroRows& micro, const at::Tensor& hidden) override {
    const auto& [whole, packed] = micro;
    const int64_t padded = hidden.size(0);
    // The gradient of this loss does not depend on the log-probs: one pass over the head is enough.
    const losses::ResponseLayout layout = part_layout(whole, packed, batch_.loss_mask, mini_, m);
    const at::Tensor grad =
        upload(pad_rows(losses::sft_loss(layout, at::zeros({packed.targets.size(0)})).grad_log_probs, padded),
               context_.device);
    const auto rows_options = at::TensorOptions().dtype(at::kFloat).device(context_.device);
    const ops::LogProbRows rows{at::empty({padded}, rows_options), at::empty({padded}, rows_options), {}, {}};
    const at::Tensor d_hidden = at::empty_like(hidden);
    ops::linear_log_prob_backward(
        spec(), hidden, context_.stage.head_weight(),
        upload(pad_rows(packed.targets, padded), context_.device), rows, false,
        [&](int64_t begin, int64_t end, const at::Tensor& grad_rows, const at::Tensor&) {
          grad_rows.copy_(grad.narrow(0, begin, end - begin));
        },
        d_hidden, context_.stage.head_weight_grad());
    keep(packed, rows);
    return d_hidden;
  }

  Metrics summarize(int64_t m) override {
    const MiniBatchColumns columns(layout_, mini_, m);
    return losses::sft_loss(columns.layout(batch_.loss_mask),
                            context_.combined(columns.of(log_probs_), "log-probs"))
        .metrics;
  }

 private:
  ops::LogProbSpec spec() const { return log_prob_spec(context_.model, 1, context_.vocabulary); }
  void keep(const PackedTokens& packed, const ops::LogProbRows& rows) {
    log_probs_.index_copy_(0, packed.response_index,
                           rows.log_probs.narrow(0, 0, packed.targets.size(0)).cpu());
  }

  HeadContext context_;
  const SftBatch& batch_;
  const BatchLayout& layout_;
  const MiniBatches& mini_;
  at::Tensor log_probs_;  // [sum R]
};

}  // namespace

std::unique_ptr<LossHead> make_policy_head(const HeadContext& context, const PolicyBatch& batch,
                                           const BatchLayout& layout, const MiniBatches& mini,
                                           const PolicyLossOptions& loss, double temperature) {
  return std::make_unique<PolicyHead>(context, batch, layout, mini, loss, temperature);
}

std::unique_ptr<LossHead> make_value_head(const HeadContext& context, const ValueBatch& batch,
                                          const BatchLayout& layout, const MiniBatches& mini,
                                          const ValueLossOptions& loss) {
  return std::make_unique<ValueHead>(context, batch, layout, mini, loss);
}

std::unique_ptr<LossHead> make_sft_head(const HeadContext& context, const SftBatch& batch,
                                        const BatchLayout& layout, const MiniBatches& mini) {
  return std::make_unique<SftHead>(context, batch, layout, mini);
}

ops::LogProbRows head_rows(const HeadContext& context, const ops::LogProbSpec& spec,
                           const PackedTokens& packed, const at::Tensor& hidden, bool entropy,
                           bool sum_pi_squared, int64_t top_k) {
  const auto options = at::TensorOptions().dtype(at::kFloat).device(context.device);
  const auto rows = [&](bool wanted) { return wanted ? at::empty({hidden.size(0)}, options) : at::Tensor(); };
  ops::LogProbRows out{rows(true), rows(true), rows(entropy), rows(sum_pi_squared)};
  if (top_k > 0)
    out.top = {at::empty({hidden.size(0), top_k}, options.dtype(at::kInt)),
               at::empty({hidden.size(0), top_k}, options)};
  ops::linear_log_prob_forward(spec, hidden, context.stage.head_weight(),
                               upload(pad_rows(packed.targets, hidden.size(0)), context.device), out);
  return out;
}

}  // namespace troupe
