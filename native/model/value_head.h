// The head of a value model.
#pragma once

#include <ATen/core/Tensor.h>

namespace troupe {

// [n] -> [rows], zeros behind.
at::Tensor pad_rows(const at::Tensor& values, int64_t rows);

// values [N] float32 = hidden [N, H] . weight [1, H] + bias [1] (may be undefined). Each row's sum
// has its own fixed order.
at::Tensor value_head_forward(const at::Tensor& hidden, const at::Tensor& weight, const at::Tensor& bias);

// d_hidden [N, H]; adds to d_weight [1, H] and d_bias [1] (float32).
at::Tensor value_head_backward(const at::Tensor& d_values, const at::Tensor& hidden, const at::Tensor& weight,
                               const at::Tensor& d_weight, const at::Tensor& d_bias);

}  // namespace troupe
