// A decoder that passes all calls on to another one: for tests that change one of them, or count it.
#pragma once

#include "model/decoder.h"

namespace troupe::test {

class ForwardingDecoder : public Decoder {
 public:
  explicit ForwardingDecoder(Decoder& decoder) : d_(decoder) {}

  const ModelConfig& config() const override { return d_.config(); }
  at::Device device() const override { return d_.device(); }
  at::ScalarType dtype() const override { return d_.dtype(); }
  int64_t decode_row_tile() const override { return d_.decode_row_tile(); }
  void begin_step(int64_t positions, const at::Tensor& rows) override { d_.begin_step(positions, rows); }
  void keep_rows(const at::Tensor& index) override { d_.keep_rows(index); }
  void embed(const at::Tensor& tokens, const at::Tensor& positions, const at::Tensor& x) override {
    d_.embed(tokens, positions, x);
  }
  at::Tensor layer_inputs(const at::Tensor& tokens, const at::Tensor& x) override {
    return d_.layer_inputs(tokens, x);
  }
  void attention_inputs(int64_t layer, const at::Tensor& x, const at::Tensor& positions,
                        const at::Tensor& qkv) override {
    d_.attention_inputs(layer, x, positions, qkv);
  }
  const LinearAttention* linear_attention(int64_t layer) const override { return d_.linear_attention(layer); }
  at::Tensor gate_heads(int64_t layer, const at::Tensor& attn, const at::Tensor& qkv) const override {
    return d_.gate_heads(layer, attn, qkv);
  }
  void block_output(int64_t layer, const at::Tensor& x, const at::Tensor& attn, const at::Tensor& inputs,
                    const at::Tensor& out) override {
    d_.block_output(layer, x, attn, inputs, out);
  }
  void logits(const at::Tensor& x, const at::Tensor& logits) override { d_.logits(x, logits); }

 private:
  Decoder& d_;
};

}  // namespace troupe::test
