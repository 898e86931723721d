// The table of policy losses.
#pragma once

#include "losses/aggregation.h"

// The policy losses by mode name. All arrays are [N] float64 over the valid tokens.
namespace troupe::losses {

struct ModeInputs {
  const ValidTokens& tokens;
  const PolicyLossOptions& options;
  double global_sequences;
  at::Tensor log_probs;  // differentiable
  at::Tensor old_log_probs;
  at::Tensor advantages;
  at::Tensor is_weights;                       // or undefined
  at::Tensor given_values, given_by_log_prob;  // linear; else undefined
};

struct ModeLoss {
  at::Tensor loss;  // scalar, aggregated, differentiable
  Metrics metrics;
};

// Modes, with the options of `extra` they read (default): vanilla, gspo, cispo, gpg,
// sapo (tau_pos 1, tau_neg 1.05), dppo_tv, dppo_kl, geo_mean, kl_cov (kl_cov_ratio 0.0002,
// ppo_kl_coef 0.1), clip_cov (clip_cov_ratio 0.0002, clip_cov_lb 1, clip_cov_ub 5), dro (dro_beta,
// needed), reinforce, linear (a loss that the caller computed). gspo and sapo always aggregate by
// seq-mean-token-mean, geo_mean by the mean over sequences. kl_cov and clip_cov rank the tokens
// given, so they alone depend on micro-batches.
// Unknown mode: kInvalidArgument listing the known ones.
ModeLoss mode_loss(const std::string& mode, const ModeInputs& inputs);

}  // namespace troupe::losses
