// Generation of samples from prompts.
#pragma once

#include <cstdint>
#include <functional>

#include "model/decoder.h"
#include "rollout/samples.h"

namespace troupe {

// How much of the machine a generation may take. None of it changes a result.
struct GenerateLimits {
  int64_t max_sequences = 256;                // that decode at the same time
  int64_t kv_cache_bytes = int64_t{4} << 30;  // pages of keys and values; one sequence may always run
  int64_t prefill_tokens = 4096;              // of the prompts that run together; a longer one runs alone
  int64_t logits_bytes = int64_t{64} << 20;   // of the logits that exist at once
};

// Batched sampling with a KV cache. See rollout/samples.h for the shapes; `check_abort` is called once per decoding
// step and throws to end the run.
//
// Samples run in the order of the batch; one that ends (a stop token, which is kept, or
// max_new_tokens) gives its place to the next one. A prompt's keys and values are computed and held
// once for all its samples. Every row of a step is computed apart from the others, and sample s draws
// its t-th token with a number that depends on (seeds[s], t) alone, so a sample depends on its prompt,
// its seed and the options: not on its neighbours, the limits or the number of threads.
//
// kInvalidArgument for prompts or options that make no sense, before any work; kNonFinite when the
// model yields logits that are no distribution.
GenerateResult generate(Decoder& decoder, const PromptBatch& prompts, const SamplingOptions& options,
                        const std::function<void()>& check_abort, const GenerateLimits& limits = {});

}  // namespace troupe
