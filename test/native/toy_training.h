#pragma once

#include <ATen/ATen.h>

#include <cmath>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "small_model.h"

// Small models, and a batch of eight sequences that ranks share as they like.
namespace troupe::test {

constexpr int64_t kSequences = 8;

inline EngineOptions options_of(const std::string& variant, HeadKind head) {
  EngineOptions options;
  options.model = small(variant, head);
  options.max_tokens = 40;  // several micro-batches per mini-batch
  options.optim = OptimizerOptions{};
  options.optim->lr = 1e-4;
  options.seed = 3;
  options.num_threads = 1;
  return options;
}

// Sequence i of the whole batch, whoever computes it.
struct Sequence {
  at::Tensor tokens;  // [L]
  int64_t prompt;
  at::Tensor a, b;  // [R] two columns
};

inline Sequence sequence(int64_t i) {
  const int64_t prompt = 1 + i % 3;
  const int64_t response = 4 + (i * 7) % 11;
  const at::Tensor at_ = at::arange(response, at::kFloat).add(static_cast<double>(i) * 1.7);
  return {at::arange(prompt + response, at::kInt).mul(7 + i).add(3 * i).remainder(kVocabulary), prompt,
          at_.sin().sub(3.9), at_.mul(1.3).cos()};
}

// The sequences of one rank: `owners[i]` is the rank of sequence i.
struct Share {
  TokenBatch tokens;
  at::Tensor mask, a, b;
  MiniBatches mini;  // two mini-batches of half of the sequences each
};

inline Share share_of(int64_t rank, const std::vector<int64_t>& owners) {
  Share share;
  std::vector<at::Tensor> tokens{at::empty({0}, at::kInt)}, a{at::empty({0})}, b{at::empty({0})};
  std::vector<int32_t> offsets{0}, prompts;
  share.mini.offsets = {0};
  share.mini.global_tokens = {0, 0};
  share.mini.global_sequences = {kSequences / 2.0, kSequences / 2.0};
  for (int64_t i = 0; i < kSequences; ++i) {
    const Sequence s = sequence(i);
    const size_t m = i < kSequences / 2 ? 0 : 1;
    share.mini.global_tokens[m] += static_cast<double>(s.a.numel());
    if (owners[static_cast<size_t>(i)] == rank) {
      tokens.push_back(s.tokens);
      a.push_back(s.a);
      b.push_back(s.b);
      offsets.push_back(offsets.back() + static_cast<int32_t>(s.tokens.numel()));
      prompts.push_back(static_cast<int32_t>(s.prompt));
    }
    if (i + 1 == kSequences / 2 || i + 1 == kSequences) {
      share.mini.offsets.push_back(static_cast<int64_t>(prompts.size()));
    }
  }
  share.tokens = {at::cat(tokens), at::tensor(offsets, at::kInt), at::tensor(prompts, at::kInt)};
  share.a = at::cat(a);
  share.b = at::cat(b);
  share.mask = at::ones({share.a.numel()}, at::kByte);
  return share;
}

}  // namespace troupe::test
