// Results of the verbs as JavaScript objects.
#include "binding/results.h"

#include "binding/tensors.h"

namespace troupe::binding {

namespace {

template <typename T, typename Write>
Napi::Value write_array(Napi::Env env, const std::vector<T>& items, Write write) {
  auto array = Napi::Array::New(env, items.size());
  for (size_t i = 0; i < items.size(); ++i) array.Set(static_cast<uint32_t>(i), write(env, items[i]));
  return array;
}

Napi::Object write_held_bytes(Napi::Env env, const HeldBytes& bytes) {
  auto dto = Napi::Object::New(env);
  dto.Set("parameters", static_cast<double>(bytes.parameters));
  dto.Set("gradients", static_cast<double>(bytes.gradients));
  dto.Set("moments", static_cast<double>(bytes.moments));
  return dto;
}

}  // namespace

Napi::Value write_nothing(Napi::Env env, Nothing) {
  return env.Null();
}

Napi::Value write_number(Napi::Env env, double value) {
  return Napi::Number::New(env, value);
}

Napi::Value write_metrics(Napi::Env env, const Metrics& metrics) {
  auto record = Napi::Object::New(env);
  for (const auto& [name, value] : metrics) record.Set(name, value);
  return record;
}

Napi::Value write_metrics_list(Napi::Env env, const MetricsList& list) {
  return write_array(env, list, write_metrics);
}

Napi::Value write_state_bytes(Napi::Env env, const StateBytes& bytes) {
  Napi::Object dto = write_held_bytes(env, bytes);
  dto.Set("host", write_held_bytes(env, bytes.host));
  return dto;
}

Napi::Value write_exported_weights(Napi::Env env, const ExportedWeights& weights) {
  auto dto = Napi::Object::New(env);
  dto.Set("bytes", write_uint8(env, weights.bytes));
  dto.Set("version", static_cast<double>(weights.version));
  return dto;
}

Napi::Value write_log_probs(Napi::Env env, const LogProbResult& result) {
  auto dto = Napi::Object::New(env);
  dto.Set("logProbs", write_float32(env, result.log_probs));
  dto.Set("entropy", write_float32(env, result.entropy));
  dto.Set("sumPiSquared", write_float32(env, result.sum_pi_squared));
  dto.Set("routedExperts", write_uint8(env, result.routed_experts));
  dto.Set("topLogProbs", write_float32(env, result.top_log_probs));
  dto.Set("topIds", write_int32(env, result.top_ids));
  return dto;
}

Napi::Value write_parameters(Napi::Env env, const std::vector<ParameterInfo>& parameters) {
  return write_array(env, parameters, [](Napi::Env env, const ParameterInfo& info) -> Napi::Value {
    auto dto = Napi::Object::New(env);
    dto.Set("name", info.name);
    dto.Set("shape", write_array(env, info.shape, [](Napi::Env env, int64_t size) -> Napi::Value {
              return Napi::Number::New(env, static_cast<double>(size));
            }));
    dto.Set("matrix", info.matrix);
    return dto;
  });
}

}  // namespace troupe::binding
