#include "engine/simulation.h"

#include <ATen/ATen.h>

#include <thread>

#include "check.h"
#include "comm/communicator.h"
#include "comm/rendezvous.h"
#include "base/error.h"

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
  options.optim = AdamWOptions{};
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
        const Simulation simulation = simulate_update(options, rank, size, {kMicroBatches});
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
  const Simulation simulation = simulate_update(options, 1023, 1024, {});
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
  CHECK_THROWS(simulate_update(options_of("full_shard", "float32"), 2, 2, {}), "got rank 2 of 2");
  CHECK_THROWS(simulate_update(options_of("full_shard", "float32"), 0, 2, {0}), "at least one micro-batch");
  CHECK_THROWS(simulate_update(options_of("zero", "float32"), 0, 2, {}), "got zero");
}

TEST_MAIN()
