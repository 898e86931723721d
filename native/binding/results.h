// Results to JavaScript.
#pragma once

#include <variant>
#include <vector>

#include "binding/setup.h"
#include "engine/engine.h"

// The structs of engine/engine.h -> result DTOs of ts/native/bridge.ts.
namespace troupe::binding {

using Nothing = std::monostate;  // the result of a verb that has none
Napi::Value write_nothing(Napi::Env env, Nothing);
Napi::Value write_number(Napi::Env env, double value);

Napi::Value write_metrics(Napi::Env env, const Metrics& metrics);
Napi::Value write_metrics_list(Napi::Env env, const MetricsList& list);
Napi::Value write_state_bytes(Napi::Env env, const StateBytes& bytes);
Napi::Value write_exported_weights(Napi::Env env, const ExportedWeights& weights);
Napi::Value write_log_probs(Napi::Env env, const LogProbResult& result);
Napi::Value write_parameters(Napi::Env env, const std::vector<ParameterInfo>& parameters);

}  // namespace troupe::binding
