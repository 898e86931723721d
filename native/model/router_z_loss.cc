// Squares of log-sum-exps, and their gradient.
#include "model/router_z_loss.h"

#include <ATen/ATen.h>

#include "base/simulated.h"
#include "comm/communicator.h"

namespace troupe {

RouterZLoss::RouterZLoss(double coefficient, at::Device device)
    : coefficient_(coefficient),
      sum_(at::zeros({1},
                     at::TensorOptions().dtype(at::kDouble).device(device.is_meta() ? at::kCPU : device))) {}

void RouterZLoss::begin(double tokens) {
  tokens_ = tokens;
  sum_.zero_();
}

void RouterZLoss::backward(const at::Tensor& logits, const at::Tensor& tokens, const at::Tensor& d_logits) {
  const at::Tensor wide = logits.to(at::kFloat);
  const at::Tensor log_sums = at::logsumexp(wide, -1);
  if (!simulated(logits)) sum_.add_(at::dot(log_sums.to(at::kDouble).square(), tokens.to(at::kDouble)));
  const at::Tensor by_log_sum = log_sums * tokens * (2 * coefficient_ / tokens_);
  d_logits.add_(at::softmax(wide, -1).mul_(by_log_sum.unsqueeze(1)));
}

void RouterZLoss::sum(Communicator& all) {
  if (all.size() > 1) all.all_reduce(sum_, ReduceOp::kSum, {"update", "z-loss of routers"});
}

double RouterZLoss::value() const {
  return tokens_ == 0 ? 0 : sum_.item<double>() / tokens_;
}

}  // namespace troupe
