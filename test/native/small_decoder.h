#pragma once

#include <ATen/ATen.h>

#include <optional>
#include <string>
#include <vector>

#include "base/parallel.h"
#include "batch/packing.h"
#include "model/decoder_layout.h"
#include "model/log_prob_spec.h"
#include "model/transformer.h"
#include "model/value_head.h"
#include "small_model.h"

// A small model with its parameters, forwards and backwards without an engine.
namespace troupe::test {

// Sequences of these lengths with prompts of those; the same sequence has the same tokens in every batch.
inline TokenBatch batch_of(const std::vector<int64_t>& lengths, const std::vector<int64_t>& prompts,
                           int64_t seed = 0) {
  std::vector<int32_t> offsets{0}, prompt_lens;
  std::vector<at::Tensor> tokens;
  for (size_t i = 0; i < lengths.size(); ++i) {
    offsets.push_back(offsets.back() + static_cast<int32_t>(lengths[i]));
    prompt_lens.push_back(static_cast<int32_t>(prompts[i]));
    at::manual_seed(
        static_cast<uint64_t>(seed + lengths[i] * 1000 + prompts[i]));  // content follows the sequence
    tokens.push_back(at::randint(kVocabulary, {lengths[i]}, at::kInt));
  }
  return {at::cat(tokens), at::tensor(offsets, at::kInt), at::tensor(prompt_lens, at::kInt)};
}

// A batch of everything that a packing must cope with.
const std::vector<int64_t> kLengths = {9, 3, 30, 17, 1, 22, 5};
const std::vector<int64_t> kPrompts = {4, 1, 10, 16, 1, 2, 4};

struct SmallModel {
  ModelConfig config;
  ParameterStore store;
  Transformer transformer;

  explicit SmallModel(const ModelConfig& c, const std::optional<LoraOptions>& lora = std::nullopt,
                      at::ScalarType dtype = at::kFloat)
      : config(c),
        store(decoder_layout(config, lora), at::kCPU, dtype, true, 7),
        transformer(config, store, at::kCPU, dtype) {
    store.initialize_missing();
    for (const Parameter& p : store.all()) {  // larger than the usual start, so that every part matters
      at::Tensor master = p.master;
      if (p.info.name.find(".lora_b") != std::string::npos) {
        at::manual_seed(std::hash<std::string>()(p.info.name));
        master.copy_(at::randn(master.sizes()).mul_(0.1));
      } else if (p.info.name.find(".lora_a") == std::string::npos) {
        // A convolution is large already: with more, q and k are nearly nothing before they get length one.
        const bool grows = p.info.shape.size() >= 2 && p.info.name.find(".conv.") == std::string::npos;
        master.mul_(grows ? 8 : 1).add_(0.01);
      }
    }
    store.refresh_compute();
  }

  // Log-probs of the whole batch at a capacity, in its order.
  at::Tensor log_probs(const TokenBatch& batch, int64_t capacity = 4096, bool fixed_rows = false) {
    const BatchLayout layout = check_layout(batch, config.vocab_size, config.max_positions);
    const at::Tensor all = at::full({layout.num_response_tokens()}, NAN);
    for (const MicroBatch& micro : pack(layout, 0, layout.size(), capacity)) {
      const PackedTokens packed =
          gather(batch, layout, micro, padded_rows(micro, {kRowTile, capacity, fixed_rows}));
      StagePass pass(false);
      Stage& stage = transformer.stages().front();
      const at::Tensor hidden = stage.forward(&packed, {}, pass);
      const int64_t padded = hidden.size(0);
      const ops::LogProbRows rows{at::empty({padded}), at::empty({padded}), {}, {}};
      ops::linear_log_prob_forward(log_prob_spec(config, 1), hidden, stage.head_weight(),
                                   pad_rows(packed.targets, padded), rows);
      all.index_copy_(0, packed.response_index, rows.log_probs.narrow(0, 0, packed.targets.size(0)));
    }
    return all;
  }

  // Gradients of sum(weights * log_probs), accumulated over micro-batches.
  void backward(const TokenBatch& batch, int64_t capacity, const at::Tensor& weights, bool checkpointing,
                bool fixed_rows = false) {
    const BatchLayout layout = check_layout(batch, config.vocab_size, config.max_positions);
    store.zero_grad();
    for (const MicroBatch& micro : pack(layout, 0, layout.size(), capacity)) {
      const PackedTokens packed =
          gather(batch, layout, micro, padded_rows(micro, {kRowTile, capacity, fixed_rows}));
      StagePass pass(true, checkpointing);
      Stage& stage = transformer.stages().front();
      const at::Tensor hidden = stage.forward(&packed, {}, pass);
      const int64_t padded = hidden.size(0);
      const at::Tensor grad = pad_rows(weights.index_select(0, packed.response_index), padded);
      const ops::LogProbRows rows{at::empty({padded}), at::empty({padded}), {}, {}};
      const at::Tensor d_hidden = at::empty_like(hidden);
      ops::linear_log_prob_backward(
          log_prob_spec(config, 1), hidden, stage.head_weight(), pad_rows(packed.targets, padded), rows,
          false,
          [&](int64_t begin, int64_t end, const at::Tensor& g, const at::Tensor&) {
            g.copy_(grad.narrow(0, begin, end - begin));
          },
          d_hidden, stage.head_weight_grad());
      stage.backward(d_hidden, pass);
    }
  }
};

}  // namespace troupe::test
