// The clipped value loss.
#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/autograd.h>

#include "losses/aggregation.h"
#include "losses/losses.h"

namespace troupe::losses {

// PPO's clipped value loss: 0.5 agg(max((v - R)^2, (clip(v, V +- c) - R)^2)).
ValueLoss value_loss(const ValueInputs& inputs, const ValueLossOptions& options) {
  const at::AutoGradMode with_grad(true);
  const ValidTokens tokens(inputs.layout);
  const at::Tensor predictions = tokens.pick(inputs.predictions, "predictions").detach().requires_grad_();
  const at::Tensor values = tokens.pick(inputs.values, "values");
  const at::Tensor returns = tokens.pick(inputs.returns, "returns");
  const at::Tensor clipped =
      at::maximum(at::minimum(predictions, values + options.clip_range), values - options.clip_range);
  const at::Tensor free_error = (predictions - returns).square();
  const at::Tensor clipped_error = (clipped - returns).square();
  const at::Tensor loss = 0.5 * (at::maximum(free_error, clipped_error) *
                                 tokens.weights(options.aggregation, options.scale_factor))
                                    .sum();

  ValueLoss result;
  result.loss = loss.item<double>();
  result.grad_predictions = tokens.to_responses(torch::autograd::grad({loss}, {predictions})[0]);
  result.metrics = {{"vf_loss", result.loss},
                    {"vf_clipfrac", tokens.mean(clipped_error.gt(free_error))},
                    {"vpred_mean", tokens.mean(predictions)},
                    {"loss", result.loss}};
  return result;
}

SftLoss sft_loss(const ResponseLayout& layout, const at::Tensor& log_probs) {
  const ValidTokens tokens(layout);
  const at::Tensor weights = tokens.weights(Aggregation::kTokenMean, 0);
  SftLoss result;
  result.loss = -(tokens.pick(log_probs, "log_probs") * weights).sum().item<double>();
  result.grad_log_probs = tokens.to_responses(-weights);
  result.metrics = {{"loss", result.loss}};
  return result;
}

}  // namespace troupe::losses
