// Wishes to the device, choices back.
#include "rollout/device_chooser.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cstring>

#include "base/upload.h"
#include "kernels/token_choices.h"
#include "rollout/logit_changes.h"

namespace troupe {
namespace {

// As bytes [n, size of an entry], except where `type` says what the entries are.
template <typename Entry>
at::Tensor uploaded(const std::vector<Entry>& list, at::Device device, at::ScalarType type = at::kByte) {
  const auto n = static_cast<int64_t>(list.size());
  const auto width = static_cast<int64_t>(sizeof(Entry) / c10::elementSize(type));
  if (n == 0) return at::empty({0, width}, at::TensorOptions(type).device(device));
  return upload(at::from_blob(const_cast<Entry*>(list.data()), {n, width}, at::TensorOptions(type)), device);
}

float float_of(int32_t word) {
  float value;
  std::memcpy(&value, &word, sizeof(value));
  return value;
}

}  // namespace

DeviceChooser::DeviceChooser(const std::vector<LogitsUse>& uses) : uses_(uses) {
  for (const LogitsUse& use : uses) {
    if (use.target < 0) top_ = std::max(top_, use.sequence->request.sampling.top_log_probs);
  }
}

void DeviceChooser::begin(int64_t first, const at::Tensor& logits) {
  const int64_t rows = logits.size(0), vocab = logits.size(1);
  if (!choices_.defined()) {
    top_ = std::min(top_, vocab);
    choices_ = at::empty({static_cast<int64_t>(uses_.size()), kernels::choice_words(top_)},
                         logits.options().dtype(at::kInt));
  }
  std::vector<kernels::TokenWish> wishes;
  LogitChangeLists changes;
  for (int64_t row = 0; row < rows; ++row) {
    const LogitsUse& use = uses_[static_cast<size_t>(first + row)];
    const Sequence& sequence = *use.sequence;
    kernels::TokenWish wish{.options = sampler_options(sequence), .target = use.target};
    if (use.target < 0) {
      wish.uniform = uniform_of(use);
      wish.top = static_cast<int32_t>(std::min(sequence.request.sampling.top_log_probs, vocab));
      if (sequence.request.sampling.changes_logits()) {
        wish.changed = static_cast<int32_t>(changes.rows.size());
        changes.add(row, sequence);
      }
    }
    wishes.push_back(wish);
  }
  const at::Device device = logits.device();
  ops::choose_tokens({logits, uploaded(wishes, device), uploaded(changes.rows, device),
                      uploaded(changes.seen, device), uploaded(changes.biases, device),
                      uploaded(changes.words, device, at::kInt), choices_.narrow(0, first, rows)});
}

std::vector<std::optional<Chosen>> DeviceChooser::finish() {
  std::vector<std::optional<Chosen>> all(uses_.size());
  if (uses_.empty()) return all;
  const at::Tensor choices = choices_.cpu();
  const int32_t* words = choices.const_data_ptr<int32_t>();
  for (size_t i = 0; i < uses_.size(); ++i, words += choices.size(1)) {
    if (words[0] == kernels::kTooWide) continue;
    Chosen& chosen = all[i].emplace();
    chosen.sampled.finite = words[0] != kernels::kNotFinite;
    chosen.none_left = words[0] == kernels::kNoneLeft;
    if (words[0] != kernels::kChosen) continue;
    chosen.sampled.token = words[1];
    chosen.sampled.log_prob = float_of(words[2]);
    if (uses_[i].target >= 0) continue;
    const int64_t top = std::min(uses_[i].sequence->request.sampling.top_log_probs, top_);
    for (int64_t t = 0; t < top; ++t)
      chosen.top.push_back({words[kernels::choice_words(t)], float_of(words[kernels::choice_words(t) + 1])});
  }
  return all;
}

}  // namespace troupe
