// Statistics, changes of the logits, and sampling, row by row.
#include "rollout/token_chooser.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <tuple>

#include "base/parallel.h"
#include "base/upload.h"
#include "kernels/cpu/linear_log_prob_kernels.h"
#include "kernels/linear_log_prob.h"
#include "kernels/row_sums.h"
#include "rollout/batch_sampler.h"
#include "rollout/random.h"

namespace troupe {
namespace {

constexpr float kNever = -std::numeric_limits<float>::infinity();
// Fewer logits cost less than waking the other threads.
constexpr int64_t kSmallSampling = 1 << 14;

SamplerOptions sampler_options(const RequestSampling& s) {
  return {.temperature = s.temperature, .top_k = s.top_k, .top_p = s.top_p, .min_p = s.min_p};
}

double temperature_of(const RequestSampling& s) {
  return s.temperature == 0 ? 1 : s.temperature;
}

double uniform_of(const Sequence& sequence) {
  return uniform(sequence.request.seed, static_cast<uint64_t>(sequence.response_length()));
}

// Logits [V] -> logits / temperature with the soft cap, in place; what is known of their softmax. In the
// blocks and with the code of linear_log_prob.cc, for its bits.
kernels::RowSums scale(float* logits, int64_t vocab, double temperature, double softcap) {
  const kernels::LogitsTransform transform{static_cast<float>(1.0 / temperature),
                                           static_cast<float>(softcap)};
  const int64_t count = (vocab + ops::kVocabBlock - 1) / ops::kVocabBlock;
  std::vector<kernels::BlockStats> blocks(static_cast<size_t>(count));
  for (int64_t b = 0; b < count; ++b) {
    const int64_t begin = b * ops::kVocabBlock, cols = std::min(ops::kVocabBlock, vocab - begin);
    kernels::linear_log_prob_kernels().stats(logits + begin, 1, cols, cols, transform,
                                             &blocks[static_cast<size_t>(b)]);
  }
  return kernels::combined(count, [&](int64_t b) {
    const kernels::BlockStats& block = blocks[static_cast<size_t>(b)];
    return kernels::RowSums{block.max, block.sum, block.weighted, block.sum_squares, 0};
  });
}

float log_prob(const kernels::RowSums& sums, float scaled) {
  kernels::RowSums row = sums;
  row.target = scaled;
  return static_cast<float>(kernels::outputs_of(row).log_prob);
}

std::vector<TokenLogProb> most_likely(const float* scaled, int64_t vocab, int64_t count,
                                      const kernels::RowSums& sums) {
  count = std::min(count, vocab);
  std::vector<int32_t> ids(static_cast<size_t>(vocab));
  for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int32_t>(i);
  std::partial_sort(ids.begin(), ids.begin() + count, ids.end(), [&](int32_t a, int32_t b) {
    return scaled[a] > scaled[b] || (scaled[a] == scaled[b] && a < b);
  });
  std::vector<TokenLogProb> top;
  for (int64_t i = 0; i < count; ++i) {
    const int32_t id = ids[static_cast<size_t>(i)];
    top.push_back({id, log_prob(sums, scaled[id])});
  }
  return top;
}

// Forbids the last token of every bad word whose other tokens have just been.
void forbid_words(float* logits, const Sequence& sequence) {
  for (const std::vector<int32_t>& word : sequence.request.sampling.bad_words) {
    const auto before = static_cast<std::ptrdiff_t>(word.size()) - 1;
    if (before > static_cast<std::ptrdiff_t>(sequence.tokens.size())) continue;
    if (std::equal(word.begin(), word.end() - 1, sequence.tokens.end() - before))
      logits[word.back()] = kNever;
  }
}

void change(float* logits, int64_t vocab, const Sequence& sequence) {
  const RequestSampling& s = sequence.request.sampling;
  if (s.penalises()) {
    for (const auto& [token, times] : sequence.seen) {
      double logit = logits[token];
      logit = logit > 0 ? logit / s.repetition_penalty : logit * s.repetition_penalty;
      logit -= s.frequency_penalty * times;
      if (times > 0) logit -= s.presence_penalty;
      logits[token] = static_cast<float>(logit);
    }
  }
  for (const auto& [token, bias] : s.logit_bias) logits[token] += bias;
  forbid_words(logits, sequence);
  if (!s.constrained || sequence.mask.empty()) return;
  const auto words = static_cast<int64_t>(sequence.mask.size());
  for (int64_t token = 0; token < vocab; ++token) {
    const bool allowed =
        token / 32 < words && (sequence.mask[static_cast<size_t>(token / 32)] >> (token % 32) & 1) != 0;
    if (!allowed) logits[token] = kNever;
  }
}

Chosen choose(float* logits, int64_t vocab, double softcap, const LogitsUse& use) {
  const Sequence& sequence = *use.sequence;
  const RequestSampling& s = sequence.request.sampling;
  const double temperature = temperature_of(s);
  const bool samples = use.target < 0;
  // What is sampled from: before the temperature, which the sampler applies itself.
  std::vector<float> own;
  const float* from = logits;
  if (samples && (temperature != 1 || s.changes_logits())) {
    own.assign(logits, logits + vocab);
    if (softcap > 0) scale(own.data(), vocab, 1, softcap);
    if (s.changes_logits()) change(own.data(), vocab, sequence);
    from = own.data();
  }
  const kernels::RowSums sums = scale(logits, vocab, temperature, softcap);
  Chosen chosen;
  if (!std::isfinite(sums.max) || !std::isfinite(sums.sum)) {
    chosen.sampled.finite = false;
    return chosen;
  }
  chosen.sampled.token = use.target;
  if (samples) chosen.sampled = sample_token(from, vocab, sampler_options(s), uniform_of(sequence));
  if (!chosen.sampled.finite) return chosen;
  chosen.sampled.log_prob = log_prob(sums, logits[chosen.sampled.token]);
  if (samples && s.top_log_probs > 0) chosen.top = most_likely(logits, vocab, s.top_log_probs, sums);
  return chosen;
}

std::vector<Chosen> choose_on_host(const at::Tensor& logits, double softcap,
                                   const std::vector<LogitsUse>& uses) {
  const int64_t vocab = logits.size(1), rows = static_cast<int64_t>(uses.size());
  float* const data = logits.data_ptr<float>();
  std::vector<Chosen> chosen(uses.size());
  const auto row = [&](int64_t i) {
    chosen[static_cast<size_t>(i)] = choose(data + i * vocab, vocab, softcap, uses[static_cast<size_t>(i)]);
  };
  if (rows * vocab >= kSmallSampling) {
    parallel_items(rows, row);
  } else {
    for (int64_t i = 0; i < rows; ++i) row(i);
  }
  return chosen;
}

// Whether a row can be sampled on its device, without changes of its logits on the host.
bool stays(const LogitsUse& use) {
  const RequestSampling& s = use.sequence->request.sampling;
  return use.target < 0 && !s.changes_logits() && s.top_log_probs == 0;
}

}  // namespace

std::vector<Chosen> choose_tokens(const at::Tensor& logits, double softcap,
                                  const std::vector<LogitsUse>& uses) {
  if (simulated(logits)) return std::vector<Chosen>(uses.size());  // token 0
  const at::Tensor rows = logits.narrow(0, 0, static_cast<int64_t>(uses.size()));
  if (logits.is_cpu()) return choose_on_host(rows, softcap, uses);
  // Rows with the same options together on the device; those whose logits are changed come to the host.
  using Key = std::tuple<bool, double, int64_t, double, double>;
  std::map<Key, std::vector<int64_t>> groups;
  for (size_t i = 0; i < uses.size(); ++i) {
    const RequestSampling& s = uses[i].sequence->request.sampling;
    const Key key =
        stays(uses[i]) ? Key{true, s.temperature, s.top_k, s.top_p, s.min_p} : Key{false, 0, 0, 0, 0};
    groups[key].push_back(static_cast<int64_t>(i));
  }
  std::vector<Chosen> all(uses.size());
  for (const auto& [key, members] : groups) {
    const bool whole = members.size() == uses.size();
    const at::Tensor own =
        whole ? rows : rows.index_select(0, upload(at::tensor(members, at::kLong), logits.device()));
    std::vector<LogitsUse> own_uses;
    for (const int64_t i : members) own_uses.push_back(uses[static_cast<size_t>(i)]);
    if (!std::get<0>(key)) {
      const std::vector<Chosen> chosen = choose_on_host(own.cpu(), softcap, own_uses);
      for (size_t i = 0; i < members.size(); ++i) all[static_cast<size_t>(members[i])] = chosen[i];
      continue;
    }
    at::Tensor capped = own;
    if (softcap > 0) capped.div_(softcap).tanh_().mul_(softcap);
    std::vector<double> uniforms;
    for (const LogitsUse& use : own_uses) uniforms.push_back(uniform_of(*use.sequence));
    const std::vector<Sampled> sampled =
        sample_rows(capped, sampler_options(own_uses.front().sequence->request.sampling), uniforms);
    for (size_t i = 0; i < members.size(); ++i) all[static_cast<size_t>(members[i])].sampled = sampled[i];
  }
  return all;
}

}  // namespace troupe
