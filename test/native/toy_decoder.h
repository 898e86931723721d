#pragma once

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "model/decoder.h"

namespace troupe::test {

inline ModelConfig toy_config() {
  ModelConfig config;
  config.family = "toy";
  config.vocab_size = 97;
  config.hidden_size = 20;
  config.num_layers = 2;
  config.num_heads = 6;
  config.num_kv_heads = 2;
  config.head_dim = 10;
  config.max_positions = 300;
  config.attention_scale = 0.4;
  config.sliding_windows = {0, 0};
  return config;
}

// A small real decoder (learned positions, grouped-query attention with window and soft cap) in plain
// loops, whose rows never see one another except through attention.
class ToyDecoder : public Decoder {
 public:
  explicit ToyDecoder(ModelConfig config = toy_config()) : config_(std::move(config)) {
    auto generator = at::make_generator<at::CPUGeneratorImpl>(uint64_t{7});
    const auto random = [&](int64_t rows, int64_t cols, double scale) {
      return at::randn({rows, cols}, generator, at::kFloat) * scale;
    };
    const int64_t hidden = config_.hidden_size;
    tokens_ = random(config_.vocab_size, hidden, 1.0);
    positions_ = random(config_.max_positions, hidden, 0.5);
    for (int64_t layer = 0; layer < config_.num_layers; ++layer) {
      qkv_.push_back(random(config_.mixer_inputs(0), hidden, 0.3));
      out_.push_back(random(hidden, config_.q_size(), 0.3));
    }
    head_ = random(config_.vocab_size, hidden, 0.4);
  }

  const ModelConfig& config() const override { return config_; }
  at::Device device() const override { return at::kCPU; }
  at::ScalarType dtype() const override { return at::kFloat; }
  int64_t decode_row_tile() const override { return 4; }

  void embed(const at::Tensor& tokens, const at::Tensor& positions, const at::Tensor& x) override {
    largest_step = std::max(largest_step, x.size(0));
    rows += x.size(0);
    x.copy_(tokens_.index_select(0, tokens.to(at::kLong)) +
            positions_.index_select(0, positions.to(at::kLong)));
  }
  void attention_inputs(int64_t layer, const at::Tensor& x, const at::Tensor&,
                        const at::Tensor& qkv) override {
    multiply(x, qkv_[static_cast<size_t>(layer)], qkv);
  }
  void block_output(int64_t layer, const at::Tensor& x, const at::Tensor& attn, const at::Tensor&,
                    const at::Tensor& out) override {
    const at::Tensor projected = at::empty_like(x);
    multiply(attn, out_[static_cast<size_t>(layer)], projected);
    out.copy_(x + at::tanh(projected));
  }
  void logits(const at::Tensor& x, const at::Tensor& logits) override { multiply(x, head_, logits); }

  // Logits [V] of the token after `tokens`, computed from scratch.
  at::Tensor next_logits(const std::vector<int32_t>& tokens) {
    const auto length = static_cast<int64_t>(tokens.size());
    const at::Tensor positions = at::arange(length, at::kInt);
    at::Tensor x = at::empty({length, config_.hidden_size});
    x.copy_(tokens_.index_select(0, at::tensor(tokens, at::kLong)) +
            positions_.index_select(0, positions.to(at::kLong)));
    const at::Tensor qkv = at::empty({length, config_.mixer_inputs(0)});
    const at::Tensor attn = at::empty({length, config_.q_size()});
    for (int64_t layer = 0; layer < config_.num_layers; ++layer) {
      attention_inputs(layer, x, positions, qkv);
      for (int64_t i = 0; i < length; ++i) attend(layer, qkv, 0, i, attn);
      block_output(layer, x, attn, {}, x);
    }
    const at::Tensor result = at::empty({1, config_.vocab_size});
    logits(x.narrow(0, length - 1, 1), result);
    return result.select(0, 0);
  }

  at::Tensor& head() { return head_; }
  int64_t largest_step = 0;  // rows, padding included
  int64_t rows = 0;          // of all steps

 private:
  static void multiply(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& out) {
    for (int64_t row = 0; row < x.size(0); ++row) {
      const float* a = x.const_data_ptr<float>() + row * x.size(1);
      for (int64_t column = 0; column < weight.size(0); ++column) {
        const float* b = weight.const_data_ptr<float>() + column * x.size(1);
        float sum = 0;
        for (int64_t i = 0; i < x.size(1); ++i) sum += a[i] * b[i];
        out.data_ptr<float>()[row * weight.size(0) + column] = sum;
      }
    }
  }

  void attend(int64_t layer, const at::Tensor& qkv, int64_t begin, int64_t query, const at::Tensor& attn) {
    const int64_t dim = config_.head_dim, groups = config_.num_heads / config_.num_kv_heads;
    const int64_t window = config_.sliding_windows[static_cast<size_t>(layer)];
    const int64_t first = window > 0 ? std::max(begin, query - window + 1) : begin;
    const float* data = qkv.const_data_ptr<float>();
    const int64_t stride = config_.mixer_inputs(0);
    for (int64_t head = 0; head < config_.num_heads; ++head) {
      const float* q = data + query * stride + head * dim;
      const int64_t key_column = (config_.num_heads + head / groups) * dim;
      const int64_t value_column = key_column + config_.num_kv_heads * dim;
      std::vector<double> weights;
      double top = -1e30, sum = 0;
      for (int64_t key = first; key <= query; ++key) {
        double score = 0;
        for (int64_t d = 0; d < dim; ++d) score += q[d] * data[key * stride + key_column + d];
        score *= config_.attention_scale;
        if (config_.attention_softcap > 0) {
          score = config_.attention_softcap * std::tanh(score / config_.attention_softcap);
        }
        weights.push_back(score);
        top = std::max(top, score);
      }
      for (double& weight : weights) sum += weight = std::exp(weight - top);
      for (int64_t d = 0; d < dim; ++d) {
        double value = 0;
        for (int64_t key = first; key <= query; ++key) {
          value += weights[static_cast<size_t>(key - first)] * data[key * stride + value_column + d];
        }
        attn.data_ptr<float>()[query * config_.q_size() + head * dim + d] = static_cast<float>(value / sum);
      }
    }
  }

  ModelConfig config_;
  at::Tensor tokens_, positions_, head_;
  std::vector<at::Tensor> qkv_, out_;
};

}  // namespace troupe::test
