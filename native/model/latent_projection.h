// Multi-head latent attention, expanded to heads, or over its latents.
#pragma once

#include "model/qkv_projection.h"

namespace troupe {

// Multi-head latent attention (DeepSeek-V2, arXiv:2405.04434, section 2.1; DeepSeek-V3, arXiv:2412.19437,
// section 2.1.1) in the form in which it is trained: every head's own queries, keys and values.
//
//   q = W_q norm(W_qa x)  or  W_q x        [Q, S + R]: still, then turning
//   (c, r) = W_kva x                       [key_rank], [R]
//   (k, v) = W_kvb norm(c)                 [Q, S + V]
//   key of a head = (k, r), r being the same for all heads
//
// What it gives are heads of D numbers for attention as it is: queries and keys (turning, still), since the
// order of a product's summands is free and rotary turns the first of a head, and values with zeros behind
// them. Of the part that turns, pairs that lie side by side in the checkpoint (interleaved) are laid apart.
//
// Or, for a rollout that keeps latents (over_latents() in model/model_config.h): [turning, W_k^T still] as
// queries of R + key_rank numbers, and one key (r, norm(c)) for all of them, in which the values are
// (model/latent_heads.h).
//
// Ranks that share the heads have all of W_qa, W_kva and the norms, and find the part of their gradients that
// comes from their own heads.
class LatentProjection final : public QkvProjection {
 public:
  // config: with the heads of this rank.
  LatentProjection(const ParameterStore& store, const ModelConfig& config, const std::string& name);

  void enable_adapters(bool enabled) override;
  QkvSaved make_saved(int64_t rows, const at::TensorOptions& options) const override;
  void forward(const at::Tensor& x, const at::Tensor& qkv, const Packed& packed,
               const QkvSaved& saved) const override;
  LatentHeads latent_heads() const override;
  void forward_latents(const at::Tensor& x, const at::Tensor& qkv, const Packed& packed,
                       const LatentHeads& heads) const override;
  std::unique_ptr<Backward> backward(const QkvSaved& saved, int64_t rows, int64_t row_tile) const override;

 protected:
  std::vector<const Linear*> matrices() const override;

 private:
  class Pass;

  // [..., R] as [..., 2, R/2]: what turns together, in the checkpoint's order.
  at::Tensor pairs(const at::Tensor& turning) const;
  bool has_query_latent() const { return q_a_.weight.defined(); }
  // Where its packed form is among all, those of matrices(): of q_, and then of kv_a_ and kv_b_.
  enum Matrix { kQuery, kLatent, kExpand };
  const Linear::Packed& packed_of(const Packed& packed, Matrix matrix) const;
  // Queries [n, Q, S + R] of x [n, H].
  at::Tensor queries(const at::Tensor& x, const Packed& packed, const QkvSaved& saved) const;
  // (c, r) [n, key_rank + R] of x, and c behind its norm.
  struct Latents {
    at::Tensor both, normed;
  };
  Latents latents(const at::Tensor& x, const Packed& packed, const QkvSaved& saved) const;

  LatentConfig latent_;
  int64_t heads_, head_dim_;
  Linear q_a_, q_, kv_a_, kv_b_;  // the first may have no weight
  Norm q_norm_, kv_norm_;
};

}  // namespace troupe
