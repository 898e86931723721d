// Log-probs from hidden states without keeping all logits: forward and backward.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>

#include "kernels/vocabulary_shard.h"

// The one path from hidden states to per-token log-probs, in inference and in training. With
// z = softcap(hidden weight^T) / temperature:
//   log_prob = z[target] - logsumexp(z),  entropy = -sum p log p,  p = softmax(z).
// [N, V] never exists: the forward keeps one block of logits per thread; the backward keeps the
// logits of one chunk of rows (kLogitsBudget bytes), so that nothing is computed twice within it.
//
// With a shard the weight and d_weight are the rows of the vocabulary that this rank holds, and every rank of
// the group calls with the same hidden states, targets and gradients; every rank gets the same outputs, bit
// by bit. What a rank keeps shrinks with its share: a chunk of logits [n, V / ranks]. Collectives:
// one of 80 bytes for the inputs in each call, one of 40 bytes per row for the sums over the vocabulary (the
// forward: one for all rows; the backward: one per chunk), and in the backward one all-reduce per chunk of
// 4 bytes per element of d_hidden. Further tokens add per chunk two of 4 K bytes per row for the likeliest,
// and in the backward one more for the logits of those that are given.
//
// Legend: N rows (a multiple of kRowTile on a CPU: every GEMM then has the same shape, and a row's
// result does not depend on N or on its neighbours), H hidden, V vocabulary.
namespace troupe::ops {

// Entries of a row of logits whose sums are taken together on a CPU.
constexpr int64_t kVocabBlock = 768;

struct LogProbSpec {
  double temperature = 1;
  double softcap = 0;                      // 0 = off
  const VocabularyShard* shard = nullptr;  // null: weight is the whole vocabulary
  // With a shard: d_hidden is the sum over the ranks; false: this rank's part of it, for a caller that sums
  // in another way (a reduce-scatter of sequence parallelism). Give it d_hidden in float32 then.
  bool sum_hidden_gradient = true;

  // The id of the weight's first row, and the rows of any rank at most.
  int64_t first_id() const { return shard != nullptr ? shard->begin() : 0; }
  int64_t most_rows(const at::Tensor& weight) const {
    return shard != nullptr ? shard->most_rows() : weight.size(0);
  }
  void check(const at::Tensor& hidden, const at::Tensor& weight, const at::Tensor& targets,
             const char* phase) const {
    if (shard != nullptr) shard->check(hidden, weight, targets, phase);
  }
};

// K further tokens of every row [N, K], int32 ids of the whole vocabulary. Their log-probs, float32, are
// z[id] - lse.
struct GivenTokens {
  at::Tensor ids;
  at::Tensor log_probs;  // written before RowGradients is called for the rows
  at::Tensor among_top;  // bool, written then, too: whether no more than K - 1 tokens are likelier
  at::Tensor gradients;  // d loss / d log_probs, which RowGradients fills for its rows
};
struct TopTokens {
  at::Tensor ids;  // the likeliest, the likeliest first
  at::Tensor log_probs;
};

// Outputs, float32 [N]; undefined ones are not wanted (lse and log_probs always are).
struct LogProbRows {
  at::Tensor log_probs;
  at::Tensor lse;  // log-sum-exp of z
  at::Tensor entropy;
  at::Tensor sum_pi_squared;  // sum of p^2 = exp(lse(2z) - 2 lse(z))
  TopTokens top = {};         // of the forward
  GivenTokens given = {};     // of the backward
};

// Throws what VocabularyShard::check does.
void linear_log_prob_forward(const LogProbSpec& spec, const at::Tensor& hidden /*[N,H]*/,
                             const at::Tensor& weight /*[V,H]*/, const at::Tensor& targets /*[N] int32*/,
                             const LogProbRows& out);

// Called once per chunk of rows [begin, end), after rows' log_probs (and entropy) have been written,
// with the bits of the forward: fills the loss gradients of these rows.
using RowGradients = std::function<void(int64_t begin, int64_t end, const at::Tensor& grad_log_probs,
                                        const at::Tensor& grad_entropy)>;

// Computes the forward into `rows`, asks `gradients` for d loss / d log_prob (and, when
// entropy_gradient, d loss / d entropy, which needs rows.entropy), writes d_hidden [N, H] and adds to
// d_weight [V, H] float32, unless that is undefined.
void linear_log_prob_backward(const LogProbSpec& spec, const at::Tensor& hidden, const at::Tensor& weight,
                              const at::Tensor& targets, const LogProbRows& rows, bool entropy_gradient,
                              const RowGradients& gradients, const at::Tensor& d_hidden,
                              const at::Tensor& d_weight);

// Rows [begin, begin + n) of the outputs from kernels::RowSums [parts, n, 5] on a CPU, parts in their order.
void write_rows(const at::Tensor& parts, int64_t begin, const LogProbRows& out);

// The same in plain LibTorch operations, any device and floating-point dtype.
void linear_log_prob_forward_reference(const LogProbSpec& spec, const at::Tensor& hidden,
                                       const at::Tensor& weight, const at::Tensor& targets,
                                       const LogProbRows& out);
void linear_log_prob_backward_reference(const LogProbSpec& spec, const at::Tensor& hidden,
                                        const at::Tensor& weight, const at::Tensor& targets,
                                        const LogProbRows& rows, bool entropy_gradient,
                                        const RowGradients& gradients, const at::Tensor& d_hidden,
                                        const at::Tensor& d_weight);

}  // namespace troupe::ops
