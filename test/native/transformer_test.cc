#include "model/transformer.h"

#include "check.h"
#include "core/packing.h"
#include "core/parallel.h"
#include "kernels/linear_log_prob.h"
#include "model/value_head.h"

using namespace troupe;

namespace {

ModelConfig small(const std::string& variant) {
  ModelConfig c;
  c.family = variant;
  c.vocab_size = 50;
  c.hidden_size = 24;
  c.num_layers = 2;
  c.num_heads = 4;
  c.num_kv_heads = 2;
  c.head_dim = 8;
  c.intermediate_size = 40;
  c.max_positions = 64;
  c.attention_scale = 0.35;
  c.sliding_windows = {0, 0};
  for (int64_t i = 0; i < 4; ++i) c.rope_inv_freq.push_back(std::pow(100.0, -static_cast<double>(i) / 4));
  if (variant == "gpt2") {
    c.norm = NormKind::kLayer;
    c.positions = PositionKind::kLearned;
    c.rope_inv_freq.clear();
    c.gated_mlp = false;
    c.activation = Activation::kGeluTanh;
    c.qkv_bias = c.output_bias = c.mlp_bias = true;
    c.tied_embeddings = true;
  } else if (variant == "gemma2") {
    c.norm_unit_offset = c.post_norms = c.tied_embeddings = true;
    c.activation = Activation::kGeluTanh;
    c.attention_softcap = 5;
    c.final_softcap = 6;
    c.sliding_windows = {4, 0};
    c.embedding_scale = std::sqrt(24.0);
  } else if (variant == "qwen3_moe") {
    c.qk_norm = true;
    c.moe = MoeConfig{4, 2, 16, true};
    c.moe_layers = {false, true};
  } else if (variant == "qwen2") {
    c.qkv_bias = true;
  }
  return c;
}

const std::vector<std::string> kVariants = {"qwen2", "gpt2", "gemma2", "qwen3_moe"};

TokenBatch batch_of(const std::vector<int64_t>& lengths, const std::vector<int64_t>& prompts, int64_t seed) {
  std::vector<int32_t> offsets{0}, prompt_lens;
  std::vector<at::Tensor> tokens;
  for (size_t i = 0; i < lengths.size(); ++i) {
    offsets.push_back(offsets.back() + static_cast<int32_t>(lengths[i]));
    prompt_lens.push_back(static_cast<int32_t>(prompts[i]));
    at::manual_seed(
        static_cast<uint64_t>(seed + lengths[i] * 1000 + prompts[i]));  // content follows the sequence
    tokens.push_back(at::randint(50, {lengths[i]}, at::kInt));
  }
  return {at::cat(tokens), at::tensor(offsets, at::kInt), at::tensor(prompt_lens, at::kInt)};
}

struct Model {
  ModelConfig config;
  ParameterStore store;
  Transformer transformer;
  explicit Model(const std::string& variant)
      : config(small(variant)),
        store(config, at::kCPU, at::kFloat, true, 7),
        transformer(config, store, at::kCPU, at::kFloat) {
    store.initialize_missing();
    for (const Parameter& p : store.all()) {  // larger than the usual start, so that every part matters
      const_cast<Parameter&>(p).master.mul_(p.info.shape.size() >= 2 ? 8 : 1).add_(0.01);
    }
  }

  // log-probs of the whole batch at a capacity, in batch order.
  at::Tensor log_probs(const TokenBatch& batch, int64_t capacity) {
    const BatchLayout layout = check_layout(batch, config.vocab_size, config.max_positions);
    const at::Tensor all = at::full({layout.num_response_tokens()}, NAN);
    for (const MicroBatch& micro : pack(layout, 0, layout.size(), capacity)) {
      const PackedTokens packed = gather(batch, layout, micro, kRowTile);
      const at::Tensor hidden = transformer.forward(packed, nullptr, false);
      const int64_t padded = hidden.size(0);
      const ops::LogProbRows rows{at::empty({padded}), at::empty({padded}), {}, {}};
      ops::linear_log_prob_forward({1, config.final_softcap}, hidden, transformer.head_weight(),
                                   pad_rows(packed.targets, padded), rows);
      all.index_copy_(0, packed.response_index, rows.log_probs.narrow(0, 0, packed.targets.size(0)));
    }
    return all;
  }

  // Gradients of sum(weights * log_probs), accumulated over micro-batches.
  void backward(const TokenBatch& batch, int64_t capacity, const at::Tensor& weights, bool checkpointing) {
    const BatchLayout layout = check_layout(batch, config.vocab_size, config.max_positions);
    store.zero_grad();
    for (const MicroBatch& micro : pack(layout, 0, layout.size(), capacity)) {
      const PackedTokens packed = gather(batch, layout, micro, kRowTile);
      ForwardState state;
      const at::Tensor hidden = transformer.forward(packed, &state, checkpointing);
      const int64_t padded = hidden.size(0);
      const at::Tensor grad = pad_rows(weights.index_select(0, packed.response_index), padded);
      const ops::LogProbRows rows{at::empty({padded}), at::empty({padded}), {}, {}};
      const at::Tensor d_hidden = at::empty_like(hidden);
      ops::linear_log_prob_backward(
          {1, config.final_softcap}, hidden, transformer.head_weight(), pad_rows(packed.targets, padded),
          rows, false,
          [&](int64_t begin, int64_t end, const at::Tensor& g, const at::Tensor&) {
            g.copy_(grad.narrow(0, begin, end - begin));
          },
          d_hidden, transformer.head_weight_grad());
      transformer.backward(d_hidden, state);
    }
  }

  at::Tensor flat_grad() {
    std::vector<at::Tensor> parts;
    for (const ParameterGroup& group : store.groups()) parts.push_back(group.buffers.grad);
    return at::cat(parts).clone();
  }
};

const std::vector<int64_t> kLengths = {9, 3, 30, 17, 1, 22, 5};
const std::vector<int64_t> kPrompts = {4, 1, 10, 16, 1, 2, 4};

}  // namespace

TEST(gradients_are_finite_differences) {
  at::NoGradGuard no_grad;
  for (const std::string& variant : kVariants) {
    Model model(variant);
    const TokenBatch batch = batch_of(kLengths, kPrompts, 1);
    const BatchLayout layout = check_layout(batch, 50, 64);
    at::manual_seed(5);
    const at::Tensor weights = at::randn({layout.num_response_tokens()});
    model.backward(batch, 4096, weights, false);
    for (const Parameter& parameter : model.store.all()) {
      // A step before the router flips choices, and the loss jumps; the update conformance cases
      // cover those gradients.
      if (variant == "qwen3_moe" && parameter.group < 2) continue;
      // Directional derivative along the sign of the gradient: one number per parameter that sums
      // every element, well above float32 noise.
      const at::Tensor direction = parameter.grad.sign();
      const double expected = (parameter.grad.to(at::kDouble) * direction).sum().item<double>();
      const double step = 2e-3 / std::sqrt(static_cast<double>(parameter.grad.numel()));
      const at::Tensor original = parameter.master.clone();
      const auto loss = [&](double delta) {
        const_cast<Parameter&>(parameter).master.copy_(original + direction * delta);
        return (model.log_probs(batch, 4096).to(at::kDouble) * weights).sum().item<double>();
      };
      const double numeric = (loss(step) - loss(-step)) / (2 * step);
      const_cast<Parameter&>(parameter).master.copy_(original);
      const bool close = std::abs(numeric - expected) <= 0.02 * std::abs(expected) + 0.05;
      if (!close)
        std::printf("  %s %s: %g against %g\n", variant.c_str(), parameter.info.name.c_str(), numeric,
                    expected);
      CHECK(close);
    }
  }
}

TEST(log_probs_do_not_depend_on_capacity_order_or_neighbours) {
  at::NoGradGuard no_grad;
  for (const std::string& variant : kVariants) {
    Model model(variant);
    const at::Tensor straight = model.log_probs(batch_of(kLengths, kPrompts, 1), 4096);
    CHECK(at::isfinite(straight).all().item<bool>());
    CHECK(at::equal(straight, model.log_probs(batch_of(kLengths, kPrompts, 1), 30)));

    std::vector<int64_t> lengths(kLengths.rbegin(), kLengths.rend()),
        prompts(kPrompts.rbegin(), kPrompts.rend());
    const at::Tensor reversed = model.log_probs(batch_of(lengths, prompts, 1), 64);
    int64_t at_straight = 0, at_reversed = reversed.size(0);
    for (size_t i = 0; i < kLengths.size(); ++i) {
      const int64_t count = kLengths[i] - kPrompts[i];
      at_reversed -= count;
      CHECK(at::equal(straight.narrow(0, at_straight, count), reversed.narrow(0, at_reversed, count)));
      at_straight += count;
    }
  }
}

TEST(checkpointing_changes_nothing_and_micro_batches_only_rounding) {
  at::NoGradGuard no_grad;
  for (const std::string& variant : kVariants) {
    Model model(variant);
    const TokenBatch batch = batch_of(kLengths, kPrompts, 1);
    at::manual_seed(6);
    const at::Tensor weights = at::randn({check_layout(batch, 50, 64).num_response_tokens()});
    model.backward(batch, 4096, weights, false);
    const at::Tensor grad = model.flat_grad();
    model.backward(batch, 4096, weights, true);
    CHECK(at::equal(grad, model.flat_grad()));
    model.backward(batch, 30, weights, false);
    CHECK((grad - model.flat_grad()).abs().max().item<double>() < 2e-5 * grad.abs().max().item<double>());
  }
}

TEST(prompts_shared_by_several_sequences_change_nothing) {
  at::NoGradGuard no_grad;
  // Three prompts (the second alone, one response of the third empty), their responses interleaved.
  struct Row {
    int64_t prompt, response, seed;
  };
  const std::vector<Row> rows = {{12, 9, 1},  {5, 4, 2}, {12, 1, 1}, {1, 6, 3},
                                 {12, 20, 1}, {1, 0, 3}, {1, 2, 3}};
  const auto batch_of_rows = [&](size_t begin, size_t end) {
    std::vector<int32_t> offsets{0}, prompt_lens;
    std::vector<at::Tensor> tokens;
    for (size_t i = begin; i < end; ++i) {
      at::manual_seed(static_cast<uint64_t>(100 * rows[i].seed));
      tokens.push_back(at::randint(50, {rows[i].prompt}, at::kInt));
      at::manual_seed(i);
      tokens.push_back(at::randint(50, {rows[i].response}, at::kInt));
      offsets.push_back(offsets.back() + static_cast<int32_t>(rows[i].prompt + rows[i].response));
      prompt_lens.push_back(static_cast<int32_t>(rows[i].prompt));
    }
    return TokenBatch{at::cat(tokens), at::tensor(offsets, at::kInt), at::tensor(prompt_lens, at::kInt)};
  };
  const TokenBatch together = batch_of_rows(0, rows.size());
  const BatchLayout layout = check_layout(together, 50, 64);
  for (const std::string& variant : kVariants) {
    Model model(variant);
    at::manual_seed(8);
    const at::Tensor weights = at::randn({layout.num_response_tokens()});
    std::vector<at::Tensor> log_probs;
    at::Tensor grad;
    for (size_t i = 0; i < rows.size(); ++i) {
      const TokenBatch alone = batch_of_rows(i, i + 1);
      log_probs.push_back(model.log_probs(alone, 64));
      const int64_t begin = layout.response_offsets[i];
      model.backward(alone, 64, weights.narrow(0, begin, layout.response_offsets[i + 1] - begin), false);
      grad = grad.defined() ? grad + model.flat_grad() : model.flat_grad();
    }
    // 64: everything in one micro-batch; 33: groups are cut, one prompt is computed twice.
    for (const int64_t capacity : {64, 33}) {
      CHECK(at::equal(model.log_probs(together, capacity), at::cat(log_probs)));
      model.backward(together, capacity, weights, false);
      const double scale = grad.abs().max().item<double>();
      CHECK((grad - model.flat_grad()).abs().max().item<double>() < 2e-5 * scale);
    }
  }
}

TEST(a_shared_prompt_has_rows_once) {
  const TokenBatch batch{at::tensor({7, 8, 1, 2, 7, 8, 3, 7, 9, 4}, at::kInt),
                         at::tensor({0, 4, 7, 10}, at::kInt), at::tensor({2, 2, 2}, at::kInt)};
  const BatchLayout layout = check_layout(batch, 50, 64);
  const std::vector<MicroBatch> micro = pack(layout, 0, 3, 64);
  CHECK(micro.size() == 1 && micro[0].rows == 5);
  const PackedTokens packed = gather(batch, layout, micro[0], 1);
  CHECK(at::equal(packed.tokens, at::tensor({7, 8, 1, 7, 9}, at::kInt)));
  CHECK(at::equal(packed.positions, at::tensor({0, 1, 2, 0, 1}, at::kInt)));
  CHECK(packed.segments.size() == 3 && packed.segments[1].prefix == 0 && packed.segments[2].prefix == -1);
  CHECK(at::equal(packed.predict_rows, at::tensor({1, 2, 1, 4}, at::kLong)));
  CHECK(at::equal(packed.targets, at::tensor({1, 2, 3, 4}, at::kInt)));
  CHECK(pack(layout, 0, 3, 4).size() == 2);  // three rows for the first prompt, two for the second
}

TEST(impossible_batches_are_refused_by_name) {
  CHECK_THROWS(pack(check_layout(batch_of({5, 90}, {1, 1}, 1), 50, 128), 0, 2, 64),
               "sequence 1 has 90 tokens");
  CHECK_THROWS(check_layout(batch_of({5, 70}, {1, 1}, 1), 50, 64), "sequence 1 has 70 tokens");
  CHECK_THROWS(check_layout(batch_of({5}, {1}, 1), 3, 64), "outside the vocabulary of 3");
}

TEST_MAIN()
