// A tower of two layers for tests.
#pragma once

#include <cstdint>

#include "model/model_config.h"

namespace troupe::test {

inline VisionConfig small_tower(int64_t image_token) {
  return {.num_layers = 2,
          .hidden_size = 16,
          .num_heads = 2,
          .intermediate_size = 24,
          .patch_size = 2,
          .temporal_patch_size = 2,
          .merge_size = 2,
          .position_side = 4,
          .rope_inv_freq = {1, 0.1},
          .deepstack_layers = {0, 1},
          .pixel_mean = {0.5, 0.5, 0.5},
          .pixel_std = {0.5, 0.5, 0.5},
          .image_token = image_token,
          .rope_axes = {0, 1, 2, 0}};
}

}  // namespace troupe::test
