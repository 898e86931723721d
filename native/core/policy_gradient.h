#pragma once

#include <cstdint>

#include "core/packing.h"
#include "kernels/linear_log_prob.h"
#include "losses/losses.h"

namespace troupe {

// The policy loss of one micro-batch while its log-probs come out of the head chunk by chunk. Most
// modes treat each token on its own, given the counts of the mini-batch and of its sequence: their
// gradient is formed as soon as a chunk's log-probs exist, and the head runs once. The others need
// every log-prob of a sequence (or of the micro-batch) first: for them the head runs twice.
class PolicyGradient {
 public:
  // `inputs` holds the micro-batch's arrays, log_probs and entropy still undefined.
  PolicyGradient(const losses::PolicyInputs& inputs, const std::vector<int64_t>& response_offsets,
                 const PolicyLossOptions& options)
      : inputs_(inputs), offsets_(response_offsets), options_(options) {}

  // Runs head and loss: log_probs and entropy [N] of the micro-batch, d_hidden [N', H]; adds to d_weight
  // where that is defined.
  void run(const ops::LogProbSpec& spec, const at::Tensor& hidden, const at::Tensor& weight,
           const at::Tensor& targets, const at::Tensor& d_hidden, const at::Tensor& d_weight);
  const at::Tensor& log_probs() const { return log_probs_; }
  const at::Tensor& entropy() const { return entropy_; }

 private:
  // The gradients of rows [begin, end) from their log-probs, zeros behind the last response token.
  void chunk_gradients(const ops::LogProbRows& rows, int64_t begin, int64_t end,
                       const at::Tensor& grad_log_probs, const at::Tensor& grad_entropy) const;
  // The part [begin, end) of the micro-batch's response tokens, sequences cut where they are cut.
  losses::PolicyInputs part(int64_t begin, int64_t end) const;

  losses::PolicyInputs inputs_;
  const std::vector<int64_t>& offsets_;  // [S+1]
  const PolicyLossOptions& options_;
  at::Tensor log_probs_, entropy_;
};

}  // namespace troupe
