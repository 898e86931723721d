// Statistics, changes of the logits, and sampling, row by row.
#include "rollout/token_chooser.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <optional>
#include <utility>

#include "base/parallel.h"
#include "kernels/cpu/linear_log_prob_kernels.h"
#include "kernels/linear_log_prob.h"
#include "kernels/one_thread.h"
#include "kernels/row_sums.h"
#include "kernels/token_choices.h"
#include "rollout/device_chooser.h"
#include "rollout/logit_changes.h"
#include "rollout/random.h"

namespace troupe {
namespace {

// Fewer logits cost less than waking the other threads.
constexpr int64_t kSmallSampling = 1 << 14;

kernels::RowSums together(const std::vector<kernels::RowSums>& parts) {
  return kernels::combined(static_cast<int64_t>(parts.size()), [&](int64_t i) -> const kernels::RowSums& {
    return parts[static_cast<size_t>(i)];
  });
}

// Logits [V] -> logits / scaling / temperature with the soft cap, in place; what is known of their softmax.
// In the parts, the blocks and with the code of linear_log_prob.cc, for its bits.
kernels::RowSums scale(float* logits, const LogitsKind& kind, double temperature) {
  const kernels::LogitsTransform transform{static_cast<float>(1.0 / (temperature * kind.scaling)),
                                           static_cast<float>(kind.softcap)};
  std::vector<kernels::RowSums> parts, blocks;
  for (size_t part = 0; part + 1 < kind.parts.size(); ++part) {
    blocks.clear();
    const int64_t end = kind.parts[part + 1];
    for (int64_t begin = kind.parts[part]; begin < end; begin += ops::kVocabBlock) {
      const int64_t cols = std::min(ops::kVocabBlock, end - begin);
      kernels::BlockStats block;
      kernels::linear_log_prob_kernels().stats(logits + begin, 1, cols, cols, transform, &block);
      blocks.push_back({block.max, block.sum, block.weighted, block.sum_squares, 0});
    }
    parts.push_back(together(blocks));
  }
  return together(parts);
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

Chosen choose(float* logits, const LogitsKind& kind, const LogitsUse& use) {
  const int64_t vocab = kind.parts.back();
  const Sequence& sequence = *use.sequence;
  const RequestSampling& s = sequence.request.sampling;
  const SamplerOptions options = sampler_options(sequence);
  const double temperature = kernels::temperature_of(options);
  const bool samples = use.target < 0;
  // What is sampled from: before the temperature, which the sampler applies itself.
  std::vector<float> own;
  const float* from = logits;
  if (samples && (temperature != 1 || s.changes_logits())) {
    own.assign(logits, logits + vocab);
    if (kind.softcap > 0 || kind.scaling != 1) scale(own.data(), kind, 1);
    if (s.changes_logits()) {
      LogitChangeLists changes;
      changes.add(0, sequence);
      kernels::change_logits(kernels::OneThread(), own.data(), vocab, changes.rows.front(), changes.view(),
                             own.data());
    }
    from = own.data();
  }
  const kernels::RowSums sums = scale(logits, kind, temperature);
  Chosen chosen;
  if (!std::isfinite(sums.max) || !std::isfinite(sums.sum)) {
    chosen.sampled.finite = false;
    return chosen;
  }
  chosen.sampled.token = use.target;
  if (samples) {
    const Sampled sampled = sample_token(from, vocab, options, uniform_of(use));
    chosen.none_left = !sampled.finite;
    if (chosen.none_left) return chosen;
    chosen.sampled = sampled;
  }
  chosen.sampled.log_prob = log_prob(sums, logits[chosen.sampled.token]);
  if (samples && s.top_log_probs > 0) chosen.top = most_likely(logits, vocab, s.top_log_probs, sums);
  return chosen;
}

std::vector<Chosen> choose_on_host(const at::Tensor& logits, const LogitsKind& kind,
                                   const std::vector<LogitsUse>& uses) {
  const int64_t vocab = logits.size(1), rows = static_cast<int64_t>(uses.size());
  float* const data = logits.data_ptr<float>();
  std::vector<Chosen> chosen(uses.size());
  const auto row = [&](int64_t i) {
    chosen[static_cast<size_t>(i)] = choose(data + i * vocab, kind, uses[static_cast<size_t>(i)]);
  };
  if (rows * vocab >= kSmallSampling) {
    parallel_items(rows, row);
  } else {
    for (int64_t i = 0; i < rows; ++i) row(i);
  }
  return chosen;
}

std::vector<LogitsUse> some(const std::vector<LogitsUse>& uses, const std::vector<int64_t>& which) {
  std::vector<LogitsUse> result;
  for (const int64_t i : which) result.push_back(uses[static_cast<size_t>(i)]);
  return result;
}

// Runs body(uses, their logits) over `which`, most_rows at a time.
template <typename Body>
void over_chunks(const LogitsOf& logits_of, int64_t most_rows, const std::vector<int64_t>& which,
                 const Body& body) {
  const auto total = static_cast<int64_t>(which.size());
  for (int64_t begin = 0; begin < total; begin += most_rows) {
    const std::vector<int64_t> chunk(which.begin() + begin,
                                     which.begin() + std::min(begin + most_rows, total));
    body(chunk, logits_of(chunk).narrow(0, 0, static_cast<int64_t>(chunk.size())));
  }
}

}  // namespace

SamplerOptions sampler_options(const Sequence& sequence) {
  const RequestSampling& s = sequence.request.sampling;
  return {.temperature = s.temperature, .top_k = s.top_k, .top_p = s.top_p, .min_p = s.min_p};
}

double uniform_of(const LogitsUse& use) {
  return uniform(use.sequence->request.seed,
                 static_cast<uint64_t>(use.sequence->response_length() + use.ahead));
}

Choices choose_tokens(const LogitsOf& logits_of, int64_t most_rows, const LogitsKind& kind,
                      const std::vector<LogitsUse>& uses) {
  Choices all;
  all.chosen.resize(uses.size());  // of simulated logits: no token, as if it were one
  DeviceChooser device(uses);
  bool on_device = false;
  const auto choose_here = [&](const std::vector<int64_t>& which, const at::Tensor& logits) {
    std::vector<Chosen> chosen = choose_on_host(logits.cpu(), kind, some(uses, which));
    for (size_t i = 0; i < which.size(); ++i)
      all.chosen[static_cast<size_t>(which[i])] = std::move(chosen[i]);
  };
  std::vector<int64_t> every(uses.size());
  std::iota(every.begin(), every.end(), 0);
  over_chunks(logits_of, most_rows, every, [&](const std::vector<int64_t>& which, at::Tensor logits) {
    if (simulated(logits)) return;
    if (logits.is_cpu() || !ops::chooses_tokens(logits)) return choose_here(which, logits);
    if (kind.softcap > 0) logits.div_(kind.softcap).tanh_().mul_(kind.softcap);
    if (kind.scaling != 1) logits.mul_(static_cast<float>(1 / kind.scaling));  // as the head does
    device.begin(which.front(), logits);
    on_device = true;
  });
  if (!on_device) return all;
  std::vector<int64_t> wide;
  std::vector<std::optional<Chosen>> chosen = device.finish();
  for (size_t i = 0; i < chosen.size(); ++i) {
    if (chosen[i]) {
      all.chosen[i] = std::move(*chosen[i]);
    } else {
      wide.push_back(static_cast<int64_t>(i));
    }
  }
  over_chunks(logits_of, most_rows, wide, choose_here);
  all.on_host = static_cast<int64_t>(wide.size());
  return all;
}

}  // namespace troupe
