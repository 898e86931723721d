// What all projections have in common, and those that are one matrix.
#include "model/qkv_projection.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "base/error.h"
#include "model/latent_projection.h"
#include "model/regrouped_projection.h"

namespace troupe {

namespace {

// Rows of its weight: q, then k, then v, then gates that have a matrix of their own, or as
// linear_attention_projection() gives them. It may have the first of these alone: queries and keys, or
// queries.
class MatrixProjection : public QkvProjection {
 public:
  MatrixProjection(const ParameterStore& store, const std::string& name) : qkv_(store, name) {}

  void forward(const at::Tensor& x, const at::Tensor& qkv, const Packed& packed,
               const QkvSaved& saved) const override {
    qkv_.forward(x, own(qkv), packed.empty() ? Linear::Packed() : packed[0]);
  }

  std::unique_ptr<Backward> backward(const QkvSaved& saved, int64_t rows, int64_t row_tile) const override {
    return std::make_unique<Pass>(*this);
  }

  void enable_adapters(bool enabled) override { qkv_.adapters_enabled = enabled; }

 protected:
  class Pass : public Backward {
   public:
    explicit Pass(const MatrixProjection& projection)
        : p_(projection), packed_(projection.qkv_.pack_backward()) {}
    void tile(int64_t begin, const at::Tensor& dqkv, const at::Tensor& dx) override {
      p_.qkv_.backward_input(p_.own(dqkv), dx, packed_);
    }
    void finish(const at::Tensor& dqkv, const at::Tensor& x) override {
      p_.qkv_.accumulate_grad(p_.own(dqkv), x);
    }

   private:
    const MatrixProjection& p_;
    Linear::Packed packed_;
  };

  std::vector<const Linear*> matrices() const override { return {&qkv_}; }

 private:
  // Of the columns of a layer, those that the matrix makes.
  at::Tensor own(const at::Tensor& qkv) const { return qkv.narrow(1, 0, qkv_.out_features()); }

  Linear qkv_;
};

// A value is what its key is.
class KeyProjection final : public MatrixProjection {
 public:
  KeyProjection(const ParameterStore& store, const std::string& name, int64_t queries, int64_t keys)
      : MatrixProjection(store, name), queries_(queries), keys_(keys) {}

  void forward(const at::Tensor& x, const at::Tensor& qkv, const Packed& packed,
               const QkvSaved& saved) const override {
    MatrixProjection::forward(x, qkv, packed, saved);
    values(qkv).copy_(keys(qkv));
  }

  std::unique_ptr<Backward> backward(const QkvSaved& saved, int64_t rows, int64_t row_tile) const override {
    return std::make_unique<SumPass>(*this);
  }

 private:
  class SumPass final : public Pass {
   public:
    explicit SumPass(const KeyProjection& projection) : Pass(projection), p_(projection) {}
    // In place: finish() is given the rows of all tiles.
    void tile(int64_t begin, const at::Tensor& dqkv, const at::Tensor& dx) override {
      p_.keys(dqkv).add_(p_.values(dqkv));
      Pass::tile(begin, dqkv, dx);
    }

   private:
    const KeyProjection& p_;
  };

  at::Tensor keys(const at::Tensor& qkv) const { return qkv.narrow(1, queries_, keys_); }
  at::Tensor values(const at::Tensor& qkv) const { return qkv.narrow(1, queries_ + keys_, keys_); }

  int64_t queries_, keys_;  // columns
};

}  // namespace

QkvSaved QkvSaved::rows(int64_t begin, int64_t count) const {
  const auto part = [&](const at::Tensor& t) { return t.defined() ? t.narrow(0, begin, count) : t; };
  return {part(q_latent), part(kv_latent), q_norm.rows(begin, count), kv_norm.rows(begin, count)};
}

QkvProjection::Packed QkvProjection::pack_forward(ops::Quantization quantization, bool latents) const {
  std::vector<const Linear*> taken = matrices();
  if (latents) taken.pop_back();
  Packed packed;
  for (const Linear* matrix : taken) packed.push_back(matrix->pack_forward(quantization));
  return packed;
}

LatentHeads QkvProjection::latent_heads() const {
  fail(ErrorCode::kInternal, "[model] this layer's attention has no latents");
}

void QkvProjection::forward_latents(const at::Tensor& x, const at::Tensor& qkv, const Packed& packed,
                                    const LatentHeads& heads) const {
  fail(ErrorCode::kInternal, "[model] this layer's attention has no latents");
}

bool QkvProjection::packs() const {
  const std::vector<const Linear*> all = matrices();
  return std::all_of(all.begin(), all.end(), [](const Linear* matrix) { return ops::packs(matrix->weight); });
}

std::unique_ptr<QkvProjection> qkv_projection(const ParameterStore& store, const ModelConfig& config,
                                              const std::string& name) {
  if (config.latent) return std::make_unique<LatentProjection>(store, config, name);
  const int64_t dim = config.head_dim, queries = config.q_size();
  if (config.rope_pairs) {
    const int64_t heads = config.num_heads + config.num_kv_heads, values = heads * dim;
    const auto pairs = static_cast<int64_t>(config.rope_inv_freq.size()), turning = 2 * pairs;
    return std::make_unique<RegroupedProjection>(
        store, name + ".qkv",
        std::vector<ColumnMove>{{0, heads, dim, pairs, 2, 0, dim},
                                {1, heads, dim, pairs, 2, pairs, dim},
                                {turning, heads, dim, dim - turning, 1, turning, dim},
                                {values, 1, 0, config.kv_size(), 1, values, 0}});
  }
  if (config.values_from_keys)
    return std::make_unique<KeyProjection>(store, name + ".qkv", config.q_size(), config.kv_size());
  if (!config.attention_gate || config.gates_apart)
    return std::make_unique<MatrixProjection>(store, name + ".qkv");
  const int64_t heads = config.num_heads;
  return std::make_unique<RegroupedProjection>(
      store, name + ".qkv",
      std::vector<ColumnMove>{
          {0, heads, 2 * dim, dim}, {2 * queries, 1, 0, 2 * config.kv_size()}, {dim, heads, 2 * dim, dim}});
}

std::unique_ptr<QkvProjection> linear_attention_projection(const ParameterStore& store,
                                                           const ModelConfig& config,
                                                           const std::string& name) {
  const LinearAttentionConfig& d = *config.linear;
  if (d.matrices != DeltaMatrices::kByKeyHead) return std::make_unique<MatrixProjection>(store, name + ".in");
  const int64_t heads = d.key_heads, groups = d.value_heads / heads, values = groups * d.value_dim;
  const int64_t size = 2 * d.key_dim + 2 * values, numbers = heads * size;  // of a key head; where b begins
  return std::make_unique<RegroupedProjection>(
      store, name + ".in",
      std::vector<ColumnMove>{{0, heads, size, d.key_dim},
                              {d.key_dim, heads, size, d.key_dim},
                              {2 * d.key_dim, heads, size, values},
                              {2 * d.key_dim + values, heads, size, values},
                              {numbers, heads, 2 * groups, groups},
                              {numbers + groups, heads, 2 * groups, groups}});
}

}  // namespace troupe
