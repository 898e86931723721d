// What a caller says about the loss of an update.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <string>

namespace troupe {

// See losses/policy_modes.h for each.
enum class PolicyMode {
  kVanilla,
  kGspo,
  kCispo,
  kGpg,
  kSapo,
  kDppoTv,
  kDppoKl,
  kGeoMean,
  kKlCov,
  kClipCov,
  kDro,
  kReinforce,
  kLinear,
};
// How the losses of tokens become one number: see losses::aggregation_weights.
enum class Aggregation { kTokenMean, kTokenSum, kSeqMeanTokenSum, kSeqMeanTokenMean, kSeqMeanTokenSumNorm };
// Of KL(policy || reference): see losses::kl_penalty.
enum class KlEstimator { kK1, kAbs, kK2, kK3 };
struct KlPenalty {
  KlEstimator value = KlEstimator::kK3;
  bool gradient_of_k2 = false;  // the value as it is, with the gradient of k2
};

// verl's names, which these three and the messages know alone. kInvalidArgument listing the known ones.
PolicyMode parse_policy_mode(const std::string& name);
Aggregation parse_aggregation(const std::string& name);
// kl (k1) | abs | mse (k2) | low_var_kl (k3), each also with a "+" behind it (gradient_of_k2).
KlPenalty parse_kl_penalty(const std::string& name);
const char* name_of(PolicyMode mode);
const char* name_of(Aggregation aggregation);

// What a policy learns from a teacher beside, or in place of, its own loss: see losses/distillation.h.
struct DistillationOptions {
  KlEstimator estimator = KlEstimator::kK3;  // of the sampled tokens; with top_k 0
  int64_t top_k = 0;                         // > 0: forward KL over so many tokens of the teacher's
  double coef = 1;
  double max_loss = std::numeric_limits<double>::infinity();       // of a token, to either side
  double min_log_prob = -std::numeric_limits<double>::infinity();  // with top_k
  bool task_rewards = true;      // false: the policy's own loss is reported and has no gradient
  bool policy_gradient = false;  // minus the loss of a token is an advantage of the vanilla policy loss
  double clip_ratio_low = 0.2;   // with policy_gradient
  double clip_ratio_high = 0.2;
};

// What layers that predict further tokens are trained with: engine/prediction_loss.h.
struct PredictionOptions {
  double coef = 0.1;    // mtp_loss_scaling_factor, of the mean over the layers
  bool detach = false;  // they alone learn from it: neither the decoder nor the embeddings do
};

struct PolicyLossOptions {
  PolicyMode mode = PolicyMode::kVanilla;
  double clip_ratio_low = 0.2;
  double clip_ratio_high = 0.2;
  double clip_ratio_c = 3.0;
  Aggregation aggregation = Aggregation::kTokenMean;
  double scale_factor = 0;  // seq-mean-token-sum-norm divides by it; the caller resolves it
  double entropy_coeff = 0;
  bool use_kl_loss = false;
  double kl_loss_coef = 0.001;
  KlPenalty kl_loss_type;
  // Of a mixture of experts: weights of ExpertLoad::balance_loss and of RouterZLoss.
  double router_aux_loss_coef = 0;
  double router_z_loss_coef = 0;
  std::map<std::string, double> extra;  // tau_pos, kl_cov_ratio, dro_beta, ...
  std::optional<DistillationOptions> distillation;
};

// A loss that the caller computed at these log-probs, for PolicyMode::kLinear.
struct GivenLoss {
  at::Tensor values;       // [sum R] float32: per-token loss
  at::Tensor by_log_prob;  // [sum R] float32: its derivative by the token's log-prob
  at::Tensor by_entropy;   // [sum R] float32: by the token's entropy, or undefined
};

struct ValueLossOptions {
  double clip_range = 0.5;
  Aggregation aggregation = Aggregation::kTokenMean;
  double scale_factor = 0;
  double router_z_loss_coef = 0;  // as in PolicyLossOptions
};

struct SftLossOptions {
  double router_z_loss_coef = 0;  // as in PolicyLossOptions
};

}  // namespace troupe
