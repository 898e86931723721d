// One AdamW step over flat buffers, and the norm that clips it.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "optim/schedule.h"

// AdamW over flat buffers in float32 arithmetic (Loshchilov & Hutter 2019, arXiv:1711.05101;
// torch.optim.AdamW's: decoupled decay first, then the bias-corrected step).
namespace troupe {

struct AdamWOptions {
  double lr = 1e-6;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 0.01;
  double grad_clip = 1.0;  // global L2 norm
  Schedule schedule;
};

// [] float64 where `flat` lies: the host need not wait for it. Accumulated in double in a fixed order;
// NaN/inf propagate.
at::Tensor sum_of_squares(const at::Tensor& flat);

// One flat buffer (a shard, a parameter group).
struct AdamWBuffers {
  at::Tensor param;       // [N] float32 or bfloat16
  at::Tensor grad;        // [N] float32, already summed over ranks
  at::Tensor exp_avg;     // [N] in the dtype of param
  at::Tensor exp_avg_sq;  // [N] in the dtype of param
  at::Tensor compute;     // [N] bfloat16 copy to refresh, or undefined; of a bfloat16 param there is none
};

// Where the buffers lie in one that several ranks share: the random numbers of rounding are those of the
// whole.
struct SharedPlace {
  int64_t buffer = 0;  // which one
  int64_t first = 0;   // of its elements
};

// grad_scale multiplies every gradient first (the clip factor). step is 1-based. One pass over
// memory, parallel over the buffer, bitwise independent of the number of threads. bfloat16 is rounded
// stochastically (kernels/cpu/stochastic_rounding.h), by place and step.
void adamw_step(const AdamWBuffers& buffers, const AdamWOptions& options, double lr, double grad_scale,
                int64_t step, SharedPlace place = {});

}  // namespace troupe
