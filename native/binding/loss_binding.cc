// The losses by themselves, for tests from JavaScript.
#include <ATen/ATen.h>

#include <algorithm>
#include <utility>

#include "binding/batches.h"
#include "binding/binding.h"
#include "binding/environment.h"
#include "binding/errors.h"
#include "binding/options.h"
#include "binding/results.h"
#include "binding/tensors.h"
#include "losses/distillation.h"
#include "losses/losses.h"
#include "losses/token_gradients.h"

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

// Rows of k values, one row per response token.
at::Tensor in_rows(const Field& field, const at::Tensor& flat, int64_t rows, int64_t k) {
  require_length(field, flat, rows * k, "as many per response token as the distillation compares");
  return flat.view({rows, k});
}

// The inputs of a distillation with top_k that an engine takes from its head.
struct StudentTop {
  at::Tensor log_probs, among_top;  // undefined: there are none
};

StudentTop read_student_top(const Field& dto, int64_t rows, int64_t k) {
  if (dto.is_null()) return {};
  if (k == 0) dto.mismatch("null, because no distillation with topK compares these tokens");
  StudentTop top;
  top.log_probs = in_rows(dto["logProbs"], read_float32(dto["logProbs"]), rows, k);
  top.among_top = in_rows(dto["amongTop"], read_uint8(dto["amongTop"]), rows, k).ne(0);
  return top;
}

struct PolicyLossInputs {
  losses::PolicyInputs policy;
  StudentTop student;
};

PolicyLossInputs read_policy_inputs(const Field& dto, const PolicyLossOptions& options) {
  losses::PolicyInputs inputs;
  inputs.layout = read_layout(dto);
  inputs.log_probs = read_per_token(dto["logProbs"], inputs.layout);
  inputs.entropy = read_per_token_or_none(dto["entropy"], inputs.layout);
  inputs.old_log_probs = read_per_token(dto["oldLogProbs"], inputs.layout);
  inputs.advantages = read_per_token(dto["advantages"], inputs.layout);
  inputs.ref_log_probs = read_per_token_or_none(dto["refLogProbs"], inputs.layout);
  inputs.rollout_is_weights = read_per_token_or_none(dto["rolloutIsWeights"], inputs.layout);
  inputs.given = read_given_loss(dto["givenLoss"], inputs.layout.mask.numel());
  const int64_t rows = inputs.layout.mask.numel(), k = options.distillation ? options.distillation->top_k : 0;
  const Field teacher = dto["teacherLogProbs"];
  if (!dto["teacherLogProbs"].is_null())
    inputs.teacher_log_probs =
        in_rows(teacher, read_float32(dto["teacherLogProbs"]), rows, std::max<int64_t>(k, 1));
  return {inputs, read_student_top(dto["studentTop"], rows, k)};
}

losses::ValueInputs read_value_inputs(const Field& dto) {
  losses::ValueInputs inputs;
  inputs.layout = read_layout(dto);
  inputs.predictions = read_per_token(dto["predictions"], inputs.layout);
  inputs.values = read_per_token(dto["values"], inputs.layout);
  inputs.returns = read_per_token(dto["returns"], inputs.layout);
  return inputs;
}

struct PolicyLossResult {
  losses::PolicyLoss loss;
  at::Tensor grad_top_log_probs;  // [n, top_k], undefined without them
};

PolicyLossResult policy_loss_of(losses::PolicyInputs inputs, const StudentTop& student,
                                const PolicyLossOptions& options) {
  if (!student.log_probs.defined()) return {losses::policy_loss(inputs, options), {}};
  const int64_t rows = inputs.layout.mask.numel();
  inputs.layout.mask_sums = losses::mask_sums(inputs.layout);
  const losses::TokenGradients::TopRows top{student.log_probs, student.among_top,
                                            at::empty_like(student.log_probs),
                                            at::empty({rows, losses::TopKlRow::kCount}, at::kFloat)};
  const at::Tensor by_log_prob = at::empty({rows}, at::kFloat);
  losses::TokenGradients(inputs, options, at::kCPU).by_log_probs(0, inputs.log_probs, by_log_prob, &top);
  inputs.distilled = top.distilled;
  losses::PolicyLoss loss = losses::policy_loss(inputs, options);
  loss.grad_log_probs = by_log_prob;
  return {std::move(loss), top.gradients};
}

Napi::Value write_policy_loss(Napi::Env env, const PolicyLossResult& result) {
  const losses::PolicyLoss& loss = result.loss;
  auto dto = Napi::Object::New(env);
  dto.Set("loss", loss.loss);
  dto.Set("gradLogProbs", write_float32(env, loss.grad_log_probs));
  dto.Set("gradEntropy", write_float32(env, loss.grad_entropy));
  dto.Set("gradTopLogProbs", write_float32(env, result.grad_top_log_probs));
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
  const PolicyLossOptions options = read_policy_loss_options(args(1, "options"));
  const PolicyLossInputs inputs = read_policy_inputs(args(0, "inputs"), options);
  return Environment::of(info.Env())
      .call(
          info.Env(), [inputs, options] { return policy_loss_of(inputs.policy, inputs.student, options); },
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
