// linear_log_prob and the value head by themselves, for tests from JavaScript.
#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros.h>

#include <chrono>

#include "base/error.h"
#include "base/parallel.h"
#include "binding/binding.h"
#include "binding/environment.h"
#include "binding/tensors.h"
#include "engine/engine.h"
#include "kernels/linear_log_prob.h"
#include "model/value_head.h"

// The LM head on arrays of the caller, without an engine: for study, tests and benchmarks.
namespace troupe::binding {

namespace {

struct HeadInputs {
  at::Tensor hidden, weight;  // [N, H], [V, H]
  at::Tensor targets;         // [N] int32
  double temperature = 1;
  int64_t num_threads = 0;
  at::Tensor by_log_prob, by_entropy;  // [N] loss gradients, or undefined: forward only
};

struct HeadResult {
  ops::LogProbRows rows;
  at::Tensor by_hidden, by_weight;
  double seconds = 0;
};

at::Tensor read_matrix(const Field& field, int64_t width, const at::TensorOptions& options) {
  const at::Tensor values = read_float32(field);
  if (width <= 0 || values.numel() == 0 || values.numel() % width != 0)
    field.mismatch("rows of hiddenSize numbers");
  return values.view({values.numel() / width, width}).to(options);
}

HeadInputs read_inputs(const Field& dto) {
  HeadInputs inputs;
  const int64_t width = dto["hiddenSize"].integer();
  const bool fp32 = dto["dtype"].word({"float32", "bfloat16"}) == 0;
  // Not TensorOptions::device(name), which is noexcept: a name that is none would end the process.
  const at::Device device = parse_device(dto["device"].string());
  const auto options = at::TensorOptions(fp32 ? at::kFloat : at::kBFloat16).device(device);
  inputs.hidden = read_matrix(dto["hidden"], width, options);
  inputs.weight = read_matrix(dto["weight"], width, options);
  const int64_t count = inputs.hidden.size(0);
  inputs.targets = read_int32(dto["targets"]);
  require_length(dto["targets"], inputs.targets, count, "one per row");
  const int32_t* ids = inputs.targets.const_data_ptr<int32_t>();
  for (int64_t i = 0; i < count; ++i) {
    if (ids[i] < 0 || ids[i] >= inputs.weight.size(0)) dto["targets"].mismatch("ids of rows of weight");
  }
  inputs.temperature = dto["temperature"].number();
  if (!(inputs.temperature > 0)) dto["temperature"].mismatch("a number > 0");
  inputs.num_threads = dto["numThreads"].count();
  if (dto["byEntropy"].is_null() != dto["byLogProb"].is_null())
    dto["byEntropy"].mismatch("an array where byLogProb is one, or null for both");
  if (!dto["byLogProb"].is_null()) {
    inputs.by_log_prob = read_float32(dto["byLogProb"]);
    inputs.by_entropy = read_float32(dto["byEntropy"]);
    require_length(dto["byLogProb"], inputs.by_log_prob, count, "one per row");
    require_length(dto["byEntropy"], inputs.by_entropy, count, "one per row");
  }
  return inputs;
}

HeadResult run(const HeadInputs& inputs) {
  set_num_threads(inputs.num_threads);
  const int64_t count = inputs.hidden.size(0);
  const int64_t rows = round_up(count, kRowTile);
  const at::Device device = inputs.hidden.device();
  const at::Tensor hidden = at::zeros({rows, inputs.hidden.size(1)}, inputs.hidden.options());
  hidden.narrow(0, 0, count).copy_(inputs.hidden);
  const at::Tensor targets = pad_rows(inputs.targets, rows).to(device);
  const auto fp32 = inputs.hidden.options().dtype(at::kFloat);
  const auto column = [&] { return at::empty({rows}, fp32); };
  HeadResult result{{column(), column(), column(), {}}, {}, {}, 0};
  const ops::LogProbSpec spec{inputs.temperature, 0};
  at::Tensor by_log_prob, by_entropy;
  if (inputs.by_log_prob.defined()) {
    by_log_prob = pad_rows(inputs.by_log_prob, rows).to(device);
    by_entropy = pad_rows(inputs.by_entropy, rows).to(device);
    result.by_hidden = at::empty_like(hidden);
    result.by_weight = at::zeros(inputs.weight.sizes(), fp32);
  }
  const auto start = std::chrono::steady_clock::now();
  if (!by_log_prob.defined()) {
    ops::linear_log_prob_forward(spec, hidden, inputs.weight, targets, result.rows);
  } else {
    ops::linear_log_prob_backward(
        spec, hidden, inputs.weight, targets, result.rows, true,
        [&](int64_t begin, int64_t end, const at::Tensor& grad_log_probs, const at::Tensor& grad_entropy) {
          grad_log_probs.copy_(by_log_prob.narrow(0, begin, end - begin));
          grad_entropy.copy_(by_entropy.narrow(0, begin, end - begin));
        },
        result.by_hidden, result.by_weight);
  }
  const auto kept = [&](const at::Tensor& tensor) {
    return tensor.defined() ? tensor.narrow(0, 0, count).to(at::kCPU, at::kFloat).reshape({-1}).contiguous()
                            : tensor;
  };
  result.rows.log_probs = kept(result.rows.log_probs);  // a GPU is waited for here
  result.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  result.rows.entropy = kept(result.rows.entropy);
  result.by_hidden = kept(result.by_hidden);
  if (result.by_weight.defined()) result.by_weight = result.by_weight.cpu().reshape({-1});
  return result;
}

Napi::Value write_result(Napi::Env env, const HeadResult& result) {
  auto dto = Napi::Object::New(env);
  dto.Set("logProbs", write_float32(env, result.rows.log_probs));
  dto.Set("entropy", write_float32(env, result.rows.entropy));
  dto.Set("byHidden", write_float32(env, result.by_hidden));
  dto.Set("byWeight", write_float32(env, result.by_weight));
  dto.Set("seconds", result.seconds);
  return dto;
}

// ops::linear_log_prob_forward or, given the gradients of a loss by its outputs,
// ops::linear_log_prob_backward linearLogProb(inputs: NativeHeadInputs): Promise<NativeHeadResult>
Napi::Value linear_log_prob(const Napi::CallbackInfo& info) {
  const Arguments args(info, "linearLogProb");
  return Environment::of(info.Env())
      .call(
          info.Env(), [inputs = read_inputs(args(0, "inputs"))] { return run(inputs); }, write_result);
}

}  // namespace

void export_head(Napi::Env env, Napi::Object exports) {
  export_async<linear_log_prob>(env, exports, "linearLogProb");
}

}  // namespace troupe::binding
