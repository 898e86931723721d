#include "batch/row_parts.h"
#include "kernels/gemm.h"
#include "tensor_training.h"

// Ranks that share every sequence by context have the numbers of one process.

using namespace troupe;
using namespace troupe::test;

namespace {

EngineOptions context(const std::string& variant, int64_t cp, int64_t tp = 1, int64_t pp = 1,
                      HeadKind head = HeadKind::kLm) {
  EngineOptions options = tensor_options(variant, head, tp, tp > 1);
  options.parallel.cp = cp;
  options.pipeline.stages = pp;
  return options;
}

Task updates(int64_t count) {
  Task task;
  task.updates = count;
  return task;
}

// Sequences of these lengths after prompts of one token, all of which begin differently.
TokenBatch sequences_of(const std::vector<int64_t>& lengths) {
  std::vector<at::Tensor> tokens;
  std::vector<int32_t> offsets{0};
  for (size_t i = 0; i < lengths.size(); ++i) {
    const auto first = static_cast<int64_t>(i);
    tokens.push_back(at::arange(lengths[i], at::kInt).mul(7).add(3 * first + 1).remainder(kVocabulary));
    offsets.push_back(offsets.back() + static_cast<int32_t>(lengths[i]));
  }
  return {at::cat(tokens), at::tensor(offsets, at::kInt),
          at::ones({static_cast<int64_t>(lengths.size())}, at::kInt)};
}

PackedTokens packed(const std::vector<int64_t>& lengths, int64_t rows) {
  const TokenBatch batch = sequences_of(lengths);
  const BatchLayout layout = check_layout(batch, kVocabulary, 1 << 20);
  MicroBatch micro = pack(layout, 0, layout.size(), 1 << 20)[0];
  return gather(batch, layout, micro, rows);
}

}  // namespace

TEST(parts_of_a_micro_batch_are_even_in_rows_and_in_attention) {
  for (const int64_t count : {2, 3, 4}) {
    const int64_t rows = 120 * count;
    const PackedTokens whole = packed({2, 2, 2, 4, 6, 66, 131, 2, 19}, rows);
    std::vector<int64_t> seen;
    int64_t least = rows, most = 0, predictions = 0;
    for (int64_t part = 0; part < count; ++part) {
      const PackedTokens own = balanced_rows(whole, part, count);
      CHECK(own.tokens.size(0) == rows / count);
      CHECK(ops::real_queries(own.segments) == own.real_rows);
      least = std::min(least, own.real_rows);
      most = std::max(most, own.real_rows);
      predictions += own.predictions.size(0);
      // Where the places say, the rows lie.
      for (int64_t row = 0; row < rows; ++row) {
        const int64_t place = own.places[row].item<int64_t>();
        if (place / (rows / count) != part) continue;
        seen.push_back(row);
        CHECK(own.tokens[place % (rows / count)].equal(whole.tokens[row]));
        CHECK(own.positions[place % (rows / count)].equal(whole.positions[row]));
      }
      // Of a long sequence alone: as many scores as any other part.
      const PackedTokens alone = balanced_rows(packed({1921}, 1920), part, count);
      int64_t scores = 0;
      for (const ops::QueryRun& run : *alone.segments.share)
        scores += (run.end * (run.end + 1) - run.begin * (run.begin + 1)) / 2;
      CHECK(std::abs(scores - 1920 * 1921 / 2 / count) <= 1920 / count);
    }
    CHECK(most - least <= 1);
    CHECK(predictions == whole.targets.size(0));
    std::sort(seen.begin(), seen.end());
    CHECK(static_cast<int64_t>(seen.size()) == rows && seen.front() == 0 && seen.back() == rows - 1);
  }
}

TEST(ten_updates_of_every_family_equal_one_process) {
  Task task = updates(10);
  task.policy.entropy_coeff = 0.01;
  bool other = false;
  for (const std::string variant :
       {"llama",    "qwen2",     "qwen3",      "gpt2",         "gemma2",     "gemma3",      "smollm3",
        "olmo3",    "qwen3_moe", "glm4_moe",   "deepseek_v3",  "gpt_oss",    "granite",     "granitemoe",
        "glm4",     "qwen3_5",   "qwen3_next", "mamba2",       "nemotron_h", "olmo_hybrid", "lfm2",
        "lfm2_moe", "gemma4",    "gemma4_moe", "gemma4_shared"}) {
    EngineOptions options = context(variant, 2);
    options.gradient_checkpointing = other = !other;
    options.max_tokens = other ? kAccumulating : kAtOnce;
    compare(options, 1, task);
  }
}

TEST(gates_with_a_matrix_of_their_own) {
  for (const std::string variant : {"afmoe", "apertus"}) compare(context(variant, 2), 1, updates(2));
}

TEST(ten_updates_with_the_other_axes_equal_one_process) {
  const Task task = updates(10);
  // Ten updates carry rounding on, which is more where products are LibTorch's.
  const Tolerance tolerance{1e-5, ops::packs(at::zeros({1, 1})) ? 1e-5 : 5e-5};
  for (const std::string variant : {"llama", "qwen2", "qwen3", "qwen3_moe"}) {
    compare(context(variant, 2, 2), 1, task, tolerance);
    compare(context(variant, 2, 1, 2), 1, task, tolerance);
  }
  compare(context("qwen3", 4), 1, task, tolerance);
  compare(context("qwen3", 3), 1, updates(3));
  compare(context("qwen3", 2), 2, task, tolerance);
  EngineOptions interleaved = context("qwen3", 2, 2, 2);
  interleaved.sequence_parallel = false;
  compare(interleaved, 1, updates(3));
}

TEST(ten_updates_of_a_critic_equal_one_process) {
  for (const std::string variant : {"qwen2", "gpt2"})
    compare(context(variant, 2, 1, 1, HeadKind::kValue), 1, updates(10));
  compare(context("qwen3", 2, 2, 1, HeadKind::kValue), 1, updates(3));
  compare(context("llama", 2, 1, 2, HeadKind::kValue), 1, updates(3));
}

TEST(experts_are_shared_by_ranks_of_a_context) {
  EngineOptions options = context("qwen3_moe", 2);
  options.parallel.ep = 2;
  options.model.moe_layers.back() = true;
  compare(options, 1, updates(10));
  options.gradient_checkpointing = true;
  compare(options, 2, updates(3));
  compare(options, std::vector<int64_t>(kLongSequences, 1), 2, updates(3));  // the first two ranks have none
}

// The bits of one process, from which no rank differs: a row of attention depends on its position alone.
TEST(log_probs_and_values_have_the_bits_of_one_process) {
  for (const std::string variant : {"llama", "qwen3", "gemma2", "qwen3_moe", "qwen3_next", "mamba2", "lfm2",
                                    "gemma4_moe", "gemma4_shared"}) {
    const EngineOptions options = context(variant, 2);
    const LongBatch batch = long_batch(0, std::vector<int64_t>(kLongSequences, 0));
    const LogProbResult expected =
        create_engine(alone(options))->compute_log_prob(batch.tokens, 0.9, true, true);
    test::on_ranks(2, [&](int64_t, const std::shared_ptr<Communicator>& comm) {
      const LogProbResult actual =
          create_engine(options, comm)->compute_log_prob(batch.tokens, 0.9, true, true);
      CHECK(actual.log_probs.equal(expected.log_probs));
      CHECK(actual.entropy.equal(expected.entropy));
      CHECK(actual.sum_pi_squared.equal(expected.sum_pi_squared));
    });
  }
}

TEST(the_first_forward_of_an_update_has_the_bits_of_compute_log_prob) {
  for (const auto& [cp, tp, pp] : {std::tuple{2, 1, 1}, {2, 2, 1}, {2, 1, 2}, {3, 1, 1}}) {
    EngineOptions options = context("qwen3", cp, tp, pp);
    options.gradient_checkpointing = cp == 3;
    check_first_forward(options, ranks_per_group(options));
  }
}

TEST(ranks_generate_by_themselves) {
  check_generation(context("qwen3", 2), 2, [](const Engine&, const GenerateResult&) {});
}

// Keys and values of 128 rows per rank, log-probs and entropies, beside what two ranks of data parallelism
// send.
TEST(bytes_are_those_of_the_formulas) {
  constexpr int64_t kResponses = 160;
  const TokenBatch tokens{at::arange(200, at::kInt).remainder(kVocabulary), at::tensor({0, 200}, at::kInt),
                          at::tensor({40}, at::kInt)};
  for (const bool checkpointing : {false, true}) {
    std::vector<std::pair<int64_t, int64_t>> sent;  // by compute_log_prob and an update, of each kind of rank
    for (const int64_t cp : {1, 2}) {
      EngineOptions options = context("qwen3", cp);
      options.gradient_checkpointing = checkpointing;
      test::on_ranks(2, [&](int64_t rank, const std::shared_ptr<Communicator>& comm) {
        const auto engine = create_engine(options, comm);
        const int64_t first = engine->bytes_sent();
        engine->compute_log_prob(tokens, 1, false, false);
        const int64_t second = engine->bytes_sent();
        engine->update_policy({tokens,
                               at::ones({kResponses}, at::kByte),
                               at::full({kResponses}, -3.9),
                               at::ones({kResponses}),
                               {},
                               {},
                               {}},
                              {{0, 1}, {2 * kResponses}, {2}, 1}, {}, 1);
        if (rank == 0) sent.push_back({second - first, engine->bytes_sent() - second});
      });
    }
    const ModelConfig model = context("qwen3", 2).model;
    const int64_t keys = 2 * model.num_layers * 4 * 128 * model.num_kv_heads * model.head_dim;
    CHECK(sent[1].first - sent[0].first == keys + 4 * kResponses);
    CHECK(sent[1].second - sent[0].second == (checkpointing ? 4 : 3) * keys + 8 * kResponses);
  }
}

TEST(sequences_of_any_length) {
  // One row and none; fewer than chunks; odd; fewer sequences than ranks.
  for (const std::vector<int64_t>& lengths :
       {std::vector<int64_t>{2}, {1, 2}, {2, 2, 2, 2, 2}, {3, 5, 4, 8}, {9, 7, 33, 65, 6}, {131}}) {
    const TokenBatch tokens = sequences_of(lengths);
    const int64_t responses = tokens.tokens.numel() - tokens.size();
    const auto update = [&](Engine& engine) {
      const at::Tensor before = engine.compute_log_prob(tokens, 1, false, false).log_probs;
      const MiniBatches mini{
          {0, tokens.size()}, {static_cast<double>(responses)}, {static_cast<double>(tokens.size())}, 1};
      Metrics metrics;
      for (int64_t step = 0; step < 3; ++step) {
        metrics = engine.update_policy({tokens,
                                        at::ones({responses}, at::kByte),
                                        at::full({responses}, -3.9),
                                        at::arange(responses).add(1).cos(),
                                        {},
                                        {},
                                        {}},
                                       mini, {}, 1)[0];
      }
      metrics["log_probs"] = engine.compute_log_prob(tokens, 1, false, false).log_probs.sum().item<double>();
      return std::pair{before, metrics};
    };
    for (const int64_t cp : {2, 4}) {
      const EngineOptions options = context("qwen3", cp);
      const auto [before, expected] = update(*create_engine(alone(options)));
      test::on_ranks(cp, [&, &before = before, &expected = expected](
                             int64_t, const std::shared_ptr<Communicator>& comm) {
        const auto [own, metrics] = update(*create_engine(options, comm));
        CHECK(own.equal(before));
        for (const auto& [name, value] : expected)
          CHECK_CLOSE(metrics.at(name), value, 1e-5 * std::max(1.0, std::abs(value)));
      });
    }
  }
}

TEST(a_group_without_sequences) {
  compare(context("qwen3", 2), std::vector<int64_t>{0, 0, 0, 0, 0, 1, 0, 0}, 2, updates(3));
}

TEST(losses_that_need_whole_sequences) {
  for (const std::string mode : {"gspo", "clip_cov"}) {
    Task task = updates(3);
    task.policy.mode = parse_policy_mode(mode);
    task.policy.extra = {{"kl_cov_ratio", 0.1}, {"clip_cov_ratio", 0.1}};
    compare(context("qwen3", 2), 1, task);
  }
}

TEST(supervised_updates) {
  Task task = updates(3);
  task.supervised = true;
  compare(context("qwen3", 2), 2, task);
}

TEST(every_sharding_and_adapters) {
  for (const std::string sharding : {"shard_grad_op", "no_shard"}) {
    EngineOptions options = context("qwen3", 2);
    options.sharding = parse_sharding_strategy(sharding);
    compare(options, 2, updates(3));
  }
  EngineOptions options = context("qwen3", 2);
  options.shard_size = 2;
  compare(options, 2, updates(3));
  options.shard_size = 0;
  options.prefetch = true;
  options.reduction = parse_reduction("mini_batch");
  options.offload = {true, true, true};
  options.lora = attention_adapters(options.model);
  options.optim->lr = 1e-3;
  compare(options, 2, updates(3), {1e-5, 1e-4});
}

TEST(bfloat16) {
  EngineOptions options = context("qwen3", 2);
  options.dtype = parse_dtype("bfloat16");
  compare(options, 1, updates(3), {0.05, 0.02});
}

TEST_MAIN()
