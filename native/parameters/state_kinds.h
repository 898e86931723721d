// Parts of an engine's state, and what they weigh.
#pragma once

#include <cstdint>

namespace troupe {

struct StateKinds {
  bool parameters = false;  // of what is trained in bfloat16 the masters and the copy to compute with
  bool gradients = false;
  bool moments = false;
};

struct HeldBytes {
  int64_t parameters = 0;  // of what is trained in bfloat16 the masters and the copy to compute with
  int64_t gradients = 0;
  int64_t moments = 0;
};

// Bytes that a rank holds for good, on its device and (offloaded) on the host.
struct StateBytes : HeldBytes {
  HeldBytes host;
};

}  // namespace troupe
