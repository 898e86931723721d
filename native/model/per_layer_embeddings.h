// What every layer gets of a row's token, beside the row.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "model/layers.h"

namespace troupe {

// Of T rows, what the backward pass needs.
struct PerLayerSaved {
  at::Tensor embedded;  // [T, H]
  at::Tensor product;   // [T, L*P] input of the norm
  at::Tensor rstd;      // [T * L] float32
};

// For each of L layers P numbers of a row: (norm(W x / sqrt(H)) + sqrt(P) words) / sqrt(2), of the embedding
// x of its token and of what a table has for the token; the norm is over the numbers of a layer (per-layer
// embeddings of Gemma 4: Gemma4TextModel of transformers). TokenGate is what takes them. Ranks that share
// matrices have all of W, and the rows of the table for the words that they have of the embeddings.
class PerLayerEmbeddings {
 public:
  PerLayerEmbeddings(const ParameterStore& store, const ModelConfig& config, at::ScalarType dtype);

  // [V, L*P], or this rank's words of it; the gradient is undefined where it is not trained.
  const at::Tensor& table() const { return table_; }
  const at::Tensor& table_grad() const { return table_grad_; }
  // Of the store: of the table, and of what multiplies.
  size_t table_group() const { return table_group_; }
  size_t product_group() const { return product_group_; }
  bool trained() const { return table_grad_.defined(); }
  Linear::Packed pack() const { return in_.pack_forward(); }

  // words [n, L*P]: rows of the table as they are; embedded [n, H]. Returned in the place of `words`. saved
  // may be null.
  at::Tensor forward(const at::Tensor& words, const at::Tensor& embedded, int64_t row_tile,
                     const Linear::Packed& packed, PerLayerSaved* saved) const;
  // d [T, L*P], by what forward() gave, becomes the gradient by words. Adds to dx [T, H], the gradient by
  // embedded, and to those of matrix and norm.
  void backward(const at::Tensor& d, const PerLayerSaved& saved, const at::Tensor& dx) const;

 private:
  at::Tensor table_, table_grad_;
  double table_scale_, product_scale_;
  size_t table_group_, product_group_;
  Linear in_;
  Norm norm_;
};

}  // namespace troupe
