// Some tokens of each row of logits: those of given ids, and the likeliest ones.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "kernels/linear_log_prob.h"

// In LibTorch operations, any device. z [n, V / ranks] are the logits of n rows in this rank's part of the
// vocabulary, before or after the softcap and the temperature, which keep their order.
namespace troupe::ops {

// Where ids [n, K] lie among the `columns` of a rank whose first id is `first`.
struct TokenColumns {
  at::Tensor here;   // [n, K] bool
  at::Tensor index;  // [n, K] int64, of any column where they are elsewhere

  TokenColumns(const at::Tensor& ids, int64_t first, int64_t columns);
};

// z of the ids, [n, K].
at::Tensor token_logits(const LogProbSpec& spec, const at::Tensor& z, const at::Tensor& ids,
                        const char* phase);
// The k largest logits of each row and their ids, the largest first: [n, k], ids int32. Of equal logits any.
struct TopLogits {
  at::Tensor logits, ids;
};
TopLogits top_logits(const LogProbSpec& spec, const at::Tensor& z, int64_t k, const char* phase);

// Rows [begin, begin + n) of `out.top` and `out.given` from their logits z and out.lse; `shown`: what is done
// to logits [n, k] that z has before the softcap and the temperature.
void write_top_tokens(const LogProbSpec& spec, const at::Tensor& z, int64_t begin, const LogProbRows& out,
                      at::Tensor (*shown)(const LogProbSpec& spec, const at::Tensor& raw) = nullptr);
void write_given_tokens(const LogProbSpec& spec, const at::Tensor& z, int64_t begin, const LogProbRows& out,
                        at::Tensor (*shown)(const LogProbSpec& spec, const at::Tensor& raw) = nullptr);

}  // namespace troupe::ops
