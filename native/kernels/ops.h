// The row operations of a decoder layer.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

// Row-local operations of the decoder. Each works on rows [n, ...] given by the caller, allocates
// nothing, never spawns threads (the decoder runs them inside its own row tiles), and treats every
// row alike whatever its neighbours hold. dtype float32 or bfloat16 (statistics and weight
// gradients always float32). CPU tensors take the vectorised kernels of kernels/cpu, CUDA tensors those
// of kernels/cuda in a build with CUDA; elsewhere the LibTorch reference of kernels/reference.h.
//
// Legend: n rows, H hidden, Q/K query/key heads, D head_dim, I intermediate.
namespace troupe {

enum class NormKind { kRms, kLayer };
// kClampedSwiglu: of pairs of a gate and an up (gpt-oss), see activation_forward.
enum class Activation {
  kSilu,
  kGelu,
  kGeluTanh,
  kQuickGelu,
  kRelu,
  kSquaredRelu,  // relu(x)^2 (So et al. 2021, arXiv:2109.08668, section 4)
  kSigmoid,
  kClampedSwiglu,
  kXielu  // of operations of its own (kernels/xielu.h)
};

}  // namespace troupe

namespace troupe::ops {

struct NormSpec {
  NormKind kind = NormKind::kRms;
  double eps = 1e-6;
  bool unit_offset = false;  // scale by (1 + weight)
};

// y = norm(x) * weight (+ bias). Saves rstd [n] float32 (and mean [n] for LayerNorm) when defined.
// float32 inside whatever the dtype; y may alias x.
void norm_forward(const NormSpec& spec, const at::Tensor& x /*[n,H]*/, const at::Tensor& weight /*[H]*/,
                  const at::Tensor& bias /*[H] or undefined*/, const at::Tensor& y /*[n,H]*/,
                  const at::Tensor& rstd, const at::Tensor& mean);

// dx = (accumulate ? dx : 0) + gradient; dweight [H] and dbias [H] (float32) are added to.
// dweight/dbias undefined: skipped. dx may alias dy only when accumulate is false.
void norm_backward(const NormSpec& spec, const at::Tensor& dy, const at::Tensor& x, const at::Tensor& weight,
                   const at::Tensor& rstd, const at::Tensor& mean, const at::Tensor& dx, bool accumulate,
                   const at::Tensor& dweight, const at::Tensor& dbias);

// cos/sin tables [max_positions, R/2] float32 are made once by the decoder (rotary halves layout of the first
// R of a head: x1 = x[:R/2], x2 = x[R/2:R]; y1 = x1 cos - x2 sin, y2 = x2 cos + x1 sin; the rest stays).
struct RotarySpec {
  int64_t num_heads = 0;     // Q
  int64_t num_kv_heads = 0;  // K
  int64_t head_dim = 0;      // D
  int64_t rotary_dim = 0;    // R, even; 0: without rotary positions

  bool qk_norm = false;
  double norm_eps = 1e-6;
  bool norm_unit_offset = false;
};

// In place on qkv [n, (Q+2K)*D]: q/k RMSNorm over D (when on; saves qk_rstd [n, Q+K] when defined),
// then RoPE by positions [n] int32. The v part is left as it is.
void qk_norm_rotary_forward(const RotarySpec& spec, const at::Tensor& qkv, const at::Tensor& positions,
                            const at::Tensor& cos, const at::Tensor& sin, const at::Tensor& q_weight /*[D]*/,
                            const at::Tensor& k_weight /*[D]*/, const at::Tensor& qk_rstd);

// In place on dqkv. `qkv_pre` is what the forward was given, before it changed it in place: needed when
// qk_norm is on, undefined otherwise. dq_weight, dk_weight [D] float32 are added to.
void qk_norm_rotary_backward(const RotarySpec& spec, const at::Tensor& dqkv, const at::Tensor& qkv_pre,
                             const at::Tensor& positions, const at::Tensor& cos, const at::Tensor& sin,
                             const at::Tensor& q_weight, const at::Tensor& k_weight,
                             const at::Tensor& qk_rstd, const at::Tensor& dq_weight,
                             const at::Tensor& dk_weight);

// out [n, I] = act(x[:, :I]) * x[:, I:2I] when gated (x [n, 2I]), else act(x) (x [n, I]). kClampedSwiglu is
// gated, and its gates are the even columns: g sigmoid(1.702 g) (u + 1) with g = min(x[:, 2i], 7) and
// u = x[:, 2i + 1] within [-7, 7] (arXiv:2508.10925, section 2.1).
void activation_forward(Activation kind, bool gated, const at::Tensor& x, const at::Tensor& out);

// dx from dout and x; additionally recomputes out (the forward's result) when defined. dx may alias x.
void activation_backward(Activation kind, bool gated, const at::Tensor& dout, const at::Tensor& x,
                         const at::Tensor& dx, const at::Tensor& out);

// target [m, H] row index[i] += rows [n, H] row i, for every i in turn: an index that comes several times
// adds in the same order in every run, on every device. index [n] int32 or int64. Unlike the others it may
// allocate.
void add_rows(const at::Tensor& target, const at::Tensor& index, const at::Tensor& rows);

}  // namespace troupe::ops
