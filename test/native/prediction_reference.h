// A decoder and its layers for further tokens, to compare with.
#pragma once

#include <ATen/ATen.h>

#include <limits>
#include <map>
#include <string>

#include "model/model_config.h"

namespace troupe::test {

inline at::Tensor rms(const at::Tensor& x, const at::Tensor& weight) {
  return x * at::rsqrt(x.square().mean(-1, true) + 1e-6) * weight;
}

// The decoder and its prediction layers in plain LibTorch operations, in double precision, one sequence at a
// time.
class PredictionReference {
 public:
  PredictionReference(const std::map<std::string, at::Tensor>& weights, const ModelConfig& config)
      : c_(config) {
    for (const auto& [name, weight] : weights) leaves_[name] = weight.to(at::kDouble).requires_grad_();
  }

  const at::Tensor& at(const std::string& name) const { return leaves_.at(name); }
  const std::map<std::string, at::Tensor>& all() const { return leaves_; }

  // Hidden states [L, H] behind the last norm.
  at::Tensor decode(const at::Tensor& tokens) const {
    at::Tensor x = at("embed.weight").index_select(0, tokens);
    for (int64_t layer = 0; layer < c_.num_layers; ++layer) x = block(x, layer);
    return rms(x, at("norm.weight"));
  }
  // Of prediction layer k: `hidden` [L - k, H] becomes [L - k - 1, H].
  at::Tensor predict(const at::Tensor& hidden, const at::Tensor& tokens, int64_t k, bool detach) const {
    const int64_t rows = hidden.size(0) - 1;
    const std::string prefix = "layers." + std::to_string(c_.num_layers + k) + ".predict.";
    at::Tensor token = at("embed.weight").index_select(0, tokens.narrow(0, k + 1, rows));
    at::Tensor before = hidden.narrow(0, 0, rows);
    if (detach) {
      token = token.detach();
      before = before.detach();
    }
    token = rms(token, at(prefix + "token_norm.weight"));
    before = rms(before, at(prefix + "hidden_norm.weight"));
    const at::Tensor joined =
        c_.prediction->hidden_first ? at::cat({before, token}, 1) : at::cat({token, before}, 1);
    const at::Tensor x = at::matmul(joined, at(prefix + "in.weight").t());
    return rms(block(x, c_.num_layers + k), at(prefix + "norm.weight"));
  }
  const at::Tensor& head() const { return at(c_.tied_embeddings ? "embed.weight" : "head.weight"); }

 private:
  at::Tensor block(const at::Tensor& x, int64_t layer) const {
    const std::string prefix = "layers." + std::to_string(layer) + ".";
    const int64_t rows = x.size(0), dim = c_.head_dim, groups = c_.num_heads / c_.num_kv_heads;
    const at::Tensor qkv =
        at::matmul(rms(x, at(prefix + "attn_norm.weight")), at(prefix + "attn.qkv.weight").t());
    const auto heads = [&](int64_t first, int64_t count) {
      return qkv.narrow(1, first * dim, count * dim).view({rows, count, dim}).transpose(0, 1);
    };
    const at::Tensor angles =
        at::outer(at::arange(rows, at::kDouble), at::tensor(c_.rope_inv_freq, at::kDouble));
    const at::Tensor cos = at::cat({angles.cos(), angles.cos()}, 1),
                     sin = at::cat({angles.sin(), angles.sin()}, 1);
    const auto turned = [&](const at::Tensor& h) {
      const at::Tensor other = at::cat({-h.narrow(2, dim / 2, dim / 2), h.narrow(2, 0, dim / 2)}, 2);
      return h * cos + other * sin;
    };
    const at::Tensor q = turned(heads(0, c_.num_heads));
    const at::Tensor k = turned(heads(c_.num_heads, c_.num_kv_heads)).repeat_interleave(groups, 0);
    const at::Tensor v = heads(c_.num_heads + c_.num_kv_heads, c_.num_kv_heads).repeat_interleave(groups, 0);
    const at::Tensor hidden = at::ones({rows, rows}, at::kBool).triu(1);
    const at::Tensor scores = at::matmul(q, k.transpose(1, 2)) * c_.attention_scale;
    const at::Tensor weights =
        at::softmax(scores.masked_fill(hidden, -std::numeric_limits<double>::infinity()), -1);
    const at::Tensor attn = at::matmul(weights, v).transpose(0, 1).reshape({rows, c_.q_size()});
    const at::Tensor mid = x + at::matmul(attn, at(prefix + "attn.out.weight").t());
    const at::Tensor inner =
        at::matmul(rms(mid, at(prefix + "mlp_norm.weight")), at(prefix + "mlp.in.weight").t());
    const int64_t size = c_.intermediate_size;
    const at::Tensor gated = at::silu(inner.narrow(1, 0, size)) * inner.narrow(1, size, size);
    return mid + at::matmul(gated, at(prefix + "mlp.out.weight").t());
  }

  const ModelConfig& c_;
  std::map<std::string, at::Tensor> leaves_;
};

}  // namespace troupe::test
