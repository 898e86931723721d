// The verbs of Engine as functions that return promises.
#include "base/error.h"
#include "binding/batches.h"
#include "binding/binding.h"
#include "binding/engine_call.h"
#include "binding/environment.h"
#include "binding/errors.h"
#include "binding/options.h"
#include "binding/results.h"
#include "binding/tensors.h"

// Above each function: the verb of engine/engine.h it calls, and its signature in ts/native/bridge.ts.
namespace troupe::binding {

namespace {

// std::unique_ptr<Engine> create_engine(const EngineOptions&, std::shared_ptr<Communicator>)
// createEngine(options: NativeEngineOptions): Promise<NativeEngine>
Napi::Value create_engine(const Napi::CallbackInfo& info) {
  const Arguments args(info, "createEngine");
  Environment& environment = Environment::of(info.Env());
  const Field sharding = args(0, "options")["sharding"];
  const bool alone = sharding.is_null();
  return environment.call(
      info.Env(),
      [slot = environment.new_slot(), group = environment.group(), alone,
       word = alone ? "" : sharding.string(), options = read_engine_options(args(0, "options"))] {
        require(alone || group->comm, ErrorCode::kInvalidArgument, "[engine] sharding ", word,
                " needs a group: call joinGroup first");
        slot->open(troupe::create_engine(options, alone ? nullptr : group->comm));
        return slot;
      },
      make_handle);
}

// std::vector<ParameterInfo> Engine::parameters()
// parameters(engine: NativeEngine): Promise<NativeParameterInfo[]>
Napi::Value parameters(const Napi::CallbackInfo& info) {
  const Arguments args(info, "parameters");
  return call_engine(
      info, args(0, "engine"), [](Engine& engine) { return engine.parameters(); }, write_parameters);
}

// void Engine::import_tensors(TensorKind, const std::vector<TensorFile>&)
// importTensors(engine: NativeEngine, kind: NativeTensorKind, files: NativeTensorFile[]): Promise<null>
Napi::Value import_tensors(const Napi::CallbackInfo& info) {
  const Arguments args(info, "importTensors");
  return call_engine(
      info, args(0, "engine"),
      [kind = read_tensor_kind(args(1, "kind")),
       files = read_tensor_files(args(2, "files"))](Engine& engine) {
        engine.import_tensors(kind, files);
        return Nothing{};
      },
      write_nothing);
}

// void Engine::export_tensors(TensorKind, const std::vector<TensorFile>&)
// exportTensors(engine: NativeEngine, kind: NativeTensorKind, files: NativeTensorFile[]): Promise<null>
Napi::Value export_tensors(const Napi::CallbackInfo& info) {
  const Arguments args(info, "exportTensors");
  return call_engine(
      info, args(0, "engine"),
      [kind = read_tensor_kind(args(1, "kind")),
       files = read_tensor_files(args(2, "files"))](Engine& engine) {
        engine.export_tensors(kind, files);
        return Nothing{};
      },
      write_nothing);
}

// ExportedWeights Engine::export_weights(TensorKind, const WeightBucket&, std::optional<int64_t> version,
//                                        bool more)
// exportWeights(engine: NativeEngine, kind: NativeTensorKind, bucket: NativeWeightBucket, version: number |
// null,
//               more: boolean): Promise<NativeExportedWeights>
Napi::Value export_weights(const Napi::CallbackInfo& info) {
  const Arguments args(info, "exportWeights");
  const Field version = args(3, "version");
  return call_engine(
      info, args(0, "engine"),
      [kind = read_tensor_kind(args(1, "kind")), bucket = read_weight_bucket(args(2, "bucket")),
       version = version.is_null() ? std::optional<int64_t>() : version.count(),
       more = args(4, "more").boolean()](Engine& engine) {
        return engine.export_weights(kind, bucket, version, more);
      },
      write_exported_weights);
}

// void Engine::import_weights(const WeightBucket&, const at::Tensor& bytes)
// importWeights(engine: NativeEngine, bucket: NativeWeightBucket, bytes: Uint8Array | null): Promise<null>
Napi::Value import_weights(const Napi::CallbackInfo& info) {
  const Arguments args(info, "importWeights");
  const Field bytes = args(2, "bytes");
  return call_engine(
      info, args(0, "engine"),
      [bucket = read_weight_bucket(args(1, "bucket")),
       bytes = bytes.is_null() ? at::Tensor() : read_uint8(bytes)](Engine& engine) {
        engine.import_weights(bucket, bytes);
        return Nothing{};
      },
      write_nothing);
}

// at::Tensor Engine::get_tensor(TensorKind, const std::string&)
// getTensor(engine: NativeEngine, kind: NativeTensorKind, param: string): Promise<Float32Array>
Napi::Value get_tensor(const Napi::CallbackInfo& info) {
  const Arguments args(info, "getTensor");
  return call_engine(
      info, args(0, "engine"),
      [kind = read_tensor_kind(args(1, "kind")), param = args(2, "param").string()](Engine& engine) {
        return engine.get_tensor(kind, param);
      },
      write_float32);
}

// StateBytes Engine::state_bytes()
// stateBytes(engine: NativeEngine): Promise<NativeStateBytes>
Napi::Value state_bytes(const Napi::CallbackInfo& info) {
  const Arguments args(info, "stateBytes");
  return call_engine(
      info, args(0, "engine"), [](Engine& engine) { return engine.state_bytes(); }, write_state_bytes);
}

// int64_t Engine::bytes_sent()
// bytesSent(engine: NativeEngine): Promise<number>
Napi::Value bytes_sent(const Napi::CallbackInfo& info) {
  const Arguments args(info, "bytesSent");
  return call_engine(
      info, args(0, "engine"), [](Engine& engine) { return engine.bytes_sent(); },
      [](Napi::Env env, int64_t bytes) { return write_number(env, static_cast<double>(bytes)); });
}

// void Engine::offload(const StateKinds&)
// offload(engine: NativeEngine, kinds: NativeStateKinds): Promise<null>
Napi::Value offload(const Napi::CallbackInfo& info) {
  const Arguments args(info, "offload");
  return call_engine(
      info, args(0, "engine"),
      [kinds = read_state_kinds(args(1, "kinds"))](Engine& engine) {
        engine.offload(kinds);
        return Nothing{};
      },
      write_nothing);
}

// void Engine::onload(const StateKinds&)
// onload(engine: NativeEngine, kinds: NativeStateKinds): Promise<null>
Napi::Value onload(const Napi::CallbackInfo& info) {
  const Arguments args(info, "onload");
  return call_engine(
      info, args(0, "engine"),
      [kinds = read_state_kinds(args(1, "kinds"))](Engine& engine) {
        engine.onload(kinds);
        return Nothing{};
      },
      write_nothing);
}

// LogProbResult Engine::compute_log_prob(const TokenBatch&, double temperature, bool entropy,
//                                        bool sum_pi_squared, bool disable_adapters, bool record_experts,
//                                        int64_t top_k)
// computeLogProb(engine: NativeEngine, batch: NativeTokenBatch, temperature: number, entropy: boolean,
//                sumPiSquared: boolean, disableAdapters: boolean,
//                recordExperts: boolean, topK: number): Promise<NativeLogProbResult>
Napi::Value compute_log_prob(const Napi::CallbackInfo& info) {
  const Arguments args(info, "computeLogProb");
  return call_engine(
      info, args(0, "engine"),
      [batch = read_token_batch(args(1, "batch")), temperature = args(2, "temperature").number(),
       entropy = args(3, "entropy").boolean(), sum_pi_squared = args(4, "sumPiSquared").boolean(),
       disable_adapters = args(5, "disableAdapters").boolean(),
       record_experts = args(6, "recordExperts").boolean(), top_k = args(7, "topK").count()](Engine& engine) {
        return engine.compute_log_prob(batch, temperature, entropy, sum_pi_squared, disable_adapters,
                                       record_experts, top_k);
      },
      write_log_probs);
}

// MetricsList Engine::update_policy(const PolicyBatch&, const MiniBatches&, const PolicyLossOptions&,
//                                   double temperature)
// updatePolicy(engine: NativeEngine, batch: NativePolicyBatch, mini: NativeMiniBatches,
//              loss: NativePolicyLossOptions, temperature: number): Promise<NativeMetrics[]>
Napi::Value update_policy(const Napi::CallbackInfo& info) {
  const Arguments args(info, "updatePolicy");
  PolicyBatch batch = read_policy_batch(args(1, "batch"));
  MiniBatches mini = read_mini_batches(args(2, "mini"), batch.tokens.size());
  return call_engine(
      info, args(0, "engine"),
      [batch = std::move(batch), mini = std::move(mini), loss = read_policy_loss_options(args(3, "loss")),
       temperature = args(4, "temperature").number()](Engine& engine) {
        return engine.update_policy(batch, mini, loss, temperature);
      },
      write_metrics_list);
}

// at::Tensor Engine::compute_values(const TokenBatch&)
// computeValues(engine: NativeEngine, batch: NativeTokenBatch): Promise<Float32Array>
Napi::Value compute_values(const Napi::CallbackInfo& info) {
  const Arguments args(info, "computeValues");
  return call_engine(
      info, args(0, "engine"),
      [batch = read_token_batch(args(1, "batch"))](Engine& engine) { return engine.compute_values(batch); },
      write_float32);
}

// MetricsList Engine::update_critic(const ValueBatch&, const MiniBatches&, const ValueLossOptions&)
// updateCritic(engine: NativeEngine, batch: NativeValueBatch, mini: NativeMiniBatches,
//              loss: NativeValueLossOptions): Promise<NativeMetrics[]>
Napi::Value update_critic(const Napi::CallbackInfo& info) {
  const Arguments args(info, "updateCritic");
  ValueBatch batch = read_value_batch(args(1, "batch"));
  MiniBatches mini = read_mini_batches(args(2, "mini"), batch.tokens.size());
  return call_engine(
      info, args(0, "engine"),
      [batch = std::move(batch), mini = std::move(mini), loss = read_value_loss_options(args(3, "loss"))](
          Engine& engine) { return engine.update_critic(batch, mini, loss); },
      write_metrics_list);
}

// MetricsList Engine::update_sft(const SftBatch&, const MiniBatches&, const SftLossOptions&)
// updateSft(engine: NativeEngine, batch: NativeSftBatch, mini: NativeMiniBatches,
//           loss: NativeSftLossOptions): Promise<NativeMetrics[]>
Napi::Value update_sft(const Napi::CallbackInfo& info) {
  const Arguments args(info, "updateSft");
  SftBatch batch = read_sft_batch(args(1, "batch"));
  MiniBatches mini = read_mini_batches(args(2, "mini"), batch.tokens.size());
  return call_engine(
      info, args(0, "engine"),
      [batch = std::move(batch), mini = std::move(mini), loss = read_sft_loss_options(args(3, "loss"))](
          Engine& engine) { return engine.update_sft(batch, mini, loss); },
      write_metrics_list);
}

// int64_t Engine::optimizer_steps()
// optimizerSteps(engine: NativeEngine): Promise<number>
Napi::Value optimizer_steps(const Napi::CallbackInfo& info) {
  const Arguments args(info, "optimizerSteps");
  return call_engine(
      info, args(0, "engine"), [](Engine& engine) { return engine.optimizer_steps(); },
      [](Napi::Env env, int64_t steps) { return write_number(env, static_cast<double>(steps)); });
}

// int64_t Engine::schedule_steps()
// scheduleSteps(engine: NativeEngine): Promise<number>
Napi::Value schedule_steps(const Napi::CallbackInfo& info) {
  const Arguments args(info, "scheduleSteps");
  return call_engine(
      info, args(0, "engine"), [](Engine& engine) { return engine.schedule_steps(); },
      [](Napi::Env env, int64_t steps) { return write_number(env, static_cast<double>(steps)); });
}

// void Engine::set_steps(int64_t, int64_t)
// setSteps(engine: NativeEngine, optimizerSteps: number, scheduleSteps: number): Promise<null>
Napi::Value set_steps(const Napi::CallbackInfo& info) {
  const Arguments args(info, "setSteps");
  return call_engine(
      info, args(0, "engine"),
      [optimizer = args(1, "optimizerSteps").count(),
       schedule = args(2, "scheduleSteps").count()](Engine& engine) {
        engine.set_steps(optimizer, schedule);
        return Nothing{};
      },
      write_nothing);
}

// double Engine::learning_rate()
// learningRate(engine: NativeEngine): Promise<number>
Napi::Value learning_rate(const Napi::CallbackInfo& info) {
  const Arguments args(info, "learningRate");
  return call_engine(
      info, args(0, "engine"), [](Engine& engine) { return engine.learning_rate(); }, write_number);
}

// void Engine::abort(const std::string&), from the JS thread
// abort(engine: NativeEngine, reason: string): void
Napi::Value abort(const Napi::CallbackInfo& info) {
  const Arguments args(info, "abort");
  open_slot(args(0, "engine"))->abort(args(1, "reason").string());
  return info.Env().Undefined();
}

// Engine::~Engine(), behind the work queued before
// close(engine: NativeEngine): Promise<null>
Napi::Value close(const Napi::CallbackInfo& info) {
  const Arguments args(info, "close");
  const auto slot = any_slot(args(0, "engine"));
  slot->close();
  return Environment::of(info.Env())
      .call(
          info.Env(),
          [slot] {
            slot->destroy();
            return Nothing{};
          },
          write_nothing);
}

}  // namespace

void export_engine(Napi::Env env, Napi::Object exports) {
  export_async<create_engine>(env, exports, "createEngine");
  export_async<parameters>(env, exports, "parameters");
  export_async<import_tensors>(env, exports, "importTensors");
  export_async<export_tensors>(env, exports, "exportTensors");
  export_async<export_weights>(env, exports, "exportWeights");
  export_async<import_weights>(env, exports, "importWeights");
  export_async<get_tensor>(env, exports, "getTensor");
  export_async<state_bytes>(env, exports, "stateBytes");
  export_async<bytes_sent>(env, exports, "bytesSent");
  export_async<offload>(env, exports, "offload");
  export_async<onload>(env, exports, "onload");
  export_async<compute_log_prob>(env, exports, "computeLogProb");
  export_async<update_policy>(env, exports, "updatePolicy");
  export_async<compute_values>(env, exports, "computeValues");
  export_async<update_critic>(env, exports, "updateCritic");
  export_async<update_sft>(env, exports, "updateSft");
  export_async<optimizer_steps>(env, exports, "optimizerSteps");
  export_async<schedule_steps>(env, exports, "scheduleSteps");
  export_async<set_steps>(env, exports, "setSteps");
  export_async<learning_rate>(env, exports, "learningRate");
  export_sync<abort>(env, exports, "abort");
  export_async<close>(env, exports, "close");
}

}  // namespace troupe::binding
