// Requests and answers of a rollout across the boundary.
#include <ATen/ATen.h>

#include <array>
#include <utility>

#include "binding/batches.h"
#include "binding/binding.h"
#include "binding/engine_call.h"
#include "binding/errors.h"
#include "binding/options.h"
#include "binding/results.h"
#include "binding/tensors.h"
#include "engine/engine.h"

// Above each function: the verb of engine/engine.h it calls, and its signature in ts/native/bridge.ts.
namespace troupe::binding {

namespace {

template <typename T>
std::vector<T> to_vector(const at::Tensor& tensor) {
  const T* data = tensor.const_data_ptr<T>();
  return std::vector<T>(data, data + tensor.numel());
}

DraftOptions read_draft_options(const Field& dto) {
  if (dto.is_null()) return {};
  return {.num_tokens = dto["numTokens"].count(),
          .predicts = dto["predicts"].boolean(),
          .min_match = dto["minMatch"].count(),
          .max_match = dto["maxMatch"].count(),
          .max_sequences = dto["maxSequences"].count(),
          .remembered_tokens = dto["rememberedTokens"].count()};
}

RolloutOptions read_rollout_options(const Field& dto) {
  RolloutOptions options;
  options.max_sequences = dto["maxSequences"].count();
  options.max_step_tokens = dto["maxStepTokens"].count();
  options.max_positions = dto["maxPositions"].count();
  options.kv_cache_bytes = dto["kvCacheBytes"].count();
  options.memory_share = dto["memoryShare"].number();
  options.chunked_prefill = dto["chunkedPrefill"].boolean();
  options.prefix_caching = dto["prefixCaching"].boolean();
  options.tensor_parallel = dto["tensorParallel"].count();
  options.quantization = read_quantization(dto["quantization"]);
  options.latent_cache = dto["latentCache"].boolean();
  options.routed_experts = dto["routedExperts"].boolean();
  options.drafts = read_draft_options(dto["drafts"]);
  return options;
}

RequestSampling read_request_sampling(const Field& dto) {
  RequestSampling sampling;
  sampling.max_new_tokens = dto["maxNewTokens"].integer();
  sampling.temperature = dto["temperature"].number();
  sampling.top_k = dto["topK"].integer();
  sampling.top_p = dto["topP"].number();
  sampling.min_p = dto["minP"].number();
  sampling.repetition_penalty = dto["repetitionPenalty"].number();
  sampling.presence_penalty = dto["presencePenalty"].number();
  sampling.frequency_penalty = dto["frequencyPenalty"].number();
  sampling.stop_token_ids = dto["stopTokenIds"].integers();
  const at::Tensor words = read_int32(dto["badWordIds"]), ends = read_int32(dto["badWordOffsets"]);
  require_offsets(dto["badWordOffsets"], ends, words.numel(), "the number of badWordIds");
  for (int64_t i = 0; i + 1 < ends.numel(); ++i) {
    const int32_t* end = ends.const_data_ptr<int32_t>() + i;
    const int32_t* id = words.const_data_ptr<int32_t>();
    sampling.bad_words.emplace_back(id + end[0], id + end[1]);
  }
  const at::Tensor ids = read_int32(dto["biasedIds"]);
  const at::Tensor biases = read_float32(dto["biases"]);
  require_length(dto["biases"], biases, ids.numel(), "one per biased id");
  for (int64_t i = 0; i < ids.numel(); ++i)
    sampling.logit_bias.emplace_back(ids.const_data_ptr<int32_t>()[i], biases.const_data_ptr<float>()[i]);
  sampling.top_log_probs = dto["topLogProbs"].count();
  sampling.prompt_log_probs = dto["promptLogProbs"].boolean();
  sampling.constrained = dto["constrained"].boolean();
  return sampling;
}

RolloutRequest read_rollout_request(const Field& dto, const std::vector<Image>& images) {
  RolloutRequest request;
  request.id = static_cast<uint64_t>(dto["id"].count());
  request.prompt = to_vector<int32_t>(read_int32(dto["prompt"]));
  request.sampling = read_request_sampling(dto["sampling"]);
  const std::vector<uint64_t> words = read_uint64s(dto["seedAndSalt"]);
  if (words.size() != 2) dto["seedAndSalt"].mismatch("two elements");
  request.seed = words[0];
  request.salt = words[1];
  request.priority = dto["priority"].number();
  for (const int32_t image : to_vector<int32_t>(read_int32(dto["images"]))) {
    if (image < 0 || static_cast<size_t>(image) >= images.size())
      dto["images"].mismatch("numbers of the images of the commands");
    request.images.push_back(images[static_cast<size_t>(image)]);
  }
  return request;
}

RolloutCommands read_rollout_commands(const Field& dto) {
  RolloutCommands commands;
  const std::vector<Image> images = read_images(dto["images"]);
  for (const Field& request : dto["submit"].elements())
    commands.submit.push_back(read_rollout_request(request, images));
  for (const int64_t id : dto["abort"].integers()) commands.abort.push_back(static_cast<uint64_t>(id));
  for (const Field& mask : dto["masks"].elements()) {
    std::vector<uint32_t> words;
    for (const int32_t word : to_vector<int32_t>(read_int32(mask["words"])))
      words.push_back(static_cast<uint32_t>(word));
    commands.masks.emplace_back(static_cast<uint64_t>(mask["id"].count()), std::move(words));
  }
  commands.milliseconds = dto["milliseconds"].number();
  return commands;
}

Napi::Value write_rollout_stats(Napi::Env env, const RolloutStats& stats) {
  auto dto = Napi::Object::New(env);
  const auto number = [](int64_t value) { return static_cast<double>(value); };
  dto.Set("running", number(stats.running));
  dto.Set("waiting", number(stats.waiting));
  dto.Set("pages", number(stats.pages));
  dto.Set("pagesHeld", number(stats.pages_held));
  dto.Set("pagesIndexed", number(stats.pages_indexed));
  dto.Set("cacheBytes", number(stats.cache_bytes));
  dto.Set("promptTokens", number(stats.prompt_tokens));
  dto.Set("cachedPromptTokens", number(stats.cached_prompt_tokens));
  dto.Set("generatedTokens", number(stats.generated_tokens));
  dto.Set("computedTokens", number(stats.computed_tokens));
  dto.Set("drafts", number(stats.drafts));
  dto.Set("draftedTokens", number(stats.drafted_tokens));
  dto.Set("acceptedTokens", number(stats.accepted_tokens));
  dto.Set("hostChoices", number(stats.host_choices));
  dto.Set("steps", number(stats.steps));
  dto.Set("preemptions", number(stats.preemptions));
  dto.Set("version", number(stats.version));
  return dto;
}

at::Tensor floats(const std::vector<float>& values) {
  return at::tensor(values, at::kFloat);
}

const char* word_of(Finish finish) {
  constexpr std::array kWords = {"none", "stop", "length", "abort"};
  return kWords[static_cast<size_t>(finish)];
}

Napi::Value write_rollout_output(Napi::Env env, const RolloutOutput& output) {
  auto dto = Napi::Object::New(env);
  std::vector<int32_t> top_tokens;
  std::vector<float> top_log_probs;
  for (const std::vector<TokenLogProb>& position : output.top) {
    for (const TokenLogProb& token : position) {
      top_tokens.push_back(token.token);
      top_log_probs.push_back(token.log_prob);
    }
  }
  const at::Tensor no_prompt;
  dto.Set("id", static_cast<double>(output.id));
  dto.Set("tokens", write_int32(env, at::tensor(output.tokens, at::kInt)));
  dto.Set("logProbs", write_float32(env, floats(output.log_probs)));
  dto.Set("topTokens", write_int32(env, at::tensor(top_tokens, at::kInt)));
  dto.Set("topLogProbs", write_float32(env, floats(top_log_probs)));
  dto.Set("promptLogProbs",
          write_float32(env, output.prompt_log_probs.empty() ? no_prompt : floats(output.prompt_log_probs)));
  const std::vector<uint8_t>& experts = output.routed_experts;
  dto.Set("routedExperts",
          write_uint8(
              env, experts.empty() ? at::Tensor() : at::tensor(at::ArrayRef<uint8_t>(experts), at::kByte)));
  dto.Set("version", static_cast<double>(output.version));
  dto.Set("cachedTokens", static_cast<double>(output.cached_tokens));
  dto.Set("finish", word_of(output.finish));
  dto.Set("error", output.error.empty() ? env.Null() : Napi::Value(Napi::String::New(env, output.error)));
  dto.Set("nonFinite", output.non_finite);
  dto.Set("needsMask", output.needs_mask);
  return dto;
}

Napi::Value write_rollout_turn(Napi::Env env, const RolloutTurn& turn) {
  auto dto = Napi::Object::New(env);
  auto outputs = Napi::Array::New(env, turn.outputs.size());
  for (size_t i = 0; i < turn.outputs.size(); ++i)
    outputs.Set(static_cast<uint32_t>(i), write_rollout_output(env, turn.outputs[i]));
  dto.Set("outputs", outputs);
  dto.Set("stats", write_rollout_stats(env, turn.stats));
  dto.Set("ready", turn.ready);
  dto.Set("idle", turn.idle);
  return dto;
}

// RolloutStats Engine::open_rollout(const RolloutOptions&)
// openRollout(engine: NativeEngine, options: NativeRolloutOptions): Promise<NativeRolloutStats>
Napi::Value open_rollout(const Napi::CallbackInfo& info) {
  const Arguments args(info, "openRollout");
  return call_engine(
      info, args(0, "engine"),
      [options = read_rollout_options(args(1, "options"))](Engine& engine) {
        return engine.open_rollout(options);
      },
      write_rollout_stats);
}

// void Engine::begin_rollout(int64_t version)
// beginRollout(engine: NativeEngine, version: number): Promise<null>
Napi::Value begin_rollout(const Napi::CallbackInfo& info) {
  const Arguments args(info, "beginRollout");
  return call_engine(
      info, args(0, "engine"),
      [version = args(1, "version").count()](Engine& engine) {
        engine.begin_rollout(version);
        return Nothing{};
      },
      write_nothing);
}

// RolloutTurn Engine::rollout_turn(RolloutCommands)
// rolloutTurn(engine: NativeEngine, commands: NativeRolloutCommands): Promise<NativeRolloutTurn>
Napi::Value rollout_turn(const Napi::CallbackInfo& info) {
  const Arguments args(info, "rolloutTurn");
  return call_engine(
      info, args(0, "engine"),
      [commands = read_rollout_commands(args(1, "commands"))](Engine& engine) mutable {
        return engine.rollout_turn(std::move(commands));
      },
      write_rollout_turn);
}

// void Engine::park_rollout(bool preempt)
// parkRollout(engine: NativeEngine, preempt: boolean): Promise<null>
Napi::Value park_rollout(const Napi::CallbackInfo& info) {
  const Arguments args(info, "parkRollout");
  return call_engine(
      info, args(0, "engine"),
      [preempt = args(1, "preempt").boolean()](Engine& engine) {
        engine.park_rollout(preempt);
        return Nothing{};
      },
      write_nothing);
}

}  // namespace

void export_rollout(Napi::Env env, Napi::Object exports) {
  export_async<open_rollout>(env, exports, "openRollout");
  export_async<begin_rollout>(env, exports, "beginRollout");
  export_async<rollout_turn>(env, exports, "rolloutTurn");
  export_async<park_rollout>(env, exports, "parkRollout");
}

}  // namespace troupe::binding
