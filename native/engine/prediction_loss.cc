// Cross-entropies of further tokens, and their gradients.
#include "engine/prediction_loss.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <string>

#include "base/parallel.h"
#include "base/upload.h"
#include "kernels/linear_log_prob.h"
#include "model/log_prob_spec.h"
#include "model/value_head.h"

namespace troupe {

PredictionLoss::PredictionLoss(const HeadContext& context, const PredictionOptions& options,
                               const TokenBatch& batch, const BatchLayout& layout, const at::Tensor& mask,
                               const MiniBatches& mini, Communicator& data)
    : context_(context),
      options_(options),
      sums_(at::zeros({context.model.prediction_layers()},
                      at::device(context.device.is_meta() ? at::kCPU : context.device).dtype(at::kDouble))) {
  for (int64_t depth = 1; depth <= context.model.prediction_layers(); ++depth) {
    further_.push_back(further_tokens(batch, layout, depth));
    masks_.push_back(mask.index_select(0, further_.back().responses).to(at::kFloat));
  }
  const size_t minis = mini.offsets.size() - 1;
  counts_.resize(minis * further_.size());
  for (size_t m = 0; m < minis; ++m) {
    for (size_t k = 0; k < further_.size(); ++k) {
      const std::vector<int64_t>& responses = further_[k].layout.response_offsets;
      const int64_t begin = responses[static_cast<size_t>(mini.offsets[m])],
                    end = responses[static_cast<size_t>(mini.offsets[m + 1])];
      counts_[m * further_.size() + k] =
          masks_[k].narrow(0, begin, end - begin).sum(at::kDouble).item<double>();
    }
  }
  if (data.size() == 1) return;
  const at::Tensor sum = at::tensor(counts_, at::TensorOptions().dtype(at::kDouble)).to(context.device);
  data.all_reduce(sum, ReduceOp::kSum, {"update", "further tokens"});
  const at::Tensor all = sum.cpu();
  if (!simulated(sum)) std::copy_n(all.const_data_ptr<double>(), counts_.size(), counts_.begin());
}

void PredictionLoss::begin(int64_t mini) {
  mini_ = mini;
  sums_.zero_();
}

PredictionTask PredictionLoss::task(const MicroBatch& micro, const PackedTokens& rows,
                                    const RowPadding& padding) {
  std::vector<FurtherRows> layers;
  layers.reserve(further_.size());  // each refers to the one before
  for (const FurtherTokens& further : further_) {
    layers.push_back(further_rows(further, micro, layers.empty() ? rows : layers.back().packed, padding));
  }
  return {std::move(layers),
          [this](size_t k, const PackedTokens& own, const at::Tensor& outputs) {
            return gradient(k, own, outputs);
          },
          options_.detach};
}

at::Tensor PredictionLoss::gradient(size_t k, const PackedTokens& packed, const at::Tensor& outputs) {
  const int64_t padded = outputs.size(0), predictions = packed.targets.size(0);
  const at::Tensor mask = upload(masks_[k].index_select(0, packed.response_index), context_.device);
  const double scale = options_.coef / static_cast<double>(further_.size()) / std::max(1.0, count(k));
  const at::Tensor by_log_prob = at::zeros({padded}, mask.options());
  by_log_prob.narrow(0, 0, predictions).copy_(mask).mul_(-scale);
  const ops::LogProbRows rows{
      at::empty({padded}, mask.options()), at::empty({padded}, mask.options()), {}, {}};
  const at::Tensor d_outputs = at::empty_like(outputs);
  ops::linear_log_prob_backward(
      log_prob_spec(context_.model, 1, context_.vocabulary), outputs, context_.stage.head_weight(),
      upload(pad_rows(packed.targets, padded), context_.device), rows, false,
      [&](int64_t begin, int64_t end, const at::Tensor& grad_rows, const at::Tensor&) {
        grad_rows.copy_(by_log_prob.narrow(0, begin, end - begin));
      },
      d_outputs, {});
  if (!simulated(outputs)) {
    const at::Tensor log_probs = rows.log_probs.narrow(0, 0, predictions).to(at::kDouble);
    sums_.select(0, static_cast<int64_t>(k)).sub_(at::dot(log_probs, mask.to(at::kDouble)));
  }
  return d_outputs;
}

void PredictionLoss::sum(Communicator& all, bool counts) {
  if (!counts) sums_.zero_();
  if (all.size() > 1) all.all_reduce(sums_, ReduceOp::kSum, {"update", "losses of further tokens"});
}

void PredictionLoss::report(Metrics& metrics) const {
  const at::Tensor sums = sums_.cpu();
  for (size_t k = 0; k < further_.size(); ++k) {
    metrics["mtp_losses/mtp_" + std::to_string(k + 1) + "_loss"] =
        count(k) == 0 ? 0 : sums.const_data_ptr<double>()[k] / count(k);
  }
}

}  // namespace troupe
