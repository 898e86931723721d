#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace troupe::ops {

// Causal attention over packed sequences, block-diagonal: a query sees the keys of its own sequence
// at its own position and before, and with a sliding window only those with q - k < window.
// Legend: T rows, Q/K query/key heads, D head_dim.
struct AttentionSpec {
  int64_t num_heads = 0;     // Q
  int64_t num_kv_heads = 0;  // K
  int64_t head_dim = 0;      // D
  double scale = 1;
  double softcap = 0;  // s = cap * tanh(s / cap) on the scaled scores; 0 = off
  int64_t window = 0;  // 0 = full
};

// qkv [T, (Q+2K)*D] (q, k, v after rotary), offsets [S+1] of the sequences (the rows behind the last
// one belong to none and give zeros). out [T, Q*D]; lse [Q, T] float32 (log-sum-exp of the scaled
// scores) is written when defined. Work per sequence has shapes that depend on that sequence alone.
void attention_forward(const AttentionSpec& spec, const at::Tensor& qkv, const std::vector<int64_t>& offsets,
                       const at::Tensor& out, const at::Tensor& lse);

// dqkv [T, (Q+2K)*D] is fully overwritten. Recomputes the probabilities from lse.
void attention_backward(const AttentionSpec& spec, const at::Tensor& qkv, const at::Tensor& out,
                        const at::Tensor& lse, const at::Tensor& dout, const std::vector<int64_t>& offsets,
                        const at::Tensor& dqkv);

}  // namespace troupe::ops
