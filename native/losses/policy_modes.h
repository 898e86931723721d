// The table of policy losses.
#pragma once

#include <functional>

#include "losses/aggregation.h"

// The policy losses by mode. All arrays are [N] float64 over the valid tokens.
namespace troupe::losses {

struct ModeInputs {
  const ValidTokens* tokens;  // may be null for token-local modes whose metrics are not asked for
  const PolicyLossOptions& options;
  double global_sequences;
  at::Tensor weights;    // of the tokens, in the mode's aggregation (mode_aggregation)
  at::Tensor log_probs;  // differentiable
  at::Tensor old_log_probs;
  at::Tensor advantages;
  at::Tensor is_weights;                       // or undefined
  at::Tensor given_values, given_by_log_prob;  // linear; else undefined
};

// Computed when called: they need the host, which a gradient alone need not wait for.
using LazyMetrics = std::function<Metrics()>;

struct ModeLoss {
  at::Tensor loss;      // scalar, aggregated, differentiable
  LazyMetrics metrics;  // while the inputs exist
};

// Modes, with the options of `extra` they read (default): vanilla, gspo, cispo, gpg,
// sapo (tau_pos 1, tau_neg 1.05), dppo_tv, dppo_kl, geo_mean, kl_cov (kl_cov_ratio 0.0002,
// ppo_kl_coef 0.1), clip_cov (clip_cov_ratio 0.0002, clip_cov_lb 1, clip_cov_ub 5), dro (dro_beta,
// needed), reinforce, linear (a loss that the caller computed). gspo and sapo always aggregate by
// seq-mean-token-mean, geo_mean by the mean over sequences. kl_cov and clip_cov rank the tokens
// given, so they alone depend on micro-batches.
// Token-local modes (is_token_local) work on any device.
ModeLoss mode_loss(PolicyMode mode, const ModeInputs& inputs);

// The aggregation by which a mode weighs its tokens: its own, or the one that was asked for.
Aggregation mode_aggregation(const PolicyLossOptions& options);

}  // namespace troupe::losses
