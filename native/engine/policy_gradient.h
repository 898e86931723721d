// The gradient of a policy loss while log-probs come out of the head.
#pragma once

#include <cstdint>

#include "batch/packing.h"
#include "comm/communicator.h"
#include "kernels/linear_log_prob.h"
#include "losses/distillation.h"
#include "losses/losses.h"
#include "losses/token_gradients.h"

namespace troupe {

// The policy loss of one micro-batch while its log-probs come out of the head chunk by chunk. Most
// modes treat each token on its own, given the counts of the mini-batch and of its sequence: their
// gradient is formed as soon as a chunk's log-probs exist, and the head runs once. The others need
// every log-prob of a sequence (or of the micro-batch) first: for them the head runs twice.
//
// Where ranks share the rows a rank's head computes part of the micro-batch's n of N response tokens. The
// first kind of mode needs no more than those; for the second the log-probs come together before the loss.
class PolicyGradient {
 public:
  // `inputs` holds the arrays [N] of the whole micro-batch, log_probs and entropy still undefined. `part`:
  // what this rank computes of it, with the ranks `sharing` it, or all (null). `teacher_ids`: [N, top_k]
  // int32 of a distillation with top_k.
  PolicyGradient(const losses::PolicyInputs& inputs, const at::Tensor& teacher_ids, const PackedTokens& part,
                 Communicator* sharing, const PolicyLossOptions& options)
      : inputs_(inputs), teacher_ids_(teacher_ids), part_(part), sharing_(sharing), options_(options) {}

  // Runs head and loss: log_probs and entropy [n] of this rank, d_hidden [N', H]; adds to d_weight
  // where that is defined.
  void run(const ops::LogProbSpec& spec, const at::Tensor& hidden, const at::Tensor& weight,
           const at::Tensor& targets, const at::Tensor& d_hidden, const at::Tensor& d_weight);
  // On the device of the hidden states.
  const at::Tensor& log_probs() const { return log_probs_; }
  const at::Tensor& entropy() const { return entropy_; }
  // [n, TopKlRow::kCount], with top_k.
  const at::Tensor& distilled() const { return distilled_; }

 private:
  // The gradients of all rows from all log-probs of the micro-batch, zeros behind the last response token.
  void whole_gradients(const PolicyLossOptions& options, const ops::LogProbRows& rows,
                       const at::Tensor& grad_log_probs, const at::Tensor& grad_entropy) const;
  // The gradients of rows [begin, end) from their log-probs, zeros behind the last response token.
  void chunk_gradients(const losses::TokenGradients& tokens, const ops::LogProbRows& rows, int64_t begin,
                       int64_t end, const at::Tensor& grad_log_probs, const at::Tensor& grad_entropy) const;
  // The arrays of this rank's response tokens.
  losses::PolicyInputs own() const;

  losses::PolicyInputs inputs_;
  at::Tensor teacher_ids_;
  const PackedTokens& part_;
  Communicator* sharing_;
  const PolicyLossOptions& options_;
  at::Tensor log_probs_, entropy_, distilled_;
};

}  // namespace troupe
