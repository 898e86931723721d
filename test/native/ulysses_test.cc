#include <ATen/ATen.h>

#include <cstdlib>
#include <thread>

#include "check.h"
#include "comm/communicator.h"
#include "comm/rendezvous.h"
#include "core/error.h"
#include "core/parallel.h"
#include "core/simulation.h"
#include "toy_training.h"

using namespace troupe;
using namespace troupe::test;

namespace {

// Sequences of a batch that are long enough to lie on several ranks: two prompts with three responses each
// and two prompts of their own. A micro-batch of 520 rows takes four of them, one of 260 two.
constexpr int64_t kLongSequences = 8;
constexpr int64_t kAccumulating = 260, kAtOnce = 520;

struct LongBatch {
  TokenBatch tokens;
  at::Tensor mask, a, b;  // [sum R]; some tokens do not count
  MiniBatches mini;       // two
};

int64_t prompt_of(int64_t i) {
  return i % 4 == 3 ? 11 : 40;
}
int64_t response_of(int64_t i) {
  return 60 + (i * 17) % 41;
}
// Rows of sequence i in a micro-batch that has all that share its prompt.
int64_t own_rows_of(int64_t i) {
  return response_of(i) - 1 + (i % 4 == 0 || i % 4 == 3 ? prompt_of(i) : 0);
}

// The sequences of data-parallel group `group`: owners[i] is the group of sequence i.
LongBatch long_batch(int64_t group, const std::vector<int64_t>& owners) {
  LongBatch batch;
  std::vector<at::Tensor> tokens{at::empty({0}, at::kInt)}, a{at::empty({0})}, b{at::empty({0})},
      mask{at::empty({0}, at::kByte)};
  std::vector<int32_t> offsets{0}, prompts;
  batch.mini.offsets = {0};
  batch.mini.global_tokens = {0, 0};
  batch.mini.global_sequences = {kLongSequences / 2.0, kLongSequences / 2.0};
  for (int64_t i = 0; i < kLongSequences; ++i) {
    const size_t m = i < kLongSequences / 2 ? 0 : 1;
    const int64_t prompt = prompt_of(i);  // the first three of a mini-batch share theirs
    const int64_t response = response_of(i);
    const at::Tensor step = at::arange(response, at::kFloat).add(static_cast<double>(i) * 1.7);
    const at::Tensor counts = at::arange(response).remainder(5 + i).ne(3).to(at::kByte);
    batch.mini.global_tokens[m] += counts.sum().item<double>();
    if (owners[static_cast<size_t>(i)] == group) {
      const int64_t which = i % 4 == 3 ? i : i / 4;
      tokens.push_back(at::arange(prompt, at::kInt).mul(5 + which).add(which).remainder(kVocabulary));
      tokens.push_back(at::arange(response, at::kInt).mul(7 + i).add(3 * i).remainder(kVocabulary));
      a.push_back(step.sin().mul(0.3).sub(3.9));
      b.push_back(step.mul(1.3).cos());
      mask.push_back(counts);
      offsets.push_back(offsets.back() + static_cast<int32_t>(prompt + response));
      prompts.push_back(static_cast<int32_t>(prompt));
    }
    if (i + 1 == kLongSequences / 2 || i + 1 == kLongSequences)
      batch.mini.offsets.push_back(static_cast<int64_t>(prompts.size()));
  }
  batch.tokens = {at::cat(tokens), at::tensor(offsets, at::kInt), at::tensor(prompts, at::kInt)};
  batch.mask = at::cat(mask);
  batch.a = at::cat(a);
  batch.b = at::cat(b);
  return batch;
}

EngineOptions long_options(const std::string& variant, HeadKind head) {
  EngineOptions options = options_of(variant, head);
  options.max_tokens = kAccumulating;
  ModelConfig& model = options.model;
  model.max_positions = 256;
  model.num_heads = 6;
  model.num_kv_heads = 2;
  model.head_dim = 4;
  if (!model.rope_inv_freq.empty()) model.rope_inv_freq.resize(2);
  if (variant == "qwen3") {
    model.qk_norm = true;
    model.sliding_windows = {0, 30};
  } else {
    model.attention_scale = 5;  // scores that differ without q/k norm, too
  }
  return options;
}

LoraOptions attention_adapters(const ModelConfig& model) {
  LoraOptions lora{4, 2, {}};
  for (int64_t layer = 0; layer < model.num_layers; ++layer) {
    const std::string prefix = "layers." + std::to_string(layer) + ".attn.";
    lora.sites.push_back({prefix + "qkv.q", prefix + "qkv.weight", 0, model.q_size()});
    lora.sites.push_back(
        {prefix + "qkv.v", prefix + "qkv.weight", model.q_size() + model.kv_size(), model.kv_size()});
    lora.sites.push_back({prefix + "out.o", prefix + "out.weight", 0, model.hidden_size});
  }
  return lora;
}

// What is done with a batch, besides what the engine is.
struct Task {
  int64_t updates = 10;
  int64_t epochs = 1;
  bool supervised = false;
  PolicyLossOptions policy = {};
  std::string value_aggregation = "token-mean";
};

struct Outcome {
  LogProbResult before;          // log-probs or (as log_probs) values before any update
  std::vector<Metrics> metrics;  // of every step
  std::vector<at::Tensor> weights, gradients;
  int64_t bytes_sent = 0;  // by the updates
};

Outcome work(Engine& engine, HeadKind head, const LongBatch& batch, const Task& task) {
  Outcome outcome;
  if (head == HeadKind::kLm) {
    outcome.before = engine.compute_log_prob(batch.tokens, 0.9, true, true);
  } else {
    outcome.before.log_probs = engine.compute_values(batch.tokens);
  }
  MiniBatches mini = batch.mini;
  mini.epochs = task.epochs;
  const int64_t sent = engine.bytes_sent();
  for (int64_t update = 0; update < task.updates; ++update) {
    MetricsList metrics;
    if (task.supervised) {
      metrics = engine.update_sft({batch.tokens, batch.mask}, mini);
    } else if (head == HeadKind::kLm) {
      metrics = engine.update_policy({batch.tokens, batch.mask, batch.a, batch.b, {}, {}, {}}, mini,
                                     task.policy, 0.9);
    } else {
      ValueLossOptions loss;
      loss.clip_range = 100;  // no prediction is so far from the old value that it has no gradient
      loss.aggregation = task.value_aggregation;
      metrics = engine.update_critic({batch.tokens, batch.mask, batch.a, batch.b}, mini, loss);
    }
    outcome.metrics.insert(outcome.metrics.end(), metrics.begin(), metrics.end());
  }
  outcome.bytes_sent = engine.bytes_sent() - sent;
  for (const ParameterInfo& info : engine.parameters()) {
    outcome.weights.push_back(engine.get_tensor(TensorKind::kParam, info.name));
    const bool adapter = info.name.find("lora") != std::string::npos;
    if (adapter || (head == HeadKind::kValue && info.name == "head.weight"))
      outcome.gradients.push_back(engine.get_tensor(TensorKind::kGrad, info.name));
  }
  return outcome;
}

// body(rank, communicator) in a thread per rank.
template <typename Body>
void on_ranks(int64_t size, Body&& body) {
  const auto rendezvous = Rendezvous::open();
  std::vector<std::thread> threads;
  for (int64_t rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        const std::shared_ptr<Communicator> comm =
            make_communicator({"gloo", rank, size, "127.0.0.1", rendezvous->port(), "secret",
                               std::chrono::milliseconds(60'000)});
        body(rank, comm);
      } catch (const std::exception& error) {
        test::report(false, __FILE__, __LINE__, error.what());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

std::vector<Outcome> work_together(const EngineOptions& options, int64_t size,
                                   const std::vector<int64_t>& owners, const Task& task) {
  std::vector<Outcome> outcomes(static_cast<size_t>(size));
  on_ranks(size, [&](int64_t rank, const std::shared_ptr<Communicator>& comm) {
    const auto engine = create_engine(options, comm);
    outcomes[static_cast<size_t>(rank)] =
        work(*engine, options.model.head, long_batch(rank / options.ulysses, owners), task);
  });
  return outcomes;
}

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
  const auto whole = create_engine(alone);
  const HeadKind head = options.model.head;
  const Outcome expected = work(*whole, head, long_batch(0, std::vector<int64_t>(kLongSequences, 0)), task);
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
    for (const auto& [name, value] : expected.metrics[step])
      CHECK_CLOSE(actual[0].metrics[step].at(name), value, 10 * tolerance * std::max(1.0, std::abs(value)));
  }
}

std::vector<int64_t> round_robin(int64_t groups) {
  std::vector<int64_t> owners;
  for (int64_t i = 0; i < kLongSequences; ++i) owners.push_back(i % groups);
  return owners;
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
      options.sharding = spread.sharding;
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
  for (const std::string variant : {"gpt2", "qwen3_moe"}) {
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

TEST(adapters) {
  for (const HeadKind head : {HeadKind::kLm, HeadKind::kValue}) {
    EngineOptions options = long_options("qwen3", head);
    options.lora = attention_adapters(options.model);
    options.optim->lr = 1e-3;
    options.ulysses = 2;
    compare(options, 4, round_robin(2), {});
  }
}

TEST(bfloat16) {
  EngineOptions options = long_options("qwen3", HeadKind::kLm);
  options.dtype = "bfloat16";
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
    task.policy.mode = mode;
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
  task.policy.aggregation = "seq-mean-token-mean";
  compare(options, 3, round_robin(1), task);
  options.model.head = HeadKind::kValue;
  task.value_aggregation = "seq-mean-token-mean";
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
    options.sharding = sharding;
    Task task;
    task.updates = 3;
    compare(options, 6, owners, task);
    task.policy.mode = "gspo";
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

namespace {

constexpr int64_t kFloat = 4;

// What the all-to-alls of a micro-batch of `rows` rows send, in bytes of one rank.
int64_t exchanged(const EngineOptions& options, int64_t rows, bool training) {
  const ModelConfig& model = options.model;
  const int64_t ranks = options.ulysses;
  const int64_t padded = round_up(rows, ranks * kRowTile);
  const int64_t kv_heads = std::lcm(model.num_kv_heads, ranks);
  const int64_t columns = (2 * model.num_heads + 2 * kv_heads) * model.head_dim;  // qkv, and the output
  const int64_t passes = training ? (options.gradient_checkpointing ? 3 : 2) : 1;
  return passes * model.num_layers * padded / ranks * columns * kFloat / ranks * (ranks - 1);
}

// An all-reduce: up to 4096 elements everything goes to everybody.
int64_t reduced(int64_t elements, int64_t ranks) {
  const int64_t share = round_up(elements, ranks) / ranks;
  return kFloat * (ranks - 1) * (elements <= 4096 ? elements : 2 * share);
}

}  // namespace

TEST(bytes_sent_are_the_theoretical_volume) {
  for (const bool checkpointing : {false, true}) {
    for (const int64_t size : {2, 3}) {
      EngineOptions options = long_options("qwen3", HeadKind::kLm);
      options.max_tokens = kAtOnce;
      options.sharding = "no_shard";
      options.gradient_checkpointing = checkpointing;
      Task task;
      task.updates = 1;
      const std::vector<int64_t> owners = round_robin(1);
      // Without sequence groups the same ranks send this: gradients, counts, norms.
      const std::vector<Outcome> without = work_together(options, size, owners, task);
      options.ulysses = size;
      const std::vector<Outcome> with = work_together(options, size, owners, task);
      int64_t bytes = 0;
      const LongBatch batch = long_batch(0, owners);
      for (int64_t m = 0; m < 2; ++m) {
        int64_t rows = 0, responses = 0;
        for (int64_t i = 4 * m; i < 4 * m + 4; ++i) {
          rows += own_rows_of(i);
          responses += response_of(i);
        }
        bytes += exchanged(options, rows, true) + 2 * reduced(responses, size);  // log-probs, entropy
      }
      for (const Outcome& outcome : with) CHECK(outcome.bytes_sent == without[0].bytes_sent + bytes);
    }
  }
}

TEST(what_is_simulated_is_what_ranks_send) {
  for (const HeadKind head : {HeadKind::kLm, HeadKind::kValue}) {
    for (const std::string sharding : {"full_shard", "no_shard"}) {
      EngineOptions options = long_options("qwen3", head);
      options.max_tokens = 2 * kAtOnce;
      options.model.num_kv_heads = 1;
      options.sharding = sharding;
      options.gradient_checkpointing = head == HeadKind::kLm;
      options.ulysses = 2;
      on_ranks(4, [&](int64_t rank, const std::shared_ptr<Communicator>& comm) {
        const auto engine = create_engine(options, comm);
        // All sequences in one mini-batch; the other group has as many rows.
        LongBatch batch = long_batch(0, std::vector<int64_t>(kLongSequences, 0));
        batch.mini.offsets = {0, kLongSequences};
        batch.mini.global_tokens = {2 * batch.mask.sum().item<double>()};
        batch.mini.global_sequences = {2.0 * kLongSequences};
        Task task;
        task.updates = 1;
        const Outcome outcome = work(*engine, head, batch, task);
        int64_t rows = 0;
        for (int64_t i = 0; i < kLongSequences; ++i) rows += own_rows_of(i);
        const Simulation simulation = simulate_update(options, rank, 4, {1, rows, batch.a.numel()});
        int64_t bytes = 0, exchanges = 0;
        for (const SimulatedCollective& c : simulation.collectives) {
          bytes += c.bytes;
          if (c.name == "all_to_all" && c.subject == "layers.1 attention") exchanges += c.count;
        }
        CHECK(outcome.bytes_sent == bytes);
        CHECK(exchanges == (options.gradient_checkpointing ? 6 : 4));
      });
    }
  }
}

TEST(sizes_that_make_no_sense_are_refused) {
  const auto message = [](int64_t size, int64_t ulysses, int64_t heads) {
    EngineOptions options = long_options("qwen3", HeadKind::kLm);
    options.model.num_heads = heads;
    options.ulysses = ulysses;
    std::vector<std::string> errors(static_cast<size_t>(size), "(nothing thrown)");
    on_ranks(size, [&](int64_t rank, const std::shared_ptr<Communicator>& comm) {
      try {
        create_engine(options, comm);
      } catch (const Error& error) {
        errors[static_cast<size_t>(rank)] = error.what();
      }
    });
    for (const std::string& error : errors) CHECK(error == errors[0]);
    return errors[0];
  };
  CHECK(message(2, 3, 6) == "[ulysses] expected a number of ranks per sequence that divides 2 ranks, got 3");
  CHECK(message(1, 2, 6) == "[ulysses] expected a number of ranks per sequence that divides 1 rank, got 2");
  CHECK(message(4, 4, 6) ==
        "[ulysses] expected a number of ranks per sequence that divides the 6 attention heads of the model, "
        "got 4");
  CHECK(message(2, 0, 6) == "[engine] expected a number of ranks per sequence (ulysses) >= 1, got 0");
}

TEST_MAIN()
