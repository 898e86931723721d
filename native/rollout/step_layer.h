// What a layer does with the rows of a step, for the decoder's layers and those behind them.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "kernels/attention.h"
#include "model/decoder.h"

namespace troupe {

// Of a layer with attention. config: the decoder's as the rollout sees it (rollout_config()).
ops::AttentionSpec attention_spec(const ModelConfig& config, const Decoder& decoder, int64_t layer);

// Rows of a step whose output is wanted where that of the others is not.
class WantedRows {
 public:
  // rows: ascending.
  WantedRows(const Decoder& decoder, std::vector<int64_t> rows);

  const std::vector<int64_t>& rows() const { return rows_; }
  // [rows padded] int64 on the device.
  const at::Tensor& index() const { return index_; }
  // Of x [n, ...]: [rows padded to whole tiles of a step, ...]; what stands behind them is row 0 again.
  at::Tensor of(const at::Tensor& x) const { return x.index_select(0, index_); }
  // The layer's output in these rows alone, from its input x, from what its attention has written, from its
  // projection qkv, where that has gates (undefined: it has none), and from Decoder::layer_inputs().
  at::Tensor output(Decoder& decoder, int64_t layer, const at::Tensor& x, const at::Tensor& attention,
                    const at::Tensor& qkv, const at::Tensor& inputs = {}) const;

 private:
  std::vector<int64_t> rows_;
  at::Tensor index_;  // int64, on the device
};

}  // namespace troupe
