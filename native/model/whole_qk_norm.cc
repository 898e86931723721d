// Norms over all heads of queries and of keys.
#include "model/whole_qk_norm.h"

#include <ATen/ATen.h>

#include "kernels/split_norm.h"

namespace troupe {

WholeQkNorm::WholeQkNorm(const ParameterStore& store, const ModelConfig& own, const DecoderPart& part,
                         const std::string& name)
    : spec_{NormKind::kRms, own.norm_eps, own.norm_unit_offset},
      q_(side(store, name + ".q_norm.weight", 0, part.tp, 0)),
      k_(side(store, name + ".k_norm.weight", own.q_size(), part.tp, 1)) {}

WholeQkNorm::Side WholeQkNorm::side(const ParameterStore& store, const std::string& name, int64_t first,
                                    int64_t ranks, int64_t index) {
  const Parameter& weight = store.at(name);
  const int64_t columns = weight.compute.size(0);
  return {weight.compute, weight.grad, first, columns, columns * ranks, index};
}

void WholeQkNorm::squares(const at::Tensor& qkv, const at::Tensor& sums) const {
  for (const Side* s : {&q_, &k_}) ops::split_norm_squares(s->of(qkv), sums.select(0, s->index));
}

void WholeQkNorm::forward(const at::Tensor& qkv, const at::Tensor& squares) const {
  for (const Side* s : {&q_, &k_}) {
    const at::Tensor rows = s->of(qkv);
    ops::split_norm_forward(spec_, rows, s->weight, squares.select(0, s->index), s->count, rows);
  }
}

void WholeQkNorm::products(const at::Tensor& dqkv, const at::Tensor& qkv_pre, const at::Tensor& sums) const {
  for (const Side* s : {&q_, &k_})
    ops::split_norm_products(spec_, s->of(dqkv), s->of(qkv_pre), s->weight, sums.select(0, s->index));
}

void WholeQkNorm::backward(const at::Tensor& dqkv, const at::Tensor& qkv_pre, const at::Tensor& squares,
                           const at::Tensor& products, const at::Tensor& dweights) const {
  for (const Side* s : {&q_, &k_}) {
    const at::Tensor rows = s->of(dqkv);
    ops::split_norm_backward(spec_, rows, s->of(qkv_pre), s->weight, squares.select(0, s->index),
                             products.select(0, s->index), s->count, rows,
                             dweights.narrow(0, s->first, s->columns));
  }
}

void WholeQkNorm::accumulate(const at::Tensor& dweights) const {
  for (const Side* s : {&q_, &k_})
    if (s->grad.defined()) s->grad.add_(dweights.narrow(0, s->first, s->columns));
}

}  // namespace troupe
