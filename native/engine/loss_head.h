// Losses behind the decoder: from its hidden states to per-token results, and back to their gradient.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>

#include "base/metrics.h"
#include "batch/packing.h"
#include "engine/engine.h"
#include "kernels/linear_log_prob.h"
#include "model/stage.h"

namespace troupe {

// The rows of a micro-batch, and those of them that this rank computes: all, unless ranks share micro-batches
// (ulysses or context parallelism).
struct MicroRows {
  PackedTokens whole, part;
};

// The loss of an update, over its mini-batches. Hidden states [N', H] are those of the rows that predict
// response tokens, zero rows behind them (model/stage.h).
class LossHead {
 public:
  virtual ~LossHead() = default;
  // Keeps the per-token results of a micro-batch for the metrics.
  virtual void evaluate(const MicroRows& micro, const at::Tensor& hidden) = 0;
  // The same, and the gradient [N', H] of the loss of mini-batch `mini` by the hidden states; adds to the
  // gradients of the head's own parameters.
  virtual at::Tensor gradient(int64_t mini, const MicroRows& micro, const at::Tensor& hidden) = 0;
  // The metrics of a mini-batch, after all of its micro-batches went through evaluate() or gradient(): here
  // or, in a pipeline, on the rank that has the head.
  virtual Metrics summarize(int64_t mini) = 0;
};

// What every loss needs of the engine.
struct HeadContext {
  const Stage& stage;  // the last of this rank; without a head on ranks where only summarize() is called
  const ModelConfig& model;
  at::Device device;
  Communicator* sharing;                   // of the ranks that share the rows of micro-batches; null: none
  const ops::VocabularyShard* vocabulary;  // null: the head has all of it
  // Where ranks share micro-batches each writes a part of a response array: puts the parts together, on all
  // of them.
  std::function<at::Tensor(const at::Tensor& own, const char* what)> combined;
};

// They refer to what they are given, which must outlive them. kInvalidArgument for columns that do not fit.
std::unique_ptr<LossHead> make_policy_head(const HeadContext& context, const PolicyBatch& batch,
                                           const BatchLayout& layout, const MiniBatches& mini,
                                           const PolicyLossOptions& loss, double temperature);
std::unique_ptr<LossHead> make_value_head(const HeadContext& context, const ValueBatch& batch,
                                          const BatchLayout& layout, const MiniBatches& mini,
                                          const ValueLossOptions& loss);
std::unique_ptr<LossHead> make_sft_head(const HeadContext& context, const SftBatch& batch,
                                        const BatchLayout& layout, const MiniBatches& mini);

// Log-probs of a micro-batch's targets, and what else is wanted, from its hidden states.
ops::LogProbRows head_rows(const HeadContext& context, const ops::LogProbSpec& spec,
                           const PackedTokens& packed, const at::Tensor& hidden, bool entropy,
                           bool sum_pi_squared, int64_t top_k = 0);

}  // namespace troupe
