#pragma once

#include <cstdint>

#include "model/model_config.h"

namespace troupe::test {

constexpr int64_t kHidden = 24;

// An MLP of experts alone.
struct Shape {
  int64_t tokens, experts, top_k, intermediate;
  bool normalize;
  int64_t shared = 0;
  bool gate = true;  // of the shared expert
  RouterScore score = RouterScore::kSoftmax;
  int64_t groups = 1, top_groups = 1;
  double scale = 1;
  bool biases = false;  // and the clamped SwiGLU of pairs, as in gpt-oss
  int64_t group_best = 2;
  bool wide = false;

  bool sigmoid() const { return score == RouterScore::kSigmoid; }
};

inline ModelConfig config_of(const Shape& shape) {
  ModelConfig c;
  c.family = "qwen3_moe";
  c.vocab_size = 8;
  c.hidden_size = kHidden;
  c.num_layers = 1;
  c.num_heads = 2;
  c.num_kv_heads = 2;
  c.head_dim = 4;
  c.intermediate_size = 8;
  c.max_positions = 8;
  c.sliding_windows = {0};
  c.rope_inv_freq = {1, 0.5};
  c.moe = MoeConfig{shape.experts, shape.top_k,  shape.intermediate, shape.normalize, shape.shared,
                    shape.gate,    shape.score,  shape.sigmoid(),    shape.groups,    shape.top_groups,
                    shape.scale,   shape.biases, shape.group_best,   shape.wide};
  c.moe_layers = {true};
  if (shape.biases) c.activation = Activation::kClampedSwiglu;
  return c;
}

}  // namespace troupe::test
