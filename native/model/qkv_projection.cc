// What all projections have in common, and the one that is one matrix.
#include "model/qkv_projection.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "model/latent_projection.h"

namespace troupe {

namespace {

// Rows of its weight: q, then k, then v.
class MatrixProjection final : public QkvProjection {
 public:
  MatrixProjection(const ParameterStore& store, const std::string& name) : qkv_(store, name + ".qkv") {}

  void forward(const at::Tensor& x, const at::Tensor& qkv, const Packed& packed,
               const QkvSaved& saved) const override {
    qkv_.forward(x, qkv, packed.empty() ? Linear::Packed() : packed[0]);
  }

  std::unique_ptr<Backward> backward(const QkvSaved& saved, int64_t rows, int64_t row_tile) const override {
    return std::make_unique<Pass>(qkv_);
  }

  void enable_adapters(bool enabled) override { qkv_.adapters_enabled = enabled; }

 protected:
  std::vector<const Linear*> matrices() const override { return {&qkv_}; }

 private:
  class Pass final : public Backward {
   public:
    explicit Pass(const Linear& qkv) : qkv_(qkv), packed_(qkv.pack_backward()) {}
    void tile(int64_t begin, const at::Tensor& dqkv, const at::Tensor& dx) override {
      qkv_.backward_input(dqkv, dx, packed_);
    }
    void finish(const at::Tensor& dqkv, const at::Tensor& x) override { qkv_.accumulate_grad(dqkv, x); }

   private:
    const Linear& qkv_;
    Linear::Packed packed_;
  };

  Linear qkv_;
};

}  // namespace

QkvSaved QkvSaved::rows(int64_t begin, int64_t count) const {
  const auto part = [&](const at::Tensor& t) { return t.defined() ? t.narrow(0, begin, count) : t; };
  return {part(q_latent), part(kv_latent), q_norm.rows(begin, count), kv_norm.rows(begin, count)};
}

QkvProjection::Packed QkvProjection::pack_forward(ops::Quantization quantization) const {
  Packed packed;
  for (const Linear* matrix : matrices()) packed.push_back(matrix->pack_forward(quantization));
  return packed;
}

bool QkvProjection::packs() const {
  const std::vector<const Linear*> all = matrices();
  return std::all_of(all.begin(), all.end(), [](const Linear* matrix) { return ops::packs(matrix->weight); });
}

std::unique_ptr<QkvProjection> qkv_projection(const ParameterStore& store, const ModelConfig& config,
                                              const std::string& name) {
  if (config.latent) return std::make_unique<LatentProjection>(store, config, name);
  return std::make_unique<MatrixProjection>(store, name);
}

}  // namespace troupe
