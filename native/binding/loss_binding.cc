// The losses by themselves, for tests from JavaScript.
#include <ATen/ops/empty.h>

#include <algorithm>

#include "binding/batches.h"
#include "binding/binding.h"
#include "binding/environment.h"
#include "binding/errors.h"
#include "binding/options.h"
#include "binding/results.h"
#include "binding/tensors.h"
#include "losses/losses.h"

// The losses on arrays of the caller, without an engine: for study and tests.
namespace troupe::binding {

namespace {

constexpr const char* kPerToken = "one per response token";

at::Tensor to_int64(const at::Tensor& values) {
  at::Tensor wide = at::empty({values.numel()}, at::TensorOptions(at::kLong));
  std::copy_n(values.const_data_ptr<int32_t>(), values.numel(), wide.mutable_data_ptr<int64_t>());
  return wide;
}

losses::ResponseLayout read_layout(const Field& dto) {
  losses::ResponseLayout layout;
  const at::Tensor offsets = read_int32(dto["offsets"]);
  layout.mask = read_uint8(dto["responseMask"]);
  require_offsets(dto["offsets"], offsets, layout.mask.numel(), "the length of responseMask");
  layout.offsets = to_int64(offsets);
  layout.global_tokens = dto["globalTokens"].number();
  layout.global_sequences = dto["globalSequences"].number();
  return layout;
}

at::Tensor read_per_token(const Field& field, const losses::ResponseLayout& layout) {
  at::Tensor tensor = read_float32(field);
  require_length(field, tensor, layout.mask.numel(), kPerToken);
  return tensor;
}

at::Tensor read_per_token_or_none(const Field& field, const losses::ResponseLayout& layout) {
  return field.is_null() ? at::Tensor() : read_per_token(field, layout);
}

losses::PolicyInputs read_policy_inputs(const Field& dto) {
  losses::PolicyInputs inputs;
  inputs.layout = read_layout(dto);
  inputs.log_probs = read_per_token(dto["logProbs"], inputs.layout);
  inputs.entropy = read_per_token_or_none(dto["entropy"], inputs.layout);
  inputs.old_log_probs = read_per_token(dto["oldLogProbs"], inputs.layout);
  inputs.advantages = read_per_token(dto["advantages"], inputs.layout);
  inputs.ref_log_probs = read_per_token_or_none(dto["refLogProbs"], inputs.layout);
  inputs.rollout_is_weights = read_per_token_or_none(dto["rolloutIsWeights"], inputs.layout);
  inputs.given = read_given_loss(dto["givenLoss"], inputs.layout.mask.numel());
  return inputs;
}

losses::ValueInputs read_value_inputs(const Field& dto) {
  losses::ValueInputs inputs;
  inputs.layout = read_layout(dto);
  inputs.predictions = read_per_token(dto["predictions"], inputs.layout);
  inputs.values = read_per_token(dto["values"], inputs.layout);
  inputs.returns = read_per_token(dto["returns"], inputs.layout);
  return inputs;
}

Napi::Value write_policy_loss(Napi::Env env, const losses::PolicyLoss& loss) {
  auto dto = Napi::Object::New(env);
  dto.Set("loss", loss.loss);
  dto.Set("gradLogProbs", write_float32(env, loss.grad_log_probs));
  dto.Set("gradEntropy", write_float32(env, loss.grad_entropy));
  dto.Set("metrics", write_metrics(env, loss.metrics));
  return dto;
}

Napi::Value write_value_loss(Napi::Env env, const losses::ValueLoss& loss) {
  auto dto = Napi::Object::New(env);
  dto.Set("loss", loss.loss);
  dto.Set("gradPredictions", write_float32(env, loss.grad_predictions));
  dto.Set("metrics", write_metrics(env, loss.metrics));
  return dto;
}

// losses::PolicyLoss losses::policy_loss(const PolicyInputs&, const PolicyLossOptions&)
// policyLoss(inputs: NativePolicyLossInputs, options: NativePolicyLossOptions):
// Promise<NativePolicyLossResult>
Napi::Value policy_loss(const Napi::CallbackInfo& info) {
  const Arguments args(info, "policyLoss");
  return Environment::of(info.Env())
      .call(
          info.Env(),
          [inputs = read_policy_inputs(args(0, "inputs")),
           options = read_policy_loss_options(args(1, "options"))] {
            return losses::policy_loss(inputs, options);
          },
          write_policy_loss);
}

// losses::ValueLoss losses::value_loss(const ValueInputs&, const ValueLossOptions&)
// valueLoss(inputs: NativeValueLossInputs, options: NativeValueLossOptions): Promise<NativeValueLossResult>
Napi::Value value_loss(const Napi::CallbackInfo& info) {
  const Arguments args(info, "valueLoss");
  return Environment::of(info.Env())
      .call(
          info.Env(),
          [inputs = read_value_inputs(args(0, "inputs")),
           options = read_value_loss_options(args(1, "options"))] {
            return losses::value_loss(inputs, options);
          },
          write_value_loss);
}

}  // namespace

void export_losses(Napi::Env env, Napi::Object exports) {
  export_async<policy_loss>(env, exports, "policyLoss");
  export_async<value_loss>(env, exports, "valueLoss");
}

}  // namespace troupe::binding
