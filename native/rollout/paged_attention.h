// Attention of the rows of a step to the keys and values in pages.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "kernels/attention.h"
#include "rollout/kv_cache.h"
#include "rollout/step_rows.h"

namespace troupe {

// One layer: stores the keys and values of all rows, then every row attends to the keys of its sequence at
// its own position and before, within the window. qkv [n, (Q+2K)*D] or wider, and
// out [n, Q*D], n >= rows; only the rows are written. `wanted`, where it is given: parts of the rows' runs,
// and of all others `out` need not be written.
//
// A row's result depends on its own sequence and position alone: not on which other rows are in the step, on
// how its prompt was cut into steps, or on the number of threads. On a CPU whose products are our own
// (kernels/gemm.h) it has the bits of ops::attention_forward.
void paged_attention(const ops::AttentionSpec& spec, const KvCache& cache, int64_t layer,
                     const StepRows& rows, const at::Tensor& qkv, const at::Tensor& out,
                     const std::vector<RowRun>* wanted = nullptr);

// The same in LibTorch operations: for GPUs in builds without CUDA and heads wider than its kernel takes, and
// as the truth in tests.
void paged_attention_reference(const ops::AttentionSpec& spec, const KvCache& cache, int64_t layer,
                               const StepRows& rows, const at::Tensor& qkv, const at::Tensor& out);

}  // namespace troupe
