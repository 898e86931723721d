#include <cstdlib>

#include "long_training.h"

// Ranks that share micro-batches have the numbers of one process.

using namespace troupe;
using namespace troupe::test;

namespace {

double relative(const at::Tensor& a, const at::Tensor& b) {
  return ((a - b).norm() / b.norm()).item<double>();
}

at::Tensor flat(const std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> parts;
  for (const at::Tensor& tensor : tensors) parts.push_back(tensor.reshape({-1}));
  return at::cat(parts);
}

// The parts of a whole array that the sequences of `group` have.
at::Tensor part_of(const at::Tensor& whole, int64_t group, const std::vector<int64_t>& owners) {
  std::vector<at::Tensor> parts{at::empty({0}, whole.options())};
  int64_t start = 0;
  for (int64_t i = 0; i < kLongSequences; ++i) {
    std::vector<int64_t> alone(kLongSequences, 1);
    alone[static_cast<size_t>(i)] = 0;
    const int64_t length = long_batch(0, alone).a.numel();
    if (owners[static_cast<size_t>(i)] == group) parts.push_back(whole.narrow(0, start, length));
    start += length;
  }
  return at::cat(parts);
}

// The numbers of one process that has all sequences.
void compare(EngineOptions options, int64_t size, const std::vector<int64_t>& owners, const Task& task,
             double tolerance = 1e-6) {
  EngineOptions alone = options;
  alone.ulysses = 1;
  alone.prefetch = false;
  alone.offload = {};
  const auto whole = create_engine(alone);
  const HeadKind head = options.model.head;
  const LongBatch batch = long_batch(0, std::vector<int64_t>(kLongSequences, 0));
  const Outcome expected = work(*whole, head, batch, task);
  const std::vector<Outcome> actual = work_together(options, size, owners, task);
  const int64_t groups = size / options.ulysses;
  for (const Outcome& outcome : actual) {
    if (outcome.weights.empty()) return;  // reported already
  }
  for (int64_t rank = 0; rank < size; ++rank) {
    const Outcome& outcome = actual[static_cast<size_t>(rank)];
    const int64_t group = rank / options.ulysses;
    for (const auto column :
         {&LogProbResult::log_probs, &LogProbResult::entropy, &LogProbResult::sum_pi_squared}) {
      if (!(expected.before.*column).defined()) continue;
      CHECK((outcome.before.*column).equal(part_of(expected.before.*column, group, owners)));
    }
    CHECK(flat(outcome.weights).equal(flat(actual[0].weights)));
    for (size_t step = 0; step < expected.metrics.size(); ++step) {
      CHECK(outcome.metrics[step].at("grad_norm") == actual[0].metrics[step].at("grad_norm"));
      // Ranks of a group say the same of the same tokens.
      CHECK(outcome.metrics[step] == actual[static_cast<size_t>(group * options.ulysses)].metrics[step]);
    }
  }
  CHECK(relative(flat(actual[0].weights), flat(expected.weights)) < tolerance);
  if (!expected.gradients.empty())
    CHECK(relative(flat(actual[0].gradients), flat(expected.gradients)) < 100 * tolerance);
  for (size_t step = 0; step < expected.metrics.size(); ++step) {
    const double norm = expected.metrics[step].at("grad_norm");
    CHECK(norm > 0);
    CHECK_CLOSE(actual[0].metrics[step].at("grad_norm") / norm, 1.0, 10 * tolerance);
    double loss = 0;
    for (int64_t group = 0; group < groups; ++group) {
      const Metrics& metrics = actual[static_cast<size_t>(group * options.ulysses)].metrics[step];
      if (metrics.count("loss") > 0) loss += metrics.at("loss");
    }
    const double whole_loss = expected.metrics[step].at("loss");
    CHECK_CLOSE(loss, whole_loss, 10 * tolerance * std::max(1.0, std::abs(whole_loss)));
    if (groups > 1) continue;
    const auto& tokens = batch.mini.global_tokens;  // of each mini-batch
    const double one_token = 1.001 / *std::min_element(tokens.begin(), tokens.end());
    for (const auto& [name, value] : expected.metrics[step]) {
      // A share of the tokens goes in steps: in bfloat16 one of them may be clipped here and not there.
      const bool share = options.dtype == at::kBFloat16 && name == "pg_clipfrac";
      const double bound = share ? one_token : 10 * tolerance * std::max(1.0, std::abs(value));
      CHECK_CLOSE(actual[0].metrics[step].at(name), value, bound);
    }
  }
}

struct Spread {
  int64_t size, ulysses;
  std::string sharding = "full_shard";
  int64_t shard_size = 0;
};

// All strategies, with and without checkpointing and accumulation: with TROUPE_TEST_EXHAUSTIVE=1 each with
// each, otherwise such that each is there.
void compare_everywhere(HeadKind head) {
  std::vector<Spread> spreads;
  for (const auto& [size, ulysses] : {std::pair{2, 2}, {3, 3}, {4, 2}}) {
    for (const std::string sharding : {"full_shard", "shard_grad_op", "no_shard"})
      spreads.push_back({size, ulysses, sharding});
  }
  spreads.push_back({4, 2, "full_shard", 2});
  const bool exhaustive = std::getenv("TROUPE_TEST_EXHAUSTIVE") != nullptr;
  for (size_t i = 0; i < spreads.size(); ++i) {
    for (size_t combination = 0; combination < 4; ++combination) {
      if (!exhaustive && combination != (i + (head == HeadKind::kLm ? 0 : 2)) % 4) continue;
      const Spread& spread = spreads[i];
      EngineOptions options = long_options("qwen3", head);
      options.ulysses = spread.ulysses;
      options.sharding = parse_sharding_strategy(spread.sharding);
      options.shard_size = spread.shard_size;
      options.gradient_checkpointing = combination % 2 == 1;
      options.max_tokens = combination < 2 ? kAccumulating : kAtOnce;
      Task task;
      task.policy.entropy_coeff = 0.01;
      compare(options, spread.size, round_robin(spread.size / spread.ulysses), task);
    }
  }
}

}  // namespace

TEST(ten_updates_of_an_actor_equal_one_process) {
  compare_everywhere(HeadKind::kLm);
}

TEST(ten_updates_of_a_critic_equal_one_process) {
  compare_everywhere(HeadKind::kValue);
}

TEST(every_kind_of_model) {
  for (const std::string variant :
       {"gpt2",     "qwen3_moe", "deepseek_v3", "gpt_oss",       "olmo3",      "granite",     "granitemoe",
        "glm4",     "qwen3_5",   "qwen3_next",  "mamba2",        "nemotron_h", "olmo_hybrid", "lfm2",
        "lfm2_moe", "gemma4",    "gemma4_moe",  "gemma4_shared", "afmoe",      "apertus"}) {
    EngineOptions options = long_options(variant, HeadKind::kLm);
    options.ulysses = 2;
    Task task;
    task.updates = 3;
    compare(options, 2, round_robin(1), task);
  }
}

TEST(key_heads_are_repeated_where_there_are_too_few) {
  // Query heads, key heads, ranks: one key head for all, two for four ranks, three for two.
  for (const auto& [heads, kv_heads, size] : {std::tuple{6, 1, 3}, {8, 2, 4}, {6, 3, 2}, {4, 4, 2}}) {
    EngineOptions options = long_options("qwen3", HeadKind::kLm);
    options.model.num_heads = heads;
    options.model.num_kv_heads = kv_heads;
    options.ulysses = size;
    Task task;
    task.updates = 3;
    compare(options, size, round_robin(1), task);
  }
}

TEST(heads_of_linear_attention_are_shared_as_far_as_its_key_heads_go) {
  for (const std::string variant : {"qwen3_next", "mamba2", "lfm2"}) {
    for (const HeadKind head : {HeadKind::kLm, HeadKind::kValue}) {
      EngineOptions options = long_options(variant, head);
      give_linear_heads(options.model, 4, 8);
      options.model.num_heads = options.model.num_kv_heads = 4;
      options.gradient_checkpointing = head == HeadKind::kLm;
      options.ulysses = 4;
      Task task;
      task.updates = 3;
      compare(options, 4, round_robin(1), task);
      options.ulysses = 2;
      compare(options, 4, round_robin(2), task);
    }
  }
  EngineOptions options = long_options("qwen3_5", HeadKind::kLm);
  options.model.num_heads = options.model.num_kv_heads = 4;
  options.ulysses = 4;
  on_ranks(4, [&](int64_t, const std::shared_ptr<Communicator>& comm) {
    CHECK_THROWS(create_engine(options, comm), "to divide the 2 key heads of the linear attention");
  });
}

TEST(adapters) {
  for (const HeadKind head : {HeadKind::kLm, HeadKind::kValue}) {
    EngineOptions options = long_options("qwen3", head);
    options.lora = attention_adapters(options.model);
    options.optim->lr = 1e-3;
    options.ulysses = 2;
    compare(options, 4, round_robin(2), {});
  }
}

TEST(with_prefetch_offload_and_one_reduction) {
  for (const bool checkpointing : {false, true}) {
    EngineOptions options = long_options("qwen3", HeadKind::kLm);
    options.gradient_checkpointing = checkpointing;
    options.ulysses = 2;
    options.prefetch = true;
    options.reduction = parse_reduction(checkpointing ? "mini_batch" : "micro_batch");
    options.offload = {true, true, true};
    Task task;
    task.updates = 3;
    compare(options, 4, round_robin(2), task);
  }
}

TEST(bfloat16) {
  EngineOptions options = long_options("qwen3", HeadKind::kLm);
  options.dtype = parse_dtype("bfloat16");
  options.model.num_kv_heads = 1;
  options.ulysses = 2;
  Task task;
  task.updates = 3;
  compare(options, 2, round_robin(1), task, 1e-4);
}

TEST(losses_that_need_whole_sequences) {
  for (const std::string mode : {"gspo", "geo_mean", "kl_cov", "clip_cov"}) {
    EngineOptions options = long_options("qwen3", HeadKind::kLm);
    options.ulysses = 2;
    Task task;
    task.updates = 3;
    task.policy.mode = parse_policy_mode(mode);
    task.policy.entropy_coeff = mode == "gspo" ? 0.01 : 0;
    task.policy.extra = {{"kl_cov_ratio", 0.1}, {"clip_cov_ratio", 0.1}};
    compare(options, 2, round_robin(1), task);
  }
}

TEST(averages_over_sequences_that_lie_on_several_ranks) {
  EngineOptions options = long_options("qwen3", HeadKind::kLm);
  options.ulysses = 3;
  Task task;
  task.updates = 3;
  task.epochs = 2;
  task.policy.aggregation = Aggregation::kSeqMeanTokenMean;
  compare(options, 3, round_robin(1), task);
  options.model.head = HeadKind::kValue;
  task.value_aggregation = Aggregation::kSeqMeanTokenMean;
  compare(options, 3, round_robin(1), task);
}

TEST(supervised_updates) {
  EngineOptions options = long_options("qwen3", HeadKind::kLm);
  options.ulysses = 2;
  Task task;
  task.updates = 3;
  task.supervised = true;
  compare(options, 4, round_robin(2), task);
}

TEST(unequal_and_empty_shares_do_not_change_the_result) {
  // Group 1 has one sequence, of the second mini-batch; group 2 has none.
  const std::vector<int64_t> owners{0, 0, 0, 0, 0, 1, 0, 0};
  for (const std::string sharding : {"full_shard", "no_shard"}) {
    EngineOptions options = long_options("qwen3", HeadKind::kLm);
    options.ulysses = 2;
    options.sharding = parse_sharding_strategy(sharding);
    Task task;
    task.updates = 3;
    compare(options, 6, owners, task);
    task.policy.mode = PolicyMode::kGspo;
    compare(options, 6, owners, task);
  }
}

TEST(a_micro_batch_with_one_row) {
  const TokenBatch tokens{at::tensor({3, 4}, at::kInt), at::tensor({0, 2}, at::kInt),
                          at::tensor({1}, at::kInt)};
  EngineOptions options = long_options("qwen3", HeadKind::kLm);
  const auto update = [&](Engine& engine) {
    return engine.update_policy(
        {tokens, at::ones({1}, at::kByte), at::full({1}, -3.9), at::ones({1}), {}, {}, {}},
        {{0, 1}, {1}, {1}, 1}, {}, 1)[0];
  };
  const Metrics expected = update(*create_engine(options));
  options.ulysses = 3;
  on_ranks(3, [&](int64_t, const std::shared_ptr<Communicator>& comm) {
    const Metrics actual = update(*create_engine(options, comm));
    for (const auto& [name, value] : expected) CHECK_CLOSE(actual.at(name), value, 1e-6);
  });
}

TEST_MAIN()
