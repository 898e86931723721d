// Small inputs of losses, written by hand and at random.
#pragma once

#include <ATen/ATen.h>

#include <limits>
#include <string>
#include <vector>

#include "losses/losses.h"

namespace troupe::test {

using namespace troupe::losses;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

inline at::Tensor floats(std::vector<float> values) {
  return at::tensor(values, at::kFloat);
}
inline double at_index(const at::Tensor& x, int64_t i) {
  return x[i].item<double>();
}

// Four sequences of 3, 0, 2 and 1 tokens; one masked token, the last sequence fully masked.
inline ResponseLayout small_layout() {
  return {at::tensor(std::vector<int64_t>{0, 3, 3, 5, 6}, at::kLong),
          at::tensor(std::vector<uint8_t>{1, 0, 1, 1, 1, 0}, at::kByte), 4, 4};
}

// Random inputs over `lengths`, NaN wherever the mask is 0.
inline PolicyInputs random_inputs(const std::vector<int64_t>& lengths) {
  std::vector<int64_t> offsets{0};
  for (const int64_t length : lengths) offsets.push_back(offsets.back() + length);
  const int64_t total = offsets.back();
  PolicyInputs in;
  in.layout.offsets = at::tensor(offsets, at::kLong);
  in.layout.mask = at::rand({total}).lt(0.8).to(at::kByte);
  in.layout.global_tokens = in.layout.mask.sum().item<double>();
  in.layout.global_sequences = static_cast<double>(lengths.size());
  const auto column = [&](double scale) {
    return (at::randn({total}) * scale).masked_fill(in.layout.mask.eq(0), kNan);
  };
  in.old_log_probs = column(0.5) - 1.5;
  in.log_probs = in.old_log_probs + column(0.4);
  in.advantages = column(1);
  in.ref_log_probs = in.old_log_probs + column(0.3);
  in.entropy = column(1).abs();
  in.rollout_is_weights = column(0.2).exp();
  return in;
}

inline PolicyLossOptions options_for(const std::string& mode, const std::string& aggregation = "token-mean") {
  PolicyLossOptions options;
  options.mode = parse_policy_mode(mode);
  options.aggregation = parse_aggregation(aggregation);
  options.scale_factor = 7;
  options.clip_ratio_low = 0.2;
  options.clip_ratio_high = 0.3;
  options.extra = {{"dro_beta", 0.3}, {"clip_cov_ratio", 0.2}, {"clip_cov_lb", 0.01}, {"kl_cov_ratio", 0.2}};
  return options;
}

inline const std::vector<std::string> kModes{"vanilla", "gspo",     "cispo",   "gpg",
                                             "sapo",    "dppo_tv",  "dppo_kl", "geo_mean",
                                             "kl_cov",  "clip_cov", "dro",     "reinforce"};
inline const std::vector<std::string> kAggregations{"token-mean", "token-sum", "seq-mean-token-sum",
                                                    "seq-mean-token-mean", "seq-mean-token-sum-norm"};

}  // namespace troupe::test
