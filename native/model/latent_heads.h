// Attention over the latents of multi-head latent attention: what its queries take, and where values come
// from.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "model/layers.h"

namespace troupe {

// The matrix that makes keys and values of every head out of a latent, head by head, for attention that reads
// latents in their place (DeepSeek-V2, arXiv:2405.04434, section 2.1.2, where it is "absorbed"):
//
//   (k, v) = W_kvb c, so of a head  q . k = (W_k^T q) . c  and  sum_i p_i v_i = W_v (sum_i p_i c_i)
//
// with c behind its norm. A token then is key_rank numbers, and the R that turn, for all heads together. In
// exact arithmetic attention gives the same; rounding differs, since sums are taken in another order.
//
// Legend: n rows, Q heads of this rank, S numbers of a head's queries and keys that do not turn, V of values.
class LatentHeads {
 public:
  // expand: W_kvb [Q * (S + V), key_rank]. Of a CPU whose products are our own the parts are packed here;
  // otherwise it is read as it lies, and must stay.
  LatentHeads(const Linear& expand, const LatentConfig& latent, int64_t heads);

  // to [n, Q, key_rank] = W_k^T of queries [n, Q, S]. Unit column strides.
  void absorb(const at::Tensor& queries, const at::Tensor& to) const;
  // [n, Q * V] = W_v of what attention over latents gives, [n, Q * (R + key_rank)].
  at::Tensor values(const at::Tensor& attention) const;

 private:
  // One head's rows of the matrix, packed.
  struct Part {
    Linear linear;
    Linear::Packed packed;
  };
  // Rows [begin, begin + count) of every head of a [Q * (S + V), cols], as [Q, count, cols].
  at::Tensor rows_of_heads(const at::Tensor& matrix, int64_t begin, int64_t count) const;
  void values_of(const at::Tensor& sums, const at::Tensor& to) const;

  LatentConfig latent_;
  int64_t heads_;
  Linear expand_;
  std::vector<Part> keys_, values_;  // by head; none where the matrix is read as it lies
};

}  // namespace troupe
