// A team of one: the choice of a token on a CPU.
#pragma once

#include "kernels/choose_token.h"

namespace troupe::kernels {

struct OneThread {
  int64_t rank() const { return 0; }
  int64_t size() const { return 1; }
  void sync() const {}
  int32_t add(int32_t* count, int32_t n) const {
    const int32_t before = *count;
    *count += n;
    return before;
  }
  void least(int32_t* value, int32_t other) const {
    if (other < *value) *value = other;
  }
  float weight(float x, float max, float inverse_temperature) const {
    float weight;
    logit_block_kernels().weights(&x, 1, max, inverse_temperature, &weight);
    return weight;
  }
};

}  // namespace troupe::kernels
