// A batch as requests to a rollout of its own.
#include "rollout/generator.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "base/error.h"
#include "rollout/prompts.h"
#include "rollout/rollout.h"

namespace troupe {
namespace {

RolloutRequest request_of(const PromptList& prompts, int64_t sample, const SamplingOptions& options) {
  const at::Tensor tokens = prompts.tokens(sample / prompts.n(), 1);
  const int32_t* data = tokens.const_data_ptr<int32_t>();
  RolloutRequest request;
  request.id = static_cast<uint64_t>(sample);
  request.prompt.assign(data, data + tokens.size(0));
  request.seed = prompts.seed(sample);
  request.sampling.max_new_tokens = options.max_new_tokens;
  request.sampling.temperature = options.temperature;
  request.sampling.top_k = options.top_k;
  request.sampling.top_p = options.top_p;
  request.sampling.stop_token_ids = options.stop_token_ids;
  return request;
}

struct Sample {
  std::vector<int32_t> tokens;
  std::vector<float> log_probs;
};

GenerateResult joined(const std::vector<Sample>& samples) {
  int64_t total = 0;
  for (const Sample& sample : samples) total += static_cast<int64_t>(sample.tokens.size());
  GenerateResult result{at::empty({total}, at::TensorOptions(at::kInt)),
                        at::zeros({static_cast<int64_t>(samples.size()) + 1}, at::TensorOptions(at::kInt)),
                        at::empty({total}, at::TensorOptions(at::kFloat))};
  int32_t* tokens = result.tokens.data_ptr<int32_t>();
  float* log_probs = result.log_probs.data_ptr<float>();
  int32_t* offsets = result.offsets.data_ptr<int32_t>();
  for (const Sample& sample : samples) {
    tokens = std::copy(sample.tokens.begin(), sample.tokens.end(), tokens);
    log_probs = std::copy(sample.log_probs.begin(), sample.log_probs.end(), log_probs);
    offsets[1] = offsets[0] + static_cast<int32_t>(sample.tokens.size());
    ++offsets;
  }
  return result;
}

}  // namespace

GenerateResult generate(Decoder& decoder, const PromptBatch& prompts, const SamplingOptions& options,
                        const std::function<void()>& check_abort, const RolloutOptions& limits) {
  const at::NoGradGuard no_grad;
  check_options(options);
  const PromptList list(prompts, decoder.config(), options.max_new_tokens);
  std::vector<Sample> samples(static_cast<size_t>(list.num_samples()));
  if (samples.empty()) return joined(samples);
  const struct Decoding {
    Decoding(Decoder& decoder, ops::Quantization quantization) : decoder(decoder) {
      decoder.begin_decoding(quantization);
    }
    ~Decoding() { decoder.end_decoding(); }
    Decoder& decoder;
  } decoding(decoder, limits.quantization);
  Rollout rollout(decoder, limits);
  for (int64_t sample = 0; sample < list.num_samples(); ++sample)
    rollout.submit(request_of(list, sample, options));
  bool works = true;
  while (works) {
    check_abort();
    works = rollout.step();
    for (const RolloutOutput& output : rollout.take_outputs()) {
      require(output.error.empty(), output.non_finite ? ErrorCode::kNonFinite : ErrorCode::kInternal,
              "[generate] prompt ", static_cast<int64_t>(output.id) / list.n(), ", sample ",
              static_cast<int64_t>(output.id) % list.n(), ": ", output.error);
      Sample& sample = samples[output.id];
      sample.tokens.insert(sample.tokens.end(), output.tokens.begin(), output.tokens.end());
      sample.log_probs.insert(sample.log_probs.end(), output.log_probs.begin(), output.log_probs.end());
    }
  }
  return joined(samples);
}

}  // namespace troupe
