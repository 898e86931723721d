#include <ATen/ATen.h>

#include <string>

#include "tensor_training.h"

// Ranks that share matrices, however, move them as one process does.

using namespace troupe;
using namespace troupe::test;

namespace {

EngineOptions with_muon(EngineOptions options) {
  MuonOptions muon;
  muon.bfloat16 = false;
  muon.nesterov = true;
  options.optim->lr = 1e-3;
  options.optim->weight_decay = 0.1;
  options.optim->muon = muon;
  return options;
}

EngineOptions options_of(const std::string& variant, int64_t tp, HeadKind head = HeadKind::kLm) {
  return with_muon(tensor_options(variant, head, tp, tp > 1));
}

Task updates(int64_t count) {
  Task task;
  task.updates = count;
  return task;
}

// The iteration makes what rounding leaves of the smallest singular values up to 500 times larger.
constexpr Tolerance kTolerance{1e-5, 2e-4};

}  // namespace

TEST(ranks_of_data_parallelism) {
  for (const char* sharding : {"full_shard", "shard_grad_op", "no_shard"}) {
    EngineOptions options = options_of("qwen3", 1);
    options.sharding = parse_sharding_strategy(sharding);
    for (const int64_t ranks : {2, 3, 8}) compare(options, ranks, updates(3), kTolerance);
  }
  EngineOptions options = options_of("gpt2", 1, HeadKind::kValue);
  options.shard_size = 2;
  options.prefetch = true;
  options.offload = {true, true, true};
  compare(options, 4, updates(3), kTolerance);
}

TEST(ranks_that_share_matrices) {
  for (const char* variant : {"qwen2", "gemma3", "gpt_oss", "qwen3_5", "qwen3_next", "nemotron_h",
                              "deepseek_v3", "olmo3", "olmo_hybrid", "apertus"})
    compare(options_of(variant, 2), 1, updates(3), kTolerance);
  compare(options_of("afmoe", 2), 1, updates(1), kTolerance);
  compare(options_of("qwen3", 4), 2, updates(3), kTolerance);  // key heads are copied, shards cut matrices
}

TEST(ranks_that_share_experts) {
  EngineOptions options = options_of("qwen3_moe", 1);
  options.parallel.ep = 2;
  compare(options, 4, updates(3), kTolerance);
  options = options_of("qwen3_moe", 2);
  options.parallel.ep = 2;
  compare(options, 2, updates(3), kTolerance);
}

TEST(stages_of_a_pipeline) {
  EngineOptions options = options_of("llama", 1);
  options.pipeline.stages = 2;
  compare(options, 2, updates(3), kTolerance);
}

TEST(adapters) {
  EngineOptions options = options_of("qwen3", 2);
  options.lora = attention_adapters(options.model);
  compare(options, 2, updates(3), kTolerance);
}

TEST_MAIN()
