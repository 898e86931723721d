// The names of losses, aggregations and KL estimators.
#include "losses/loss_options.h"

#include <utility>

#include "base/error.h"

namespace troupe {

namespace {

template <typename Value>
using Names = std::pair<const char*, Value>;

constexpr Names<PolicyMode> kModes[] = {
    {"vanilla", PolicyMode::kVanilla}, {"gspo", PolicyMode::kGspo},
    {"cispo", PolicyMode::kCispo},     {"gpg", PolicyMode::kGpg},
    {"sapo", PolicyMode::kSapo},       {"dppo_tv", PolicyMode::kDppoTv},
    {"dppo_kl", PolicyMode::kDppoKl},  {"geo_mean", PolicyMode::kGeoMean},
    {"kl_cov", PolicyMode::kKlCov},    {"clip_cov", PolicyMode::kClipCov},
    {"dro", PolicyMode::kDro},         {"reinforce", PolicyMode::kReinforce},
    {"linear", PolicyMode::kLinear},
};
constexpr Names<Aggregation> kAggregations[] = {
    {"token-mean", Aggregation::kTokenMean},
    {"token-sum", Aggregation::kTokenSum},
    {"seq-mean-token-sum", Aggregation::kSeqMeanTokenSum},
    {"seq-mean-token-mean", Aggregation::kSeqMeanTokenMean},
    {"seq-mean-token-sum-norm", Aggregation::kSeqMeanTokenSumNorm},
};
constexpr Names<KlEstimator> kEstimators[] = {
    {"kl", KlEstimator::kK1},  {"k1", KlEstimator::kK1}, {"abs", KlEstimator::kAbs},
    {"mse", KlEstimator::kK2}, {"k2", KlEstimator::kK2}, {"low_var_kl", KlEstimator::kK3},
    {"k3", KlEstimator::kK3},
};

template <typename Value, size_t size>
const Value* find(const Names<Value> (&all)[size], const std::string& name) {
  for (const auto& [known, value] : all)
    if (name == known) return &value;
  return nullptr;
}

template <typename Value, size_t size>
Value parse(const Names<Value> (&all)[size], const char* what, const std::string& name) {
  if (const Value* value = find(all, name)) return *value;
  std::string known;
  for (const auto& entry : all) known += std::string(known.empty() ? "" : ", ") + entry.first;
  fail(ErrorCode::kInvalidArgument, "[losses] unknown ", what, " '", name, "'; known: ", known);
}

template <typename Value, size_t size>
const char* name_in(const Names<Value> (&all)[size], Value value) {
  for (const auto& entry : all)
    if (entry.second == value) return entry.first;
  fail(ErrorCode::kInternal, "[losses] no name for ", static_cast<int>(value));
}

}  // namespace

PolicyMode parse_policy_mode(const std::string& name) {
  return parse(kModes, "policy loss", name);
}

Aggregation parse_aggregation(const std::string& name) {
  return parse(kAggregations, "loss aggregation", name);
}

KlPenalty parse_kl_penalty(const std::string& name) {
  const bool plus = name.ends_with('+');
  if (const KlEstimator* value = find(kEstimators, plus ? name.substr(0, name.size() - 1) : name))
    return {*value, plus};
  fail(ErrorCode::kInvalidArgument, "[losses] unknown KL penalty '", name,
       "'; known: kl (k1), abs, mse (k2), low_var_kl (k3), each also with '+' (the gradient of k2)");
}

const char* name_of(PolicyMode mode) {
  return name_in(kModes, mode);
}

const char* name_of(Aggregation aggregation) {
  return name_in(kAggregations, aggregation);
}

}  // namespace troupe
