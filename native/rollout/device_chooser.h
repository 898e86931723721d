// The choice of a step's tokens on a device.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <vector>

#include "rollout/token_chooser.h"

namespace troupe {

class DeviceChooser {
 public:
  // Refers to the uses, which must outlive it.
  explicit DeviceChooser(const std::vector<LogitsUse>& uses);

  // Begins the choice for uses [first, first + rows) from their logits [rows, V], after the soft cap.
  void begin(int64_t first, const at::Tensor& logits);
  // Waits for all of it. Nothing for rows with more candidates than a device keeps.
  std::vector<std::optional<Chosen>> finish();

 private:
  const std::vector<LogitsUse>& uses_;
  int64_t top_ = 0;     // the most likely tokens that any of them wants
  at::Tensor choices_;  // [uses, choice_words(top_)] int32
};

}  // namespace troupe
