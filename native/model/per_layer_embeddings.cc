// The product of embeddings, its norm, and the words beside it.
#include "model/per_layer_embeddings.h"

#include <ATen/ATen.h>

#include <cmath>
#include <numbers>

#include "base/parallel.h"

namespace troupe {

namespace {

constexpr double kHalf = 1 / std::numbers::sqrt2;  // of the sum of two parts

at::Tensor rows_of(const at::Tensor& t, int64_t begin, int64_t end) {
  return t.narrow(0, begin, end - begin);
}

}  // namespace

PerLayerEmbeddings::PerLayerEmbeddings(const ParameterStore& store, const ModelConfig& config,
                                       at::ScalarType dtype)
    : table_(store.at("per_layer.embed.weight").compute),
      table_grad_(store.at("per_layer.embed.weight").grad),
      table_scale_(at::scalar_tensor(std::sqrt(static_cast<double>(config.per_layer_size)), at::kDouble)
                       .to(dtype)
                       .item<double>()),
      product_scale_(1 / std::sqrt(static_cast<double>(config.hidden_size))),
      table_group_(store.at("per_layer.embed.weight").group),
      product_group_(store.at("per_layer.in.weight").group),
      in_(store, "per_layer.in"),
      norm_(store, config, "per_layer.norm") {}

at::Tensor PerLayerEmbeddings::forward(const at::Tensor& words, const at::Tensor& embedded, int64_t row_tile,
                                       const Linear::Packed& packed, PerLayerSaved* saved) const {
  const int64_t total = words.size(0), size = norm_.weight.size(0), layers = words.size(1) / size;
  if (saved != nullptr) {
    saved->embedded = embedded.clone();
    saved->product = at::empty_like(words);
    saved->rstd = at::empty({total * layers}, words.options().dtype(at::kFloat));
  }
  for_each_row_tile(
      total, row_tile, words.device(),
      [&](int64_t begin, int64_t end) {
        const at::Tensor product = saved != nullptr ? rows_of(saved->product, begin, end)
                                                    : at::empty_like(rows_of(words, begin, end));
        in_.forward(rows_of(embedded, begin, end), product, packed);
        product.mul_(product_scale_);
        const at::Tensor by_layer = product.view({-1, size}), normed = at::empty_like(by_layer);
        ops::norm_forward(
            norm_.spec, by_layer, norm_.weight, {}, normed,
            saved != nullptr ? rows_of(saved->rstd, begin * layers, end * layers) : at::Tensor(), {});
        rows_of(words, begin, end).mul_(table_scale_).add_(normed.view_as(product)).mul_(kHalf);
      },
      packed.packed());
  return words;
}

void PerLayerEmbeddings::backward(const at::Tensor& d, const PerLayerSaved& saved,
                                  const at::Tensor& dx) const {
  const int64_t total = d.size(0), size = norm_.weight.size(0), layers = d.size(1) / size;
  const Linear::Packed weight = in_.pack_backward();
  const at::Tensor d_product = at::empty_like(d);
  NormGradient gradient(norm_, total, kRowTile);
  for_each_row_tile(total, kRowTile, d.device(), [&](int64_t begin, int64_t end) {
    const at::Tensor sum = rows_of(d, begin, end).mul_(kHalf), product = rows_of(d_product, begin, end);
    gradient.backward(begin, sum.view({-1, size}), rows_of(saved.product, begin, end).view({-1, size}),
                      {rows_of(saved.rstd, begin * layers, end * layers), {}}, product.view({-1, size}),
                      false);
    product.mul_(product_scale_);
    const at::Tensor d_row = at::empty_like(rows_of(dx, begin, end));
    in_.backward_input(product, d_row, weight);
    rows_of(dx, begin, end).add_(d_row);
    sum.mul_(table_scale_);
  });
  gradient.finish();
  in_.accumulate_grad(d_product, saved.embedded);
}

}  // namespace troupe
