#include "tensor_training.h"

// Ranks that share every matrix have the numbers of one process.

using namespace troupe;
using namespace troupe::test;

namespace {

// Layouts in turn: tp 2 and 4 with one or two groups, each with and without sequence parallelism,
// checkpointing and accumulation over micro-batches. With TROUPE_TEST_EXHAUSTIVE=1 all of them, otherwise
// `some`, other ones each time.
void compare_layouts(const std::string& variant, HeadKind head, size_t some, const Task& task) {
  static size_t turn = 0;
  constexpr size_t kLayouts = 24;
  const size_t count = std::getenv("TROUPE_TEST_EXHAUSTIVE") != nullptr ? kLayouts : some;
  for (size_t i = 0; i < count; ++i) {
    const size_t layout = (5 * turn++) % kLayouts;  // 5 has no factor in common with 24: all of them come
    const auto [tp, groups] = std::vector<std::pair<int64_t, int64_t>>{{2, 1}, {4, 1}, {2, 2}}[layout % 3];
    EngineOptions options = tensor_options(variant, head, tp, layout / 3 % 2 == 1);
    options.gradient_checkpointing = layout / 6 % 2 == 1;
    options.max_tokens = layout / 12 == 1 ? kAccumulating : kAtOnce;
    compare(options, groups, task);
  }
}

EngineOptions qwen3(int64_t tp, bool sequence_parallel = true) {
  return tensor_options("qwen3", HeadKind::kLm, tp, sequence_parallel);
}

Task updates(int64_t count) {
  Task task;
  task.updates = count;
  return task;
}

}  // namespace

TEST(ten_updates_of_every_family_equal_one_process) {
  Task task;
  task.policy.entropy_coeff = 0.01;
  for (const std::string variant :
       {"llama",      "qwen2",       "qwen3",       "gpt2",          "gemma2",   "gemma3",     "smollm3",
        "qwen3_moe",  "deepseek_v3", "gpt_oss",     "latent",        "qwen3_5",  "qwen3_next", "mamba2",
        "nemotron_h", "olmo3",       "olmo_hybrid", "lfm2",          "lfm2_moe", "granite",    "granitemoe",
        "glm4",       "gemma4",      "gemma4_moe",  "gemma4_shared", "apertus"}) {
    compare_layouts(variant, HeadKind::kLm, 1, task);
  }
}

// Two updates: with norms behind what attention and experts give, which is little here, ten make rounding
// thousands of times larger, on one rank as well.
TEST(gates_with_a_matrix_of_their_own) {
  for (const int64_t tp : {2, 4}) compare(tensor_options("afmoe", HeadKind::kLm, tp, tp == 4), 1, updates(2));
}

TEST(ten_updates_of_a_critic_equal_one_process) {
  for (const std::string variant : {"qwen2", "gpt2"}) compare_layouts(variant, HeadKind::kValue, 1, {});
}

TEST(rows_have_the_same_bits_with_and_without_sequence_parallelism) {
  for (const std::string variant : {"gemma2", "qwen3_moe", "olmo3", "olmo_hybrid", "granite", "glm4",
                                    "mamba2", "lfm2", "gemma4_moe", "gemma4_shared"}) {
    std::vector<at::Tensor> log_probs;
    for (const bool sequence_parallel : {false, true}) {
      const EngineOptions options = tensor_options(variant, HeadKind::kLm, 2, sequence_parallel);
      const std::vector<Outcome> outcomes = work_together(options, 2, round_robin(1), updates(0));
      log_probs.push_back(outcomes[0].before.log_probs);
    }
    CHECK(log_probs[0].equal(log_probs[1]));
  }
}

TEST(the_first_forward_of_an_update_has_the_bits_of_compute_log_prob) {
  for (const bool sequence_parallel : {false, true}) {
    EngineOptions options = qwen3(2, sequence_parallel);
    options.gradient_checkpointing = sequence_parallel;
    check_first_forward(options, 2);
  }
}

TEST(one_key_head_for_all_ranks) {
  for (const char* variant : {"qwen3", "olmo3", "granite", "glm4"}) {
    EngineOptions options = tensor_options(variant, HeadKind::kLm, 4, true);
    options.model.num_kv_heads = 1;
    options.model.qkv_bias = true;
    compare(options, 1, updates(5));
  }
}

TEST(adapters) {
  for (const int64_t tp : {2, 4}) {
    EngineOptions options = tensor_options("qwen3", tp == 2 ? HeadKind::kLm : HeadKind::kValue, tp, tp == 2);
    options.lora = attention_adapters(options.model);
    for (int64_t layer = 0; layer < options.model.num_layers; ++layer) {
      const std::string prefix = "layers." + std::to_string(layer) + ".mlp.";
      const int64_t inner = options.model.intermediate_size;
      options.lora->sites.push_back({prefix + "in.gate", prefix + "in.weight", 0, inner});
      options.lora->sites.push_back({prefix + "in.up", prefix + "in.weight", inner, inner});
      options.lora->sites.push_back(
          {prefix + "out.down", prefix + "out.weight", 0, options.model.hidden_size});
    }
    options.optim->lr = 1e-3;
    compare(options, tp == 2 ? 2 : 1, updates(5), {1e-5, 1e-4});
  }
}

// What makes the latents is on all ranks, and so are its adapters.
TEST(adapters_of_latent_attention) {
  for (const std::string variant : {"deepseek_v3", "latent"}) {
    EngineOptions options = tensor_options(variant, HeadKind::kLm, 2, variant == "latent");
    options.lora = attention_adapters(options.model);
    options.optim->lr = 1e-3;
    compare(options, 1, updates(5), {1e-5, 1e-4});
  }
}

TEST(adapters_on_part_of_what_is_cut_are_refused) {
  EngineOptions options = qwen3(2);
  options.lora = LoraOptions{4, 2, {{"layers.0.attn.qkv.some", "layers.0.attn.qkv.weight", 0, 3}}};
  test::on_ranks(2, [&](int64_t, const std::shared_ptr<Communicator>& comm) {
    CHECK_THROWS(create_engine(options, comm), "expects adapters on whole ones of them, got rows 0 to 3");
  });
}

TEST(with_prefetch_offload_and_one_reduction) {
  EngineOptions options = qwen3(2);
  options.prefetch = true;
  options.reduction = parse_reduction("mini_batch");
  options.offload = {true, true, true};
  compare(options, 2, updates(3));
  options.sharding = parse_sharding_strategy("no_shard");
  options.sequence_parallel = false;
  compare(options, 2, updates(3));
}

TEST(bfloat16) {
  EngineOptions options = qwen3(2);
  options.dtype = parse_dtype("bfloat16");
  compare(options, 1, updates(3), {0.05, 0.02});
}

TEST(losses_that_need_whole_sequences) {
  for (const std::string mode : {"gspo", "clip_cov"}) {
    Task task = updates(3);
    task.policy.mode = parse_policy_mode(mode);
    task.policy.extra = {{"kl_cov_ratio", 0.1}, {"clip_cov_ratio", 0.1}};
    compare(qwen3(2), 1, task);
  }
}

TEST(supervised_updates) {
  Task task = updates(3);
  task.supervised = true;
  compare(qwen3(2), 2, task);
}

TEST(a_group_without_sequences) {
  compare(qwen3(2), std::vector<int64_t>{0, 0, 0, 0, 0, 1, 0, 0}, 3, updates(3));
}

TEST(a_vocabulary_of_fewer_words_than_ranks_would_like) {
  // Parts of 13, 13, 13 and 11; of 3, 3, 1 and none.
  EngineOptions options = qwen3(4);
  options.model.tied_embeddings = true;
  compare(options, 1, updates(3));
  const TokenBatch tokens{at::tensor({3, 4, 6, 0}, at::kInt), at::tensor({0, 4}, at::kInt),
                          at::tensor({1}, at::kInt)};
  options.model.vocab_size = 7;
  const at::Tensor expected =
      create_engine(alone(options))->compute_log_prob(tokens, 1, false, false).log_probs;
  test::on_ranks(4, [&](int64_t, const std::shared_ptr<Communicator>& comm) {
    const auto engine = create_engine(options, comm);
    CHECK(
        (engine->compute_log_prob(tokens, 1, false, false).log_probs - expected).abs().max().item<double>() <
        1e-5);
  });
}

TEST(a_micro_batch_with_one_row) {
  const TokenBatch tokens{at::tensor({3, 4}, at::kInt), at::tensor({0, 2}, at::kInt),
                          at::tensor({1}, at::kInt)};
  const EngineOptions options = qwen3(4);
  const auto update = [&](Engine& engine) {
    return engine.update_policy(
        {tokens, at::ones({1}, at::kByte), at::full({1}, -3.9), at::ones({1}), {}, {}, {}},
        {{0, 1}, {1}, {1}, 1}, {}, 1)[0];
  };
  const Metrics expected = update(*create_engine(alone(options)));
  test::on_ranks(4, [&](int64_t, const std::shared_ptr<Communicator>& comm) {
    const Metrics actual = update(*create_engine(options, comm));
    for (const auto& [name, value] : expected) CHECK_CLOSE(actual.at(name), value, 1e-5);
  });
}

TEST(models_that_do_not_divide_are_refused_with_the_numbers) {
  const auto expect = [](const EngineOptions& options, const char* message) {
    test::on_ranks(options.parallel.tp, [&](int64_t, const std::shared_ptr<Communicator>& comm) {
      CHECK_THROWS(create_engine(options, comm), message);
    });
  };
  EngineOptions options = qwen3(3);
  expect(options, "expected tp to divide the 8 attention heads of the model, got tp 3");
  options.model.num_heads = 6;
  expect(options,
         "expected tp to divide the 2 key heads of the model, or to be a multiple of them, got tp 3");
  options.parallel.tp = 2;
  options.ulysses = 2;
  expect(options, "got tp 2 and ulysses 2");
  options.parallel.cp = 2;
  options.parallel.tp = 1;
  expect(options, "got cp 2 and ulysses 2");
}

TEST_MAIN()
