// Requests of a rollout as they come, are told what may be next, and are given up.
#include <algorithm>
#include <cmath>
#include <limits>
#include <new>
#include <string>
#include <utility>

#include "base/error.h"
#include "model/image_patches.h"
#include "rollout/rollout.h"

namespace troupe {
namespace {

constexpr ErrorCode kBad = ErrorCode::kInvalidArgument;

}  // namespace

void Rollout::check(const RolloutRequest& request) const {
  const RequestSampling& s = request.sampling;
  const int64_t vocab = decoder_.config().vocab_size;
  require(!request.prompt.empty(), kBad, "[rollout] the prompt is empty: expected at least one token");
  for (size_t i = 0; i < request.prompt.size(); ++i) {
    const int32_t token = request.prompt[i];
    require(token >= 0 && token < vocab, kBad, "[rollout] the prompt has token id ", token, " at position ",
            i, ", outside the model's vocabulary of ", vocab,
            ": do the tokenizer and the model belong together?");
  }
  require(s.max_new_tokens >= 1, kBad, "[rollout] expected max_new_tokens >= 1 but got ", s.max_new_tokens);
  require(s.temperature >= 0 && std::isfinite(s.temperature), kBad,
          "[rollout] expected temperature >= 0 (0 = greedy) but got ", s.temperature);
  require(s.top_k >= 0, kBad, "[rollout] expected top_k >= 0 (0 = off) but got ", s.top_k);
  require(s.top_p > 0 && s.top_p <= 1, kBad, "[rollout] expected 0 < top_p <= 1 (1 = off) but got ", s.top_p);
  require(s.min_p >= 0 && s.min_p <= 1, kBad, "[rollout] expected 0 <= min_p <= 1 (0 = off) but got ",
          s.min_p);
  require(s.repetition_penalty > 0 && std::isfinite(s.repetition_penalty), kBad,
          "[rollout] expected repetition_penalty > 0 (1 = off) but got ", s.repetition_penalty);
  require(std::isfinite(s.presence_penalty) && std::isfinite(s.frequency_penalty), kBad,
          "[rollout] expected finite presence and frequency penalties but got ", s.presence_penalty, " and ",
          s.frequency_penalty);
  for (const auto& [token, bias] : s.logit_bias) {
    require(token >= 0 && token < vocab && bias < std::numeric_limits<float>::infinity(), kBad,
            "[rollout] logit bias ", bias, " of token id ", token,
            ": expected a float32, or -infinity, for an id below ", vocab);
  }
  for (const std::vector<int32_t>& word : s.bad_words) {
    require(!word.empty(), kBad, "[rollout] a bad word is empty: expected at least one token id");
    for (const int32_t token : word)
      require(token >= 0 && token < vocab, kBad, "[rollout] a bad word has token id ", token,
              ", outside the model's vocabulary of ", vocab);
  }
}

void Rollout::submit(RolloutRequest request) {
  check(request);
  std::vector<ImageSpan> images = images_of(request);
  const auto prompt_tokens = static_cast<int64_t>(request.prompt.size());
  scheduler_.submit(std::move(request), std::move(images));
  totals_.prompt_tokens += prompt_tokens;
}

void Rollout::abort(uint64_t id) {
  Sequence* const sequence = scheduler_.find(id);
  // All of its positions are in its pages, and are its own (a tail is yet to be copied).
  if (routing_ && sequence != nullptr && sequence->tail < 0 && sequence->remaining() <= 1) {
    try {
      sequence->output.routed_experts = routing_->read(sequence->pages, sequence->length() - 1);
    } catch (const std::bad_alloc&) {
      // It ends all the same.
    }
  }
  scheduler_.abort(id);
}

std::vector<ImageSpan> Rollout::images_of(const RolloutRequest& request) const {
  const std::optional<VisionConfig>& vision = decoder_.config().vision;
  require(vision || request.images.empty(), kBad, "[rollout] the prompt has ", request.images.size(),
          " images, expected none: the model reads text alone");
  if (!vision) return {};
  std::vector<const Image*> images;
  for (const Image& image : request.images) images.push_back(&image);
  return image_spans(request.prompt.data(), static_cast<int64_t>(request.prompt.size()), images,
                     image_tokens(*vision), "[rollout] the prompt");
}

void Rollout::set_mask(uint64_t id, std::vector<uint32_t> mask) {
  Sequence* sequence = scheduler_.find(id);
  if (sequence == nullptr) return;
  if (!mask.empty() && std::all_of(mask.begin(), mask.end(), [](uint32_t word) { return word == 0; }))
    return fail_request(*sequence, "[rollout] the mask of allowed tokens allows none", false);
  sequence->mask = std::move(mask);
  sequence->has_mask = true;
}

}  // namespace troupe
