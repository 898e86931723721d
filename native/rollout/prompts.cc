// Checks of prompts and sampling options.
#include "rollout/prompts.h"

#include <ATen/ATen.h>

#include <cmath>

#include "base/error.h"

namespace troupe {
namespace {

constexpr ErrorCode kBad = ErrorCode::kInvalidArgument;

void check_int_vector(const at::Tensor& tensor, const char* name) {
  require(tensor.defined() && tensor.dim() == 1 && tensor.scalar_type() == at::kInt &&
              tensor.is_contiguous() && tensor.is_cpu(),
          kBad, "[generate] expected ", name, " to be a contiguous int32 vector on the CPU");
}

}  // namespace

void check_options(const SamplingOptions& options) {
  require(options.max_new_tokens >= 1, kBad, "[generate] expected max_new_tokens >= 1 but got ",
          options.max_new_tokens);
  require(options.temperature >= 0 && std::isfinite(options.temperature), kBad,
          "[generate] expected temperature >= 0 (0 = greedy) but got ", options.temperature);
  require(options.top_k >= 0, kBad, "[generate] expected top_k >= 0 (0 = off) but got ", options.top_k);
  require(options.top_p > 0 && options.top_p <= 1, kBad,
          "[generate] expected 0 < top_p <= 1 (1 = off) but got ", options.top_p);
}

PromptList::PromptList(const PromptBatch& batch, const ModelConfig& config, int64_t max_new_tokens)
    : batch_(batch) {
  require(config.head == HeadKind::kLm, kBad,
          "[generate] expected a language model but this one has a value head: generate with the actor");
  check_int_vector(batch.tokens, "tokens");
  check_int_vector(batch.offsets, "offsets");
  require(batch.offsets.size(0) >= 1 && offset(0) == 0 && offset(size()) == batch.tokens.size(0), kBad,
          "[generate] expected offsets to run from 0 to the number of tokens, ", batch.tokens.size(0));
  require(batch.n >= 1, kBad, "[generate] expected n >= 1 samples per prompt but got ", batch.n);
  require(static_cast<int64_t>(batch.seeds.size()) == num_samples(), kBad,
          "[generate] expected one seed per sample, ", size(), " prompts x ", batch.n, " = ", num_samples(),
          ", but got ", batch.seeds.size());
  for (int64_t i = 0; i < size(); ++i) {
    require(length(i) >= 0, kBad, "[generate] expected increasing offsets but prompt ", i, " ends at ",
            offset(i + 1), ", before it begins at ", offset(i));
    require(length(i) > 0, kBad, "[generate] prompt ", i, " is empty: expected at least one token");
    require(length(i) + max_new_tokens <= config.max_positions, kBad, "[generate] prompt ", i, " has ",
            length(i), " tokens; with max_new_tokens ", max_new_tokens, " that is ",
            length(i) + max_new_tokens, ", more than the model's ", config.max_positions,
            " positions: shorten the prompt or the response");
  }
  const int32_t* ids = batch.tokens.const_data_ptr<int32_t>();
  for (int64_t i = 0; i < size(); ++i) {
    for (int64_t t = offset(i); t < offset(i + 1); ++t) {
      require(ids[t] >= 0 && ids[t] < config.vocab_size, kBad, "[generate] prompt ", i, " has token id ",
              ids[t], " at position ", t - offset(i), ", outside the model's vocabulary of ",
              config.vocab_size, ": do the tokenizer and the model belong together?");
    }
  }
}

}  // namespace troupe
