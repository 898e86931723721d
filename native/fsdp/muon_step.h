// One step of Muon on a group of parameters, whose matrices are spread over ranks.
#pragma once

#include <cstddef>
#include <cstdint>

#include "comm/communicator.h"
#include "optim/muon.h"
#include "parameters/parameter_store.h"

namespace troupe {

// What every parameter of one optimiser step has in common. step is 1-based; grad_scale: see adamw_step.
struct StepSize {
  double lr = 0;
  double grad_scale = 1;
  int64_t step = 1;
};

// Matrices by Muon, everything else by AdamW. `shards`: the ranks whose slices make up the group; `tp`: those
// that hold the other parts of its matrices; all of them at the same time. What a matrix becomes does not
// depend on how it is spread: each rank orthogonalises the whole of those that it has a part of. On the
// device there are then two tensors of the size of the slice and the group, in float32, and of one matrix at
// a time what orthogonalized() needs.
//
// The buffers of the group must be there (StateBuffer::fetch), and float32.
void muon_step(ParameterStore& store, size_t group, const OptimizerOptions& options, const StepSize& size,
               Communicator& shards, Communicator& tp);

}  // namespace troupe
