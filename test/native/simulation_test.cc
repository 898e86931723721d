#include "engine/simulation.h"

#include <ATen/ATen.h>

#include <thread>

#include "base/error.h"
#include "check.h"
#include "comm/communicator.h"
#include "comm/rendezvous.h"
#include "small_model.h"

using namespace troupe;

namespace {

constexpr int64_t kMicroBatches = 3;
constexpr int32_t kLength = 9;

EngineOptions options_of(const std::string& sharding, const std::string& dtype) {
  EngineOptions options;
  ModelConfig& c = options.model;
  c.family = "llama";
  c.vocab_size = 50;
  c.hidden_size = 24;
  c.num_layers = 3;
  c.num_heads = 4;
  c.num_kv_heads = 2;
  c.head_dim = 6;
  c.intermediate_size = 40;
  c.max_positions = 64;
  c.attention_scale = 0.4;
  c.sliding_windows = {0, 0, 0};
  c.rope_inv_freq = {1, 0.1, 0.01};
  options.max_tokens = kLength;  // one sequence per micro-batch
  options.optim = OptimizerOptions{};
  options.num_threads = 1;
  options.sharding = parse_sharding_strategy(sharding);
  options.dtype = parse_dtype(dtype);
  return options;
}

// kMicroBatches sequences in one mini-batch.
MetricsList update(Engine& engine) {
  const at::Tensor tokens = at::arange(kMicroBatches * kLength, at::kInt).remainder(50);
  const at::Tensor offsets = at::arange(kMicroBatches + 1, at::kInt) * kLength;
  const at::Tensor prompts = at::full({kMicroBatches}, 2, at::kInt);
  const at::Tensor column = at::ones({kMicroBatches * (kLength - 2)});
  MiniBatches mini;
  mini.offsets = {0, kMicroBatches};
  mini.global_tokens = {static_cast<double>(column.numel())};
  mini.global_sequences = {static_cast<double>(kMicroBatches)};
  PolicyBatch batch;
  batch.tokens = {tokens, offsets, prompts};
  batch.response_mask = column.to(at::kByte);
  batch.old_log_probs = column * -3.9;
  batch.advantages = column;
  return engine.update_policy(batch, mini, {}, 1);
}

struct Measured {
  int64_t collectives = 0, bytes = 0;
  StateBytes state;
};

std::vector<Measured> measure(const EngineOptions& options, int64_t size) {
  const auto rendezvous = Rendezvous::open();
  std::vector<Measured> all(static_cast<size_t>(size));
  std::vector<std::thread> threads;
  for (int64_t rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        CommOptions meeting;
        meeting.rank = rank;
        meeting.size = size;
        meeting.port = rendezvous->port();
        meeting.timeout = std::chrono::milliseconds(60'000);
        const std::shared_ptr<Communicator> comm = make_communicator(meeting);
        const auto engine = create_engine(options, comm);
        const int64_t begun = comm->log().begun();
        const int64_t sent = engine->bytes_sent();
        update(*engine);
        all[static_cast<size_t>(rank)] = {comm->log().begun() - begun, engine->bytes_sent() - sent,
                                          engine->state_bytes()};
      } catch (const std::exception& error) {
        test::report(false, __FILE__, __LINE__, error.what());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  return all;
}

}  // namespace

TEST(what_is_simulated_is_what_ranks_hold_and_send) {
  for (const int64_t size : {2, 3, 4}) {
    for (const std::string sharding : {"full_shard", "shard_grad_op", "no_shard"}) {
      EngineOptions options = options_of(sharding, size == 3 ? "bfloat16" : "float32");
      if (size == 4 && sharding != "no_shard") options.shard_size = 2;
      options.prefetch = size > 2;
      if (size == 3) options.reduction = parse_reduction("mini_batch");
      options.offload = {size == 3, size == 4, size > 2};
      const std::vector<Measured> measured = measure(options, size);
      for (int64_t rank = 0; rank < size; ++rank) {
        const Simulation simulation =
            simulate_update(options, rank, size, {kMicroBatches, kLength, kLength - 2}, false);
        int64_t collectives = 0, bytes = 0;
        for (const SimulatedCollective& c : simulation.collectives) {
          collectives += c.count;
          bytes += c.bytes;
        }
        const Measured& actual = measured[static_cast<size_t>(rank)];
        CHECK(actual.collectives > 0);
        // The log of the whole group: not what moves between neighbours or copies.
        if (options.shard_size == 0) CHECK(collectives == actual.collectives);
        CHECK(bytes == actual.bytes);
        CHECK(simulation.state.parameters == actual.state.parameters);
        CHECK(simulation.state.gradients == actual.state.gradients);
        CHECK(simulation.state.moments == actual.state.moments);
        CHECK(simulation.state.host.parameters == actual.state.host.parameters);
        CHECK(simulation.state.host.gradients == actual.state.host.gradients);
        CHECK(simulation.state.host.moments == actual.state.host.moments);
      }
    }
  }
}

// Ranks that share matrices, layers or experts.
struct Shared {
  int64_t ranks, tp, pp, vpp, ep;
  bool sequence_parallel, checkpointing;
  int64_t cp = 1;
  int64_t predictions = 0;
};

EngineOptions shared_options(const Shared& c) {
  EngineOptions options = options_of("full_shard", "float32");
  options.model = test::small(c.ep > 1 ? "qwen3_moe" : "qwen3");
  options.model.vocab_size = 51;
  options.model.num_layers = 4;
  options.model.sliding_windows.assign(4, 0);
  if (c.ep > 1) options.model.moe_layers.assign(4, true);
  options.parallel.tp = c.tp;
  options.parallel.ep = c.ep;
  options.parallel.cp = c.cp;
  options.sequence_parallel = c.sequence_parallel;
  options.pipeline.stages = c.pp;
  options.pipeline.chunks = c.vpp;
  options.gradient_checkpointing = c.checkpointing;
  if (c.predictions > 0) options.model.prediction = PredictionConfig{c.predictions};
  return options;
}

TEST(ranks_that_share_the_model_send_what_is_simulated) {
  for (const Shared& c :
       {Shared{2, 2, 1, 1, 1, false, false}, Shared{2, 2, 1, 1, 1, true, true},
        Shared{2, 1, 2, 1, 1, false, true}, Shared{2, 1, 2, 2, 1, false, false},
        Shared{2, 1, 1, 1, 2, false, true}, Shared{4, 2, 2, 1, 1, true, false},
        Shared{4, 1, 2, 1, 1, false, false}, Shared{4, 2, 1, 1, 2, false, false},
        Shared{2, 1, 1, 1, 1, false, true, 2}, Shared{4, 2, 1, 1, 1, true, false, 2},
        Shared{4, 1, 2, 1, 1, false, false, 2}, Shared{2, 1, 1, 1, 2, false, false, 2},
        Shared{4, 1, 1, 1, 1, false, true, 2}, Shared{2, 1, 1, 1, 1, false, true, 1, 2},
        Shared{4, 2, 2, 1, 1, true, false, 1, 1}, Shared{2, 1, 1, 1, 2, false, false, 1, 2}}) {
    const EngineOptions options = shared_options(c);
    const std::vector<Measured> measured = measure(options, c.ranks);
    for (int64_t rank = 0; rank < c.ranks; ++rank) {
      const Simulation simulation =
          simulate_update(options, rank, c.ranks, {kMicroBatches, kLength, kLength - 2}, false);
      int64_t bytes = 0;
      for (const SimulatedCollective& collective : simulation.collectives) bytes += collective.bytes;
      const Measured& actual = measured[static_cast<size_t>(rank)];
      CHECK(actual.bytes > 0);
      CHECK_CLOSE(bytes, actual.bytes, 0);
      CHECK(simulation.state.parameters == actual.state.parameters);
    }
  }
}

// So that a product has the same shape in every verb, and with it the same bits.
TEST(micro_batches_on_a_gpu_have_as_many_rows_whatever_they_hold) {
  EngineOptions options = shared_options({2, 2, 1, 1, 1, false, false});
  options.model.max_positions = 1024;
  options.max_tokens = 1000;
  const auto bytes_of_layers = [&](int32_t length, bool gpu) {
    int64_t bytes = 0;
    for (const SimulatedCollective& c : simulate_update(options, 0, 2, {1, length, 2}, gpu).collectives) {
      if (c.phase == "forward" && c.subject.rfind("layers.", 0) == 0) bytes += c.bytes;
    }
    return bytes;
  };
  CHECK(bytes_of_layers(129, false) > 0);
  CHECK(bytes_of_layers(1000, false) == 8 * bytes_of_layers(129, false));
  for (const int32_t length : {5, 129, 1000})
    CHECK(bytes_of_layers(length, true) == bytes_of_layers(1000, false));
}

TEST(of_many_micro_batches_a_few_are_run) {
  for (const Shared& c : {Shared{4, 1, 2, 1, 1, false, true}, Shared{4, 2, 2, 2, 1, true, false}}) {
    const EngineOptions options = shared_options(c);
    for (const int64_t rank : {0, 3}) {
      const auto bytes = [&](int64_t micro_batches) {
        int64_t sum = 0;
        for (const SimulatedCollective& collective :
             simulate_update(options, rank, c.ranks, {micro_batches, kLength, kLength - 2}, false)
                 .collectives)
          sum += collective.bytes;
        return sum;
      };
      // 8 are run; of 9 those are, and what is added.
      CHECK_CLOSE(bytes(16) - bytes(9), 7 * (bytes(8) - bytes(7)), 0);
      CHECK_CLOSE(bytes(9) - bytes(8), bytes(8) - bytes(7), 0);
    }
  }
}

TEST(a_model_that_no_machine_holds) {
  EngineOptions options = options_of("full_shard", "bfloat16");
  ModelConfig& c = options.model;
  c.vocab_size = 128256;
  c.hidden_size = 16384;
  c.num_layers = 126;
  c.num_heads = 128;
  c.num_kv_heads = 8;
  c.head_dim = 128;
  c.intermediate_size = 53248;
  c.sliding_windows.assign(126, 0);
  c.rope_inv_freq.assign(64, 1);
  const Simulation simulation = simulate_update(options, 1023, 1024, {1, kLength, kLength - 2}, false);
  int64_t parameters = 0;
  for (const SimulatedGroup& group : simulation.groups) {
    CHECK(group.whole == 1024 * group.own);
    parameters += group.own;
  }
  CHECK(simulation.groups.size() == 128);
  CHECK(simulation.state.parameters == 6 * parameters);
  CHECK(parameters * 1024 - int64_t{405'853'388'800} < 128 * 1024 * 16 + 1024);
  CHECK(parameters * 1024 >= int64_t{405'853'388'800});
}

TEST(a_rank_outside_its_group_is_refused) {
  CHECK_THROWS(simulate_update(options_of("full_shard", "float32"), 2, 2, {1, 4, 2}, false),
               "got rank 2 of 2");
  CHECK_THROWS(simulate_update(options_of("full_shard", "float32"), 0, 2, {0, 4, 2}, false),
               "with a prompt and a response");
  CHECK_THROWS(simulate_update(options_of("zero", "float32"), 0, 2, {1, 4, 2}, false), "got zero");
}

TEST_MAIN()
