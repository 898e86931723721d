// Generation of samples from prompts, all at once.
#pragma once

#include <functional>

#include "model/decoder.h"
#include "rollout/rollout.h"
#include "rollout/samples.h"

namespace troupe {

// A rollout of `n` samples of each prompt. See rollout/samples.h for the shapes; `check_abort` is called once
// per step and throws to end the run. A sample depends on its prompt, its seed and the options: see Rollout.
//
// kInvalidArgument for prompts or options that make no sense, before any work; kNonFinite when the
// model yields logits that are no distribution.
GenerateResult generate(Decoder& decoder, const PromptBatch& prompts, const SamplingOptions& options,
                        const std::function<void()>& check_abort, const RolloutOptions& limits = {});

}  // namespace troupe
