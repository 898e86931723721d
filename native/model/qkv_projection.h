// What makes the queries, keys and values of a layer from its normed input.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "model/latent_heads.h"
#include "model/layers.h"

namespace troupe {

// What the backward pass of a projection reads beside its input; undefined where that is all.
struct QkvSaved {
  at::Tensor q_latent, kv_latent;  // [T, query_rank], [T, key_rank + R]: before their norms
  NormStats q_norm, kv_norm;

  QkvSaved rows(int64_t begin, int64_t count) const;
};

// From rows x [n, H] to queries, keys and values side by side [n, (Q+2K)*D], before norms and rotary. Rows
// are independent of each other; forward() and Backward::tile() are called on row tiles.
class QkvProjection {
 public:
  // Of its matrices, in their order; none: a few rows read them as they lie.
  using Packed = std::vector<Linear::Packed>;

  virtual ~QkvProjection() = default;

  // latents: for forward_latents(), which takes no matrix that makes heads out of latents.
  Packed pack_forward(ops::Quantization quantization = ops::Quantization::kNone, bool latents = false) const;
  bool packs() const;
  virtual void enable_adapters(bool enabled) = 0;

  // Room for what a forward of `rows` rows saves.
  virtual QkvSaved make_saved(int64_t rows, const at::TensorOptions& options) const { return {}; }
  // saved: of these rows.
  virtual void forward(const at::Tensor& x, const at::Tensor& qkv, const Packed& packed,
                       const QkvSaved& saved) const = 0;

  // Of latent attention alone, for a rollout that keeps latents: qkv [n, (Q+1)*D] of over_latents() in the
  // place of what forward() gives.
  virtual LatentHeads latent_heads() const;
  virtual void forward_latents(const at::Tensor& x, const at::Tensor& qkv, const Packed& packed,
                               const LatentHeads& heads) const;

  // A backward pass over all rows.
  class Backward {
   public:
    virtual ~Backward() = default;
    // dx [n, H], overwritten, for the tile that begins at row `begin`.
    virtual void tile(int64_t begin, const at::Tensor& dqkv, const at::Tensor& dx) = 0;
    // Adds to the gradients of what is trained: dqkv and x of all rows.
    virtual void finish(const at::Tensor& dqkv, const at::Tensor& x) = 0;
  };
  // The projection and `saved` must outlive it.
  virtual std::unique_ptr<Backward> backward(const QkvSaved& saved, int64_t rows, int64_t row_tile) const = 0;

 protected:
  // Of latent attention the last one makes heads out of latents.
  virtual std::vector<const Linear*> matrices() const = 0;
};

// That of a layer of attention under `name`, of a model with the heads of this rank, as the layer sees it
// (ModelConfig::at_layer): one matrix, of queries alone where keys are shared and with values that are copies
// of keys where the model has that, one whose heads have gates, which then come behind the values [n,
// (2Q+2K)*D], one whose heads turn in pairs side by side (rope_pairs), which are laid apart, or latent
// attention.
std::unique_ptr<QkvProjection> qkv_projection(const ParameterStore& store, const ModelConfig& config,
                                              const std::string& name);
// That of a layer of linear attention, with the columns that its kind says (model/linear_attention.h).
std::unique_ptr<QkvProjection> linear_attention_projection(const ParameterStore& store,
                                                           const ModelConfig& config,
                                                           const std::string& name);

inline bool all_packed(const QkvProjection::Packed& packed) {
  for (const Linear::Packed& linear : packed)
    if (!linear.packed()) return false;
  return !packed.empty();
}

}  // namespace troupe
