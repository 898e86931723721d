// Row operations in LibTorch operations: for tests, and where no kernel fits.
#pragma once

#include "kernels/ops.h"

// The operations of ops.h and split_norm.h in plain LibTorch: any device, float32, bfloat16 or (to check
// others against) float64. Same arguments, same in-place contracts; temporaries are allocated.
namespace troupe::ops::reference {

void norm_forward(const NormSpec& spec, const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                  const at::Tensor& y, const at::Tensor& rstd, const at::Tensor& mean);
void norm_backward(const NormSpec& spec, const at::Tensor& dy, const at::Tensor& x, const at::Tensor& weight,
                   const at::Tensor& rstd, const at::Tensor& mean, const at::Tensor& dx, bool accumulate,
                   const at::Tensor& dweight, const at::Tensor& dbias);
void qk_norm_rotary_forward(const RotarySpec& spec, const at::Tensor& qkv, const at::Tensor& positions,
                            const at::Tensor& cos, const at::Tensor& sin, const at::Tensor& q_weight,
                            const at::Tensor& k_weight, const at::Tensor& qk_rstd);
void qk_norm_rotary_backward(const RotarySpec& spec, const at::Tensor& dqkv, const at::Tensor& qkv_pre,
                             const at::Tensor& positions, const at::Tensor& cos, const at::Tensor& sin,
                             const at::Tensor& q_weight, const at::Tensor& k_weight,
                             const at::Tensor& qk_rstd, const at::Tensor& dq_weight,
                             const at::Tensor& dk_weight);
void split_norm_squares(const at::Tensor& x, const at::Tensor& sums);
void split_norm_forward(const NormSpec& spec, const at::Tensor& x, const at::Tensor& weight,
                        const at::Tensor& squares, int64_t count, const at::Tensor& y);
void split_norm_products(const NormSpec& spec, const at::Tensor& dy, const at::Tensor& x,
                         const at::Tensor& weight, const at::Tensor& sums);
void split_norm_backward(const NormSpec& spec, const at::Tensor& dy, const at::Tensor& x,
                         const at::Tensor& weight, const at::Tensor& squares, const at::Tensor& products,
                         int64_t count, const at::Tensor& dx, const at::Tensor& dweight);
void activation_forward(Activation kind, bool gated, const at::Tensor& x, const at::Tensor& out);
void activation_backward(Activation kind, bool gated, const at::Tensor& dout, const at::Tensor& x,
                         const at::Tensor& dx, const at::Tensor& out);

}  // namespace troupe::ops::reference
