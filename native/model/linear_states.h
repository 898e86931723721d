// What running sequences keep of a layer without attention, and when.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>

#include "kernels/gated_delta_rule.h"

namespace troupe {

// Rows of a step that a thread takes at a time.
constexpr int64_t kStepTile = 8;

// Of one layer, by slot. conv [slots, kConvWidth - 1, C] in the compute dtype: the last rows that the
// convolution took; rule [slots, Hv, Dk, Dv] float32, of a short convolution without elements. Contiguous
// within a slot.
struct LinearStates {
  at::Tensor conv, rule;
};

// The state behind the first `count` rows of a run also goes into this slot, which is that of no run.
struct StateSnapshot {
  size_t run;
  int64_t count, slot;
};

}  // namespace troupe
