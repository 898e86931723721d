// Prompts that have been checked.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "model/model_config.h"
#include "rollout/samples.h"

namespace troupe {

// Throws kInvalidArgument naming the option that makes no sense.
void check_options(const SamplingOptions& options);

// A PromptBatch that has been checked: every prompt has tokens, all within the vocabulary, and room for
// max_new_tokens; there is one seed per sample. Throws kInvalidArgument naming the prompt otherwise.
// Refers to the batch, which must outlive it.
class PromptList {
 public:
  PromptList(const PromptBatch& batch, const ModelConfig& config, int64_t max_new_tokens);

  int64_t size() const { return batch_.offsets.size(0) - 1; }
  int64_t n() const { return batch_.n; }
  int64_t num_samples() const { return size() * n(); }
  int64_t length(int64_t prompt) const { return offset(prompt + 1) - offset(prompt); }
  // Of prompts [first, first + count), concatenated: [sum P] int32 on the CPU.
  at::Tensor tokens(int64_t first, int64_t count) const {
    return batch_.tokens.narrow(0, offset(first), offset(first + count) - offset(first));
  }
  uint64_t seed(int64_t sample) const { return batch_.seeds[static_cast<size_t>(sample)]; }

 private:
  int64_t offset(int64_t i) const { return batch_.offsets.const_data_ptr<int32_t>()[i]; }

  const PromptBatch& batch_;
};

}  // namespace troupe
