// Layers that predict further tokens on every layout, and wherever the state of training lies.
#include "tensor_training.h"

using namespace troupe;
using namespace troupe::test;

TEST(every_layout_has_the_numbers_of_one_process) {
  struct Layout {
    int64_t tp = 1, pp = 1, vpp = 1, ep = 1, groups = 1;
    bool sequence_parallel = false, recompute = false;
  };
  const std::vector<Layout> layouts{{.groups = 2},
                                    {.tp = 2},
                                    {.tp = 2, .sequence_parallel = true},
                                    {.pp = 2},
                                    {.pp = 2, .vpp = 2, .groups = 2, .recompute = true},
                                    {.tp = 2, .pp = 2, .sequence_parallel = true},
                                    {.ep = 2, .groups = 2},
                                    {.tp = 2, .ep = 2, .groups = 2, .sequence_parallel = true}};
  for (const char* variant : {"llama", "qwen3_moe", "deepseek_v3", "qwen3_next"}) {
    for (const Layout& layout : layouts) {
      for (const bool tied : {false, true}) {
        if (tied && (layout.pp == 1 || std::string(variant) != "llama")) continue;
        EngineOptions options = tensor_options(variant, HeadKind::kLm, layout.tp, layout.sequence_parallel);
        ModelConfig& model = options.model;
        if (layout.ep > 1 && !model.moe) continue;
        model.num_layers = 4;
        model.sliding_windows.assign(4, 0);
        if (model.moe) model.moe_layers = {false, true, false, true};
        if (model.linear) model.linear_layers = {false, true, false, true};
        if (model.qk_norm) model.attention_scale = 0.5;  // 1 / sqrt(head_dim)
        model.tied_embeddings = tied;
        model.prediction = PredictionConfig{2, layout.tp == 2};
        options.prediction = {0.5, layout.groups == 2 && layout.pp == 1};
        options.parallel.ep = layout.ep;
        options.pipeline.stages = layout.pp;
        options.pipeline.chunks = layout.vpp;
        options.gradient_checkpointing = layout.recompute;
        Task task;
        task.updates = 2;
        task.supervised = layout.tp == 2;
        std::vector<int64_t> owners;  // with two groups the second has a single sequence
        for (int64_t i = 0; i < kLongSequences; ++i) owners.push_back(layout.groups == 2 && i == 2 ? 1 : 0);
        compare(options, owners, layout.groups, task);
      }
    }
  }
}

// Where state lies, when gradients are summed and in what order micro-batches run. `ranks` have sequences of
// their own, but for the last, which has none in the first mini-batch.
TEST(neither_sharding_nor_the_place_of_state_changes_a_number) {
  struct Case {
    int64_t ranks = 1, ep = 1, pp = 1, epochs = 1;
    std::string sharding = "full_shard";
    int64_t shard_size = 0;
    bool mini_batch = false, prefetch = false, overlap = false, offload = false, gpipe = false,
         recompute = false;
  };
  const std::vector<Case> cases{
      {.epochs = 2, .offload = true},
      {.ranks = 2, .epochs = 2, .prefetch = true, .recompute = true},
      {.ranks = 2, .sharding = "shard_grad_op", .offload = true},
      {.ranks = 2, .sharding = "no_shard", .mini_batch = true},
      {.ranks = 3, .epochs = 2, .mini_batch = true, .prefetch = true, .offload = true},
      {.ranks = 4, .shard_size = 2, .overlap = true},
      {.ranks = 4, .ep = 2, .sharding = "shard_grad_op", .prefetch = true, .recompute = true},
      {.ranks = 2, .ep = 2, .epochs = 2, .mini_batch = true, .offload = true},
      {.ranks = 2, .pp = 2, .mini_batch = true, .gpipe = true},
      {.ranks = 1, .pp = 2, .epochs = 2, .prefetch = true, .offload = true, .gpipe = true}};
  for (const Case& c : cases) {
    EngineOptions options = tensor_options(c.ep > 1 ? "qwen3_moe" : "llama", HeadKind::kLm, 1, false);
    ModelConfig& model = options.model;
    model.tied_embeddings = c.ranks == 2;
    model.prediction = PredictionConfig{2, false};
    options.prediction = {0.5, false};
    options.parallel.ep = c.ep;
    options.pipeline.stages = c.pp;
    options.pipeline_order = c.gpipe ? PipelineOrder::kGPipe : PipelineOrder::k1F1B;
    options.sharding = parse_sharding_strategy(c.sharding);
    options.shard_size = c.shard_size;
    if (c.mini_batch) options.reduction = parse_reduction("mini_batch");
    options.prefetch = c.prefetch;
    if (c.overlap) options.overlap_reduction = true;
    if (c.offload) options.offload = {true, true, true};
    options.gradient_checkpointing = c.recompute;
    std::vector<int64_t> owners;
    for (int64_t i = 0; i < kLongSequences; ++i) {
      const int64_t busy = i < kLongSequences / 2 && c.ranks > 1 ? c.ranks - 1 : c.ranks;
      owners.push_back(i % busy);
    }
    Task task;
    task.updates = 2;
    task.epochs = c.epochs;
    if (c.ep > 1) task.policy.router_aux_loss_coef = 0.1;
    compare(options, owners, c.ranks, task);
  }
}

TEST(a_generation_gathers_the_decoder_alone) {
  // With ranks that decode alone, and with two that decode together.
  for (const int64_t decoding : {1, 2}) {
    const auto gathered = [&](int64_t layers) {
      EngineOptions options = tensor_options("qwen3", HeadKind::kLm, 1, false);
      if (layers > 0) options.model.prediction = PredictionConfig{layers, false};
      std::vector<int64_t> bytes(2);
      on_ranks(2, [&](int64_t rank, const std::shared_ptr<Communicator>& comm) {
        const auto engine = create_engine(options, comm);
        RolloutOptions limits;
        limits.kv_cache_bytes = int64_t{1} << 20;
        limits.tensor_parallel = decoding;
        engine->open_rollout(limits);
        const int64_t before = engine->bytes_sent();
        engine->begin_rollout(0);
        bytes[static_cast<size_t>(rank)] = engine->bytes_sent() - before;
        engine->park_rollout(false);
      });
      return bytes;
    };
    const std::vector<int64_t> expected = gathered(0);
    CHECK(expected[0] > 0);
    CHECK(gathered(2) == expected);
  }
}

TEST_MAIN()
