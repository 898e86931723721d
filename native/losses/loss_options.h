// What a caller says about the loss of an update.
#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <string>

namespace troupe {

struct PolicyLossOptions {
  std::string mode = "vanilla";
  double clip_ratio_low = 0.2;
  double clip_ratio_high = 0.2;
  double clip_ratio_c = 3.0;
  std::string aggregation = "token-mean";
  double scale_factor = 0;  // seq-mean-token-sum-norm divides by it; the caller resolves it
  double entropy_coeff = 0;
  bool use_kl_loss = false;
  double kl_loss_coef = 0.001;
  std::string kl_loss_type = "low_var_kl";
  std::map<std::string, double> extra;  // tau_pos, kl_cov_ratio, dro_beta, ...
};

// A loss that the caller computed at these log-probs, for the mode "linear".
struct GivenLoss {
  at::Tensor values;       // [sum R] float32: per-token loss
  at::Tensor by_log_prob;  // [sum R] float32: its derivative by the token's log-prob
  at::Tensor by_entropy;   // [sum R] float32: by the token's entropy, or undefined
};

struct ValueLossOptions {
  double clip_range = 0.5;
  std::string aggregation = "token-mean";
  double scale_factor = 0;
};

}  // namespace troupe
