// Whole engines on a GPU against the CPU's: updates, log-probabilities and texts of every kind of layer.
#include <ATen/ATen.h>

#include <algorithm>
#include <string>

#include "cuda_inputs.h"
#include "engine/engine.h"
#include "generation.h"
#include "long_training.h"

using namespace troupe;
using namespace troupe::test;

namespace {

constexpr const char* kVariants[] = {
    "qwen2",    "qwen3",      "qwen3_moe",  "deepseek_v3",   "latent",     "glm4_moe",    "gpt_oss",
    "qwen3_5",  "qwen3_next", "gpt2",       "gemma2",        "gemma3",     "olmo3",       "granitemoe",
    "granite",  "glm4",       "smollm3",    "mamba2",        "nemotron_h", "olmo_hybrid", "lfm2",
    "lfm2_moe", "gemma4",     "gemma4_moe", "gemma4_shared", "afmoe",      "apertus"};

const at::Device kGpu(at::kCUDA, 0);

EngineOptions options_on(at::Device device, at::ScalarType dtype, const std::string& variant,
                         HeadKind head = HeadKind::kLm) {
  EngineOptions options = options_of(variant, head);
  options.device = device;
  options.dtype = dtype;
  return options;
}

double farthest(const at::Tensor& a, const at::Tensor& b) {
  return (wide(a) - wide(b)).abs().max().item<double>();
}

struct Trained {
  at::Tensor before, after, entropy;  // log-probs
  double grad_norm;
};

Trained train(const EngineOptions& options) {
  const auto engine = create_engine(options, nullptr);
  const Share share = share_of(0, {0, 0, 0, 0, 0, 0, 0, 0});
  PolicyLossOptions loss;
  loss.entropy_coeff = 0.01;
  Trained result;
  const auto log_probs = [&] { return engine->compute_log_prob(share.tokens, 1, /*entropy=*/true, false); };
  const auto first = log_probs();
  result.before = first.log_probs;
  result.entropy = first.entropy;
  const MetricsList metrics =
      engine->update_policy({share.tokens, share.mask, share.a, share.b, {}, {}, {}}, share.mini, loss, 1);
  result.grad_norm = metrics.front().at("grad_norm");
  result.after = log_probs().log_probs;
  return result;
}

GenerateResult texts(const EngineOptions& options, const RolloutOptions& limits = {}) {
  const auto engine = create_engine(options, nullptr);
  const PromptBatch prompts{at::arange(50, at::kInt).remainder(kVocabulary),
                            at::tensor({0, 3, 50}, at::kInt),
                            3,
                            {1, 2, 3, 4, 5, 6}};
  test::SamplingOptions sampling;
  sampling.max_new_tokens = 10;
  sampling.temperature = 0.8;
  sampling.top_p = 0.9;
  return generate(*engine, prompts, sampling, limits);
}

// How far numbers of a GPU may be from the CPU's. After an update AdamW has moved every weight by about the
// same step, whose direction is that of the gradient, however small it is.
struct Limits {
  double log_probs, entropy, grad_norm, after;
};
constexpr Limits kFloat32Limits{5e-6, 5e-6, 1e-5, 2e-5}, kBFloat16Limits{2e-2, 2e-3, 2e-2, 4e-2};

void compare(const std::string& what, const Trained& gpu, const Trained& cpu, const Limits& limits) {
  const auto near = [&](const char* number, double distance, double limit) {
    report(distance <= limit, __FILE__, __LINE__,
           what + ": " + number + " is " + std::to_string(distance / limit) + " x the limit off");
  };
  near("log-probs", farthest(gpu.before, cpu.before), limits.log_probs);
  near("entropy", farthest(gpu.entropy, cpu.entropy), limits.entropy);
  near("grad_norm", std::abs(gpu.grad_norm / cpu.grad_norm - 1), limits.grad_norm);
  near("log-probs after the update", farthest(gpu.after, cpu.after), limits.after);
  // An update that did nothing would be seen where the numbers are that exact.
  if (limits.after < 1e-3) CHECK(farthest(cpu.after, cpu.before) > 10 * limits.after);
}

}  // namespace

TEST(an_update_in_float32_has_the_numbers_of_the_cpu) {
  for (const std::string variant : kVariants) {
    compare(variant, train(options_on(kGpu, at::kFloat, variant)),
            train(options_on(at::kCPU, at::kFloat, variant)), kFloat32Limits);
  }
}

TEST(an_update_in_bfloat16_is_near_that_of_the_cpu) {
  for (const std::string variant : kVariants) {
    compare(variant, train(options_on(kGpu, at::kBFloat16, variant)),
            train(options_on(at::kCPU, at::kBFloat16, variant)), kBFloat16Limits);
  }
}

// What an engine keeps, computes again, leaves on the host or trains beside the weights.
TEST(ways_to_train_have_the_numbers_of_the_cpu) {
  using Change = void (*)(EngineOptions&);
  const std::pair<const char*, Change> ways[] = {
      {"recomputed", [](EngineOptions& o) { o.gradient_checkpointing = true; }},
      {"activations on the host",
       [](EngineOptions& o) { o.gradient_checkpointing = o.activation_offload = true; }},
      {"state on the host",
       [](EngineOptions& o) {
         o.offload = {true, true, true};
       }},
      {"adapters", [](EngineOptions& o) { o.lora = attention_adapters(o.model); }},
      {"further tokens", [](EngineOptions& o) { o.model.prediction = PredictionConfig{1}; }},
  };
  for (const auto& [name, change] : ways) {
    for (const std::string variant : {"qwen3", "qwen3_moe"}) {
      const auto trained = [&, change = change](at::Device device) {
        EngineOptions options = options_on(device, at::kFloat, variant);
        change(options);
        return train(options);
      };
      compare(variant + ", " + name, trained(kGpu), trained(at::kCPU), kFloat32Limits);
    }
  }
}

TEST(values_are_those_of_the_cpu) {
  for (const std::string variant : {"qwen3", "qwen3_moe"}) {
    const auto values = [&](at::Device device) {
      const auto engine = create_engine(options_on(device, at::kFloat, variant, HeadKind::kValue), nullptr);
      const Share share = share_of(0, {0, 0, 0, 0, 0, 0, 0, 0});
      engine->update_critic({share.tokens, share.mask, share.a, share.b}, share.mini, {});
      return engine->compute_values(share.tokens);
    };
    CHECK(farthest(values(kGpu), values(at::kCPU)) < 2e-5);
  }
}

TEST(texts_are_those_of_the_cpu) {
  for (const std::string variant : kVariants) {
    const GenerateResult cpu = texts(options_on(at::kCPU, at::kFloat, variant));
    const GenerateResult gpu = texts(options_on(kGpu, at::kFloat, variant));
    CHECK(gpu.tokens.equal(cpu.tokens));
    CHECK(farthest(gpu.log_probs, cpu.log_probs) < 1e-5);
  }
}

// Adapters on the matrix that is taken head by head.
TEST(texts_over_latents_are_those_of_the_cpu) {
  RolloutOptions latents;
  latents.latent_cache = true;
  for (const std::string variant : {"deepseek_v3", "latent"}) {
    for (const bool adapters : {false, true}) {
      const auto made = [&](at::Device device) {
        EngineOptions options = options_on(device, at::kFloat, variant);
        if (adapters) options.lora = attention_adapters(options.model);
        return texts(options, latents);
      };
      const GenerateResult cpu = made(at::kCPU), gpu = made(kGpu);
      CHECK(gpu.tokens.equal(cpu.tokens));
      CHECK(farthest(gpu.log_probs, cpu.log_probs) < 1e-5);
    }
  }
}

int main() {
  return run_on_gpu();
}
