// Wanted rows, and how a layer attends.
#include "rollout/step_layer.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <utility>

#include "base/parallel.h"
#include "base/upload.h"

namespace troupe {

ops::AttentionSpec attention_spec(const ModelConfig& config, const Decoder& decoder, int64_t layer) {
  const HeadShape heads = config.heads(layer);
  ops::AttentionSpec spec{.num_heads = config.num_heads,
                          .num_kv_heads = heads.num_kv_heads,
                          .head_dim = heads.head_dim,
                          .scale = config.attention_scale,
                          .softcap = config.attention_softcap};
  spec.window = config.sliding_window(layer);
  spec.sinks = decoder.attention_sinks(layer);
  return spec;
}

WantedRows::WantedRows(const Decoder& decoder, std::vector<int64_t> rows) : rows_(std::move(rows)) {
  const at::Tensor index =
      at::zeros({round_up(static_cast<int64_t>(rows_.size()), decoder.decode_row_tile())}, at::kLong);
  std::copy(rows_.begin(), rows_.end(), index.mutable_data_ptr<int64_t>());
  index_ = upload(index, decoder.device());
}

at::Tensor WantedRows::output(Decoder& decoder, int64_t layer, const at::Tensor& x,
                              const at::Tensor& attention, const at::Tensor& qkv,
                              const at::Tensor& inputs) const {
  const at::Tensor out = of(x);
  if (rows_.empty()) return out;
  const at::Tensor attended = of(attention);
  decoder.block_output(layer, out, qkv.defined() ? decoder.gate_heads(layer, attended, of(qkv)) : attended,
                       inputs.defined() ? of(inputs) : inputs, out);
  return out;
}

}  // namespace troupe
