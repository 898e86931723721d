// The loss of layers that predict further tokens, over the mini-batches of an update.
#pragma once

#include <cstdint>
#include <vector>

#include "base/metrics.h"
#include "batch/further_tokens.h"
#include "engine/engine.h"
#include "engine/loss_head.h"

namespace troupe {

// For each of D layers the cross-entropy of the tokens that it predicts, meant over those that the response
// mask has in the whole mini-batch, times coef / D (DeepSeek-V3, arXiv:2412.19437, equations 24 and 25, with
// the loss mask in the place of all tokens, as Megatron has it). The head is no part of what it trains.
class PredictionLoss {
 public:
  // context, options: must outlive it. batch: without images. mask [sum R]. data: of the ranks that have data
  // of their own; all ranks at the same time.
  PredictionLoss(const HeadContext& context, const PredictionOptions& options, const TokenBatch& batch,
                 const BatchLayout& layout, const at::Tensor& mask, const MiniBatches& mini,
                 Communicator& data);

  void begin(int64_t mini);
  // Of a micro-batch of the mini-batch that has begun, whose rows in the decoder are `rows`.
  PredictionTask task(const MicroBatch& micro, const PackedTokens& rows, const RowPadding& padding);
  // Over the ranks of `all`, of which those with `counts` have summed what the others have not. All at the
  // same time.
  void sum(Communicator& all, bool counts);
  // mtp_losses/mtp_{k}_loss, k from 1: the mean of the mini-batch, before the coefficient.
  void report(Metrics& metrics) const;

 private:
  at::Tensor gradient(size_t k, const PackedTokens& packed, const at::Tensor& outputs);
  // Of the mini-batch that has begun.
  double count(size_t k) const { return counts_[static_cast<size_t>(mini_) * further_.size() + k]; }

  HeadContext context_;
  const PredictionOptions& options_;
  std::vector<FurtherTokens> further_;  // by layer
  std::vector<at::Tensor> masks_;       // [sum R'] float32
  std::vector<double> counts_;          // [M, D] predicted tokens over all ranks
  int64_t mini_ = 0;
  at::Tensor sums_;  // [D] float64: of cross-entropies
};

}  // namespace troupe
