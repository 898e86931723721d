// The policy losses themselves, by mode.
#include "losses/policy_modes.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <optional>

#include "base/error.h"

namespace troupe::losses {

namespace {

constexpr double kRatioBound = 20;  // on |log ratio|

double option(const ModeInputs& in, const char* name, double fallback) {
  const auto found = in.options.extra.find(name);
  return found == in.options.extra.end() ? fallback : found->second;
}

at::Tensor log_ratio(const ModeInputs& in) {
  return in.log_probs - in.old_log_probs;
}
at::Tensor bounded_log_ratio(const ModeInputs& in) {
  return log_ratio(in).clamp(-kRatioBound, kRatioBound);
}

at::Tensor clip(const ModeInputs& in, const at::Tensor& ratio) {
  return ratio.clamp(1 - in.options.clip_ratio_low, 1 + in.options.clip_ratio_high);
}

at::Tensor aggregate(const ModeInputs& in, const at::Tensor& per_token) {
  const at::Tensor weighted = in.is_weights.defined() ? per_token * in.is_weights : per_token;
  return (weighted * in.weights).sum();
}

double share(const ModeInputs& in, const at::Tensor& which) {
  return which.defined() ? in.tokens->mean(which) : 0.0;
}

LazyMetrics no_metrics() {
  return [] { return Metrics(); };
}

LazyMetrics ratio_metrics(const ModeInputs& in, const at::Tensor& delta, const at::Tensor& clipped,
                          const at::Tensor& clipped_lower) {
  return [=, &in]() -> Metrics {
    return {{"ppo_kl", in.tokens->mean(-delta)},
            {"pg_clipfrac", share(in, clipped)},
            {"pg_clipfrac_lower", share(in, clipped_lower)}};
  };
}

// PPO's clipped surrogate with the dual clip (Ye et al. 2020, arXiv:1912.09729): for A < 0 the loss is
// at most -A c.
ModeLoss vanilla(const ModeInputs& in) {
  require(in.options.clip_ratio_c > 1, ErrorCode::kInvalidArgument,
          "[losses] clip_ratio_c expected a value above 1 but got ", in.options.clip_ratio_c);
  const at::Tensor delta = bounded_log_ratio(in);
  const at::Tensor ratio = delta.exp();
  const at::Tensor unclipped = -in.advantages * ratio;
  const at::Tensor clipped = -in.advantages * clip(in, ratio);
  const at::Tensor upper = at::maximum(unclipped, clipped);
  const at::Tensor bound = -in.advantages * in.options.clip_ratio_c;
  const at::Tensor negative = in.advantages.lt(0);
  const at::Tensor loss = at::where(negative, at::minimum(bound, upper), upper);
  return {aggregate(in, loss),
          ratio_metrics(in, delta, clipped.gt(unclipped), upper.gt(bound).logical_and(negative))};
}

// Sequence-level ratio (Zheng et al. 2025, arXiv:2507.18071), its gradient through each token.
ModeLoss gspo(const ModeInputs& in) {
  const at::Tensor delta = log_ratio(in);
  const at::Tensor sequence_mean = (in.tokens->sums(delta.detach()) / in.tokens->mask_sums().clamp_min(1))
                                       .index_select(0, in.tokens->sequence());
  const at::Tensor ratio = (in.log_probs - in.log_probs.detach() + sequence_mean).clamp_max(10).exp();
  const at::Tensor unclipped = -in.advantages * ratio;
  const at::Tensor clipped = -in.advantages * clip(in, ratio);
  return {aggregate(in, at::maximum(unclipped, clipped)),
          ratio_metrics(in, delta, clipped.gt(unclipped), {})};
}

// Clipped importance weights as constants on the REINFORCE loss (MiniMax 2025, arXiv:2506.13585).
ModeLoss cispo(const ModeInputs& in) {
  const at::Tensor delta = bounded_log_ratio(in);
  const at::Tensor ratio = delta.detach().exp();
  const at::Tensor clipped = clip(in, ratio);
  return {aggregate(in, -clipped * in.advantages * in.log_probs),
          ratio_metrics(in, delta, ratio.ne(clipped), {})};
}

// A sigmoid gate instead of the clip (Gao et al. 2025, arXiv:2511.20347).
ModeLoss sapo(const ModeInputs& in) {
  const at::Tensor delta = bounded_log_ratio(in);
  const at::Tensor tau =
      at::where(in.advantages.gt(0), at::scalar_tensor(option(in, "tau_pos", 1.0), in.log_probs.options()),
                at::scalar_tensor(option(in, "tau_neg", 1.05), in.log_probs.options()));
  const at::Tensor gate = at::sigmoid(tau * (delta.exp() - 1)) * (4 / tau);
  return {aggregate(in, -gate * in.advantages), ratio_metrics(in, delta, {}, {})};
}

// Plain policy gradient (Chu et al. 2025, arXiv:2504.02546).
ModeLoss gpg(const ModeInputs& in) {
  return {aggregate(in, -in.log_probs * in.advantages), no_metrics()};
}

// Gradient only from tokens inside a trust region of the divergence between the two policies
// ("valid"), weighted by the truncated ratio as a constant.
ModeLoss divergence_ppo(const ModeInputs& in, const at::Tensor& valid) {
  const at::Tensor delta = bounded_log_ratio(in);
  const at::Tensor ratio = delta.detach().exp();
  const at::Tensor truncated = ratio.clamp_max(in.options.clip_ratio_c);
  const at::Tensor loss = -in.advantages * truncated * in.log_probs * valid.to(at::kDouble);
  return {aggregate(in, loss),
          ratio_metrics(in, delta, valid.logical_not(), ratio.gt(truncated).logical_and(valid))};
}

// Total variation of the sampled token.
ModeLoss dppo_tv(const ModeInputs& in) {
  const at::Tensor change = in.log_probs.detach().exp() - in.old_log_probs.exp();
  return divergence_ppo(in, at::where(in.advantages.gt(0), change.le(in.options.clip_ratio_high),
                                      change.ge(-in.options.clip_ratio_low)));
}

// KL divergence of the two Bernoulli distributions "this token or another".
ModeLoss dppo_kl(const ModeInputs& in) {
  const at::Tensor log_probs = in.log_probs.detach();
  const at::Tensor p = log_probs.exp();
  const at::Tensor old = in.old_log_probs.exp();
  const at::Tensor divergence =
      old * (in.old_log_probs - log_probs) + (1 - old) * ((1 - old + 1e-8) / (1 - p + 1e-8)).log();
  const at::Tensor up = divergence.le(in.options.clip_ratio_high).logical_or(p.le(old));
  const at::Tensor down = divergence.le(in.options.clip_ratio_low).logical_or(p.ge(old));
  return divergence_ppo(in, at::where(in.advantages.gt(0), up, down));
}

// Geometric mean of a sequence's ratios (Zhao et al. 2025, arXiv:2507.20673). As in verl, the mean over
// all sequences (here of the global mini-batch) whatever the aggregation, fully masked ones counting as 0.
ModeLoss geo_mean(const ModeInputs& in) {
  constexpr double kEpsilon = 1e-8;
  const at::Tensor delta = log_ratio(in);
  const at::Tensor sign = in.advantages.sign();
  const at::Tensor clamped = delta.clamp(-in.options.clip_ratio_low, in.options.clip_ratio_high);
  const at::Tensor kept = sign * at::minimum(sign * delta, sign * clamped);
  const at::Tensor lengths = in.tokens->mask_sums() + kEpsilon;
  const auto row_mean = [&](const at::Tensor& values) { return in.tokens->sums(values) / lengths; };
  at::Tensor loss = -row_mean(in.advantages) * row_mean(kept).exp();
  if (in.is_weights.defined()) loss = loss * row_mean((in.is_weights + 1e-10).log()).exp();
  const at::Tensor clipped = delta.ne(clamped);
  return {loss.sum() / in.global_sequences, ratio_metrics(in, delta, clipped.logical_and(in.advantages.gt(0)),
                                                          clipped.logical_and(in.advantages.lt(0)))};
}

// How much a token's log-prob moves with its advantage (Cui et al. 2025, arXiv:2505.22617), over the
// tokens given.
at::Tensor covariance(const ModeInputs& in) {
  const at::Tensor log_probs = in.log_probs.detach();
  return (in.advantages - in.advantages.mean()) * (log_probs - log_probs.mean());
}

// No gradient from a few tokens of high covariance. verl draws them at random; here they are evenly
// spaced among the candidates, so that a run repeats bitwise.
ModeLoss clip_cov(const ModeInputs& in) {
  const double fraction = option(in, "clip_cov_ratio", 0.0002);
  const at::Tensor delta = log_ratio(in);
  const at::Tensor ratio = delta.exp();
  const at::Tensor unclipped = -in.advantages * ratio;
  const at::Tensor clipped = -in.advantages * clip(in, ratio);
  const at::Tensor outside = clipped.gt(unclipped);
  const at::Tensor cov = covariance(in);
  const at::Tensor candidates = cov.gt(option(in, "clip_cov_lb", 1.0))
                                    .logical_and(cov.lt(option(in, "clip_cov_ub", 5.0)))
                                    .logical_and(outside.logical_not())
                                    .nonzero()
                                    .squeeze(1);
  const int64_t wanted =
      std::max<int64_t>(1, static_cast<int64_t>(fraction * static_cast<double>(in.tokens->count())));
  const int64_t chosen = std::min(wanted, candidates.size(0));
  at::Tensor keep = at::ones({in.tokens->count()}, at::kDouble);
  if (chosen > 0) {
    const at::Tensor spaced =
        (at::arange(chosen, at::kDouble) + 0.5) * (static_cast<double>(candidates.size(0)) / chosen);
    keep.index_fill_(0, candidates.index_select(0, spaced.to(at::kLong)), 0);
  }
  return {aggregate(in, at::maximum(unclipped, clipped) * keep), ratio_metrics(in, delta, keep.eq(0), {})};
}

// A penalty |log ratio| on the tokens of highest covariance.
ModeLoss kl_cov(const ModeInputs& in) {
  const double fraction = option(in, "kl_cov_ratio", 0.0002);
  const at::Tensor delta = log_ratio(in);
  at::Tensor loss = -in.advantages * delta.exp();
  const int64_t count = in.tokens->count();
  if (count > 0) {
    const int64_t wanted = std::max<int64_t>(1, static_cast<int64_t>(fraction * static_cast<double>(count)));
    const at::Tensor order = at::argsort(covariance(in), /*stable=*/true, /*dim=*/0, /*descending=*/true);
    const at::Tensor top =
        at::zeros({count}, at::kDouble).index_fill_(0, order.narrow(0, 0, std::min(wanted, count)), 1);
    loss = loss + option(in, "ppo_kl_coef", 0.1) * delta.abs() * top;
  }
  return {aggregate(in, loss), [=, &in]() -> Metrics { return {{"ppo_kl", in.tokens->mean(delta.abs())}}; }};
}

// Direct reward optimisation's quadratic pull towards the old policy (Richemond et al. 2024,
// arXiv:2405.19107).
ModeLoss dro(const ModeInputs& in) {
  const double beta = option(in, "dro_beta", 0);
  require(beta > 0, ErrorCode::kInvalidArgument, "[losses] dro expected a positive dro_beta but got ", beta);
  const at::Tensor delta = log_ratio(in);
  return {aggregate(in, -(in.log_probs * in.advantages - 0.5 * beta * delta.square())),
          [=, &in]() -> Metrics {
            return {{"ppo_kl", in.tokens->mean(-delta)}};
          }};
}

// REINFORCE (Williams 1992): with importance weights the off-policy policy gradient. verl's bypass mode.
ModeLoss reinforce(const ModeInputs& in) {
  return {aggregate(in, -in.advantages * in.log_probs), [&in]() -> Metrics {
            return {{"ppo_kl", in.tokens->mean(-log_ratio(in))}};
          }};
}

// Value and slope of a loss that was computed at these very log-probs, elsewhere: its first-order
// expansion there, so that value and gradient are both the caller's. The slope by the entropy is
// added in policy_loss.
ModeLoss linear(const ModeInputs& in) {
  require(in.given_values.defined() && in.given_by_log_prob.defined(), ErrorCode::kInvalidArgument,
          "[losses] linear needs a given loss: values and their derivatives by log-prob");
  const at::Tensor zero = in.log_probs - in.log_probs.detach();
  return {aggregate(in, in.given_values + in.given_by_log_prob * zero), no_metrics()};
}

struct Mode {
  PolicyMode mode;
  ModeLoss (*loss)(const ModeInputs&);
  // Terms of one token each: neither whole sequences nor a ranking of tokens.
  bool token_local;
  std::optional<Aggregation> aggregation = std::nullopt;  // none: the one that was asked for
};
constexpr Aggregation kBySequence = Aggregation::kSeqMeanTokenMean;
constexpr Mode kModes[] = {{PolicyMode::kVanilla, vanilla, true},
                           {PolicyMode::kGspo, gspo, false, kBySequence},
                           {PolicyMode::kCispo, cispo, true},
                           {PolicyMode::kGpg, gpg, true},
                           {PolicyMode::kSapo, sapo, true, kBySequence},
                           {PolicyMode::kDppoTv, dppo_tv, true},
                           {PolicyMode::kDppoKl, dppo_kl, true},
                           {PolicyMode::kGeoMean, geo_mean, false},
                           {PolicyMode::kKlCov, kl_cov, false},
                           {PolicyMode::kClipCov, clip_cov, false},
                           {PolicyMode::kDro, dro, true},
                           {PolicyMode::kReinforce, reinforce, true},
                           {PolicyMode::kLinear, linear, true}};

const Mode& mode_of(PolicyMode mode) {
  for (const Mode& candidate : kModes)
    if (candidate.mode == mode) return candidate;
  fail(ErrorCode::kInternal, "[losses] no policy loss for the mode ", name_of(mode));
}

}  // namespace

bool is_token_local(PolicyMode mode) {
  return mode_of(mode).token_local;
}

Aggregation mode_aggregation(const PolicyLossOptions& options) {
  return mode_of(options.mode).aggregation.value_or(options.aggregation);
}

ModeLoss mode_loss(PolicyMode mode, const ModeInputs& inputs) {
  return mode_of(mode).loss(inputs);
}

}  // namespace troupe::losses
