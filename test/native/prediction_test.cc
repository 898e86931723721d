// Layers that predict further tokens: their rows, their loss and its gradients.

#include "base/parallel.h"
#include "batch/further_tokens.h"
#include "engine/prediction_loss.h"
#include "prediction_reference.h"
#include "ranks.h"
#include "tensor_training.h"

using namespace troupe;
using namespace troupe::test;

namespace {

PredictionReference reference_of(Engine& engine, const ModelConfig& config) {
  std::map<std::string, at::Tensor> weights;
  for (const ParameterInfo& info : engine.parameters())
    weights[info.name] = engine.get_tensor(TensorKind::kParam, info.name);
  return PredictionReference(weights, config);
}

// Prompts of one token and of two, one that three share, responses of one token; some tokens do not count.
SftBatch odd_batch() {
  const std::vector<std::pair<int64_t, int64_t>> shapes{{4, 6}, {1, 5}, {7, 1}, {2, 9},
                                                        {5, 8}, {5, 3}, {5, 1}, {1, 1}};
  SftBatch batch;
  std::vector<at::Tensor> tokens, mask;
  std::vector<int32_t> offsets{0}, prompts;
  for (size_t i = 0; i < shapes.size(); ++i) {
    const auto [prompt, response] = shapes[i];
    const auto own = static_cast<int64_t>(i);
    tokens.push_back(
        at::arange(prompt, at::kInt).mul(prompt == 5 ? 11 : 3 + own).add(2).remainder(kVocabulary));
    tokens.push_back(at::arange(response, at::kInt).mul(7 + own).add(3 * own + 1).remainder(kVocabulary));
    mask.push_back(at::arange(response).add(own).remainder(4).ne(3).to(at::kByte));
    offsets.push_back(offsets.back() + static_cast<int32_t>(prompt + response));
    prompts.push_back(static_cast<int32_t>(prompt));
  }
  batch.tokens = {at::cat(tokens), at::tensor(offsets, at::kInt), at::tensor(prompts, at::kInt)};
  batch.loss_mask = at::cat(mask);
  return batch;
}

EngineOptions predicting(const std::string& variant, int64_t layers, bool detach = false) {
  EngineOptions options = options_of(variant, HeadKind::kLm);
  options.model.prediction = PredictionConfig{layers, false};
  options.prediction = {0.3, detach};
  return options;
}

// The loss that is trained, and those of the prediction layers.
struct Losses {
  at::Tensor all;
  std::vector<double> further;
};

Losses reference_losses(const PredictionReference& reference, const SftBatch& batch,
                        const EngineOptions& options) {
  const int64_t layers = options.model.prediction->layers;
  const auto cross_entropies = [&](const at::Tensor& hidden, const at::Tensor& head,
                                   const at::Tensor& targets) {
    return -at::log_softmax(at::matmul(hidden, head.t()), -1).gather(1, targets.unsqueeze(1)).view({-1});
  };
  std::vector<at::Tensor> sums(static_cast<size_t>(layers + 1), at::zeros({}, at::kDouble));
  std::vector<double> counts(static_cast<size_t>(layers + 1), 0);
  int64_t response = 0;
  for (int64_t i = 0; i < batch.tokens.size(); ++i) {
    const int64_t begin = batch.tokens.seq_offsets[i].item<int32_t>(),
                  length = batch.tokens.seq_offsets[i + 1].item<int32_t>() - begin,
                  prompt = batch.tokens.prompt_lens[i].item<int32_t>();
    const at::Tensor tokens = batch.tokens.tokens.narrow(0, begin, length).to(at::kLong);
    const at::Tensor mask = at::zeros({length}, at::kDouble);  // of the token at a position
    mask.narrow(0, prompt, length - prompt).copy_(batch.loss_mask.narrow(0, response, length - prompt));
    response += length - prompt;
    at::Tensor hidden = reference.decode(tokens);
    for (int64_t k = 0; k <= layers; ++k) {
      if (k > 0 && hidden.size(0) > 1)
        hidden = reference.predict(hidden, tokens, k - 1, options.prediction.detach);
      const int64_t rows = length - 1 - k;  // that predict something
      if (rows <= 0) break;
      const at::Tensor head = k == 0 ? reference.head() : reference.head().detach();
      const at::Tensor own = mask.narrow(0, k + 1, rows);
      const at::Tensor losses =
          cross_entropies(hidden.narrow(0, 0, rows), head, tokens.narrow(0, k + 1, rows));
      sums[static_cast<size_t>(k)] = sums[static_cast<size_t>(k)] + (losses * own).sum();
      counts[static_cast<size_t>(k)] += own.sum().item<double>();
    }
  }
  Losses losses{sums[0] / counts[0], {}};
  for (size_t k = 1; k < sums.size(); ++k) {
    const at::Tensor mean = sums[k] / counts[k];
    losses.all = losses.all + mean * (options.prediction.coef / static_cast<double>(layers));
    losses.further.push_back(mean.item<double>());
  }
  return losses;
}

MiniBatches one_mini(const SftBatch& batch) {
  MiniBatches mini;
  mini.offsets = {0, batch.tokens.size()};
  mini.global_tokens = {batch.loss_mask.sum().item<double>()};
  mini.global_sequences = {static_cast<double>(batch.tokens.size())};
  return mini;
}

}  // namespace

TEST(losses_and_gradients_are_those_of_autograd_in_double_precision) {
  const SftBatch batch = odd_batch();
  for (const auto& [layers, detach, tied, hidden_first, capacity] : {std::tuple{1, false, false, true, 24},
                                                                     {1, true, false, false, 24},
                                                                     {2, false, true, false, 4096},
                                                                     {3, false, false, true, 30},
                                                                     {2, true, true, true, 24}}) {
    EngineOptions options = predicting("llama", layers, detach);
    options.model.tied_embeddings = tied;
    options.model.prediction->hidden_first = hidden_first;
    options.max_tokens = capacity;
    const auto engine = create_engine(options);
    engine->compute_log_prob(batch.tokens, 1, false, false);  // from here on there are weights
    const PredictionReference reference = reference_of(*engine, options.model);
    const Losses expected = reference_losses(reference, batch, options);
    expected.all.backward();
    const Metrics metrics = engine->update_sft(batch, one_mini(batch), {}).back();
    for (size_t k = 0; k < expected.further.size(); ++k)
      CHECK_CLOSE(metrics.at("mtp_losses/mtp_" + std::to_string(k + 1) + "_loss"), expected.further[k], 1e-5);
    for (const auto& [name, leaf] : reference.all()) {
      const at::Tensor gradient = engine->get_tensor(TensorKind::kGrad, name).to(at::kDouble);
      const at::Tensor wanted = leaf.grad().defined() ? leaf.grad() : at::zeros_like(leaf);
      CHECK((gradient - wanted).abs().max().item<double>() < 1e-5 * wanted.abs().max().item<double>() + 1e-8);
    }
  }
}

TEST(rows_hold_the_tokens_that_follow) {
  const SftBatch batch = odd_batch();
  const BatchLayout layout = check_layout(batch.tokens, kVocabulary, 64);
  const auto* tokens = batch.tokens.tokens.const_data_ptr<int32_t>();
  for (const int64_t capacity : {16, 24, 4096}) {
    for (const MicroBatch& micro : pack(layout, 0, layout.size(), capacity)) {
      const RowPadding padding{kRowTile, capacity, false};
      PackedTokens before = gather(batch.tokens, layout, micro, padded_rows(micro, padding));
      for (int64_t depth = 1; depth <= 3; ++depth) {
        const FurtherTokens further = further_tokens(batch.tokens, layout, depth);
        const FurtherRows rows = further_rows(further, micro, before, padding);
        const PackedTokens& packed = rows.packed;
        CHECK(packed.tokens.size(0) % kRowTile == 0 && packed.tokens.size(0) >= packed.real_rows);
        for (int64_t row = 0; row < packed.real_rows; ++row) {
          const int64_t source = rows.sources[row].item<int64_t>();
          CHECK(source < before.real_rows);
          CHECK(packed.positions[row].item<int32_t>() == before.positions[source].item<int32_t>());
        }
        for (int64_t n = 0; n < packed.targets.size(0); ++n) {
          // The row that predicts a token holds the one before it, and stands `depth` positions further
          // ahead.
          const int64_t row = packed.predict_rows[n].item<int64_t>();
          const int64_t response =
              further.responses[packed.response_index[n].item<int64_t>()].item<int64_t>();
          int64_t sequence = 0;
          while (layout.response_offsets[sequence + 1] <= response) ++sequence;
          const int64_t position =
              layout.prompt_length(sequence) + response - layout.response_offsets[sequence];
          const int32_t* own = tokens + layout.seq_offsets[sequence];
          CHECK(packed.targets[n].item<int32_t>() == own[position]);
          CHECK(packed.tokens[row].item<int32_t>() == own[position - 1]);
          CHECK(packed.positions[row].item<int32_t>() == position - 1 - depth);
        }
        before = packed;
      }
    }
  }
  // Of every response token there is one row, but of the first of all where nothing lies before it.
  CHECK(further_tokens(batch.tokens, layout, 1).responses.numel() == layout.num_response_tokens() - 2);
  CHECK(further_tokens(batch.tokens, layout, 2).responses.numel() == layout.num_response_tokens() - 4);
}

TEST(a_detached_layer_leaves_the_decoder_as_it_is_without_it) {
  const SftBatch batch = odd_batch();
  for (const char* variant : {"qwen3", "deepseek_v3", "qwen3_next"}) {
    EngineOptions options = predicting(variant, 1, /*detach=*/true);
    const auto engine = create_engine(options);
    options.model.prediction.reset();
    const auto without = create_engine(options);
    CHECK(engine->compute_log_prob(batch.tokens, 1, false, false)
              .log_probs.equal(without->compute_log_prob(batch.tokens, 1, false, false).log_probs));
    engine->update_sft(batch, one_mini(batch), {});
    without->update_sft(batch, one_mini(batch), {});
    for (const ParameterInfo& info : without->parameters()) {
      if (info.name.find("correction_bias") != std::string::npos) continue;
      CHECK(engine->get_tensor(TensorKind::kGrad, info.name)
                .equal(without->get_tensor(TensorKind::kGrad, info.name)));
    }
  }
}

TEST(losses_in_bfloat16_are_near_those_in_float32) {
  const SftBatch batch = odd_batch();
  const auto losses = [&](at::ScalarType dtype, at::ScalarType masters) {
    EngineOptions options = predicting("llama", 2);
    options.dtype = dtype;
    options.master_dtype = masters;
    const auto engine = create_engine(options);
    MiniBatches mini = one_mini(batch);
    mini.epochs = 3;
    const Metrics last = engine->update_sft(batch, mini, {}).back();
    return std::vector<double>{last.at("mtp_losses/mtp_1_loss"), last.at("mtp_losses/mtp_2_loss")};
  };
  const std::vector<double> expected = losses(at::kFloat, at::kFloat);
  for (const at::ScalarType masters : {at::kFloat, at::kBFloat16}) {
    const std::vector<double> rounded = losses(at::kBFloat16, masters);
    for (size_t k = 0; k < expected.size(); ++k) CHECK_CLOSE(rounded[k] / expected[k], 1, 0.01);
  }
}

// A weight so large that products overflow spoils the layer's own gradients, and detached ones are the only
// sign of it.
TEST(all_ranks_skip_an_update_whose_further_loss_is_not_finite) {
  for (const bool detach : {false, true}) {
    const EngineOptions options = predicting("llama", 1, detach);
    const std::string norm = "layers." + std::to_string(options.model.num_layers) + ".predict.norm.weight";
    check_all(2, [&](Communicator& comm) {
      const auto engine = create_engine(options, std::shared_ptr<Communicator>(&comm, [](Communicator*) {}));
      const auto scale_by = [&](double scale) {
        const at::Tensor values = at::full({options.model.hidden_size}, scale);
        engine->import_weights(
            {"float32", {{norm, 0, options.model.hidden_size, false, norm, 0, options.model.hidden_size}}},
            values.view(at::kByte));
      };
      const SftBatch batch = odd_batch();
      MiniBatches mini = one_mini(batch);
      mini.global_tokens[0] *= 2;
      const auto kept = [&] { return engine->get_tensor(TensorKind::kParam, "layers.0.attn.out.weight"); };
      CHECK(engine->update_sft(batch, mini, {}).at(0).at("update_skipped") == 0);
      const at::Tensor before = kept();
      scale_by(3e38);
      const Metrics skipped = engine->update_sft(batch, mini, {}).at(0);
      CHECK(skipped.at("update_skipped") == 1 && std::isfinite(skipped.at("loss")));
      CHECK(!std::isfinite(skipped.at("mtp_losses/mtp_1_loss")));
      CHECK(kept().equal(before) && engine->optimizer_steps() == 1);
      scale_by(1);
      CHECK(engine->update_sft(batch, mini, {}).at(0).at("update_skipped") == 0);
      CHECK(!kept().equal(before));
    });
  }
}

TEST(what_cannot_be_trained_is_refused) {
  EngineOptions options = predicting("llama", 1);
  options.lora = attention_adapters(options.model);
  CHECK_THROWS(create_engine(options), "expected no adapters");
  options = predicting("llama", 1);
  options.parallel.cp = 2;
  CHECK_THROWS(create_engine(options), "expected neither cp nor ulysses");
  options = predicting("gpt2", 1);
  CHECK_THROWS(create_engine(options), "need a causal LM with rotary positions");
  options = predicting("llama", 0);
  CHECK_THROWS(create_engine(options), "prediction.layers");
}

TEST_MAIN()
