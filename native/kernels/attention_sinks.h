// Logits that join the softmax of attention and carry no value.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "kernels/attention.h"

namespace troupe::ops {

// Attention sinks (OpenAI, "gpt-oss-120b & gpt-oss-20b Model Card", 2025, arXiv:2508.10925, section 2.2; Xiao
// et al. 2023, arXiv:2309.17453): one learned logit s per query head takes part in each row's softmax as if
// it were the score of a key whose value is zero. With l the log-sum-exp of a row's scores and o what
// attention gives without sinks,
//
//   l' = log(e^l + e^s),   o' = o e^(l - l') = o sigmoid(l - s).
//
// So any kernel of attention that leaves l serves: this comes behind it. The probabilities of keys are
// e^(score - l'), so that the same kernels' backward passes, given o' and l', find the gradients of queries,
// keys and values; that of the sink is -sum over rows of e^(s - l') (do' . o').
//
// Legend: N rows, Q heads, D head_dim. spec.sinks [Q] in any floating-point dtype.

// out [N, Q*D] and lse [Q, N] float32 of the first `rows` rows, as attention left them, are made those with
// sinks; other rows stay. A row's bits depend on nothing else but the row.
void add_sinks(const AttentionSpec& spec, const at::Tensor& out, const at::Tensor& lse, int64_t rows);

// [Q] float32, from out and lse with sinks and the gradient dout [N, Q*D] of out, over the first `rows` rows
// in their order.
at::Tensor sinks_gradient(const AttentionSpec& spec, const at::Tensor& out, const at::Tensor& lse,
                          const at::Tensor& dout, int64_t rows);

}  // namespace troupe::ops
