// Runs a stage's schedule: what it computes, and the messages in between.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "comm/communicator.h"
#include "megatron/schedule.h"

namespace troupe {

// What a stage computes. Undefined tensors stand for nothing: the input of the first part, the outcome of the
// last, and all of a micro-batch that has no rows, which stages run for the sake of the collectives in it.
// Whether a micro-batch has rows all stages of a pipeline know.
class PipelineWork {
 public:
  virtual ~PipelineWork() = default;
  // Memory for the activations, or their gradient, of a micro-batch; undefined where it has no rows.
  virtual at::Tensor message(int64_t micro) = 0;
  virtual at::Tensor forward(int64_t chunk, int64_t micro, const at::Tensor& x) = 0;
  virtual at::Tensor backward(int64_t chunk, int64_t micro, const at::Tensor& dy) = 0;
};

// In the order of `steps` (of this stage; the others run theirs at the same time). pp: of the stages, in
// order.
void run_pipeline(const std::vector<PipelineStep>& steps, Communicator* pp, PipelineWork& work);

}  // namespace troupe
