#include <ATen/ATen.h>

#include <cstdlib>

#include "base/error.h"
#include "sharded_training.h"

using namespace troupe;
using namespace troupe::test;

namespace {

struct Layout {
  int64_t pp = 2;
  int64_t vpp = 1;
  int64_t dp = 1;
  std::string sharding = "full_shard";
  bool checkpointing = false;
  PipelineOrder order = PipelineOrder::k1F1B;
  int64_t first_layers = 0;
  int64_t tp = 1;
  bool sequence_parallel = false;
  int64_t ep = 1;

  bool sums_are_cut() const { return tp > 1 || ep > 1; }
  int64_t data_part(int64_t rank) const { return rank / tp % dp; }
};

EngineOptions deep(const std::string& variant, HeadKind head, int64_t layers) {
  EngineOptions options = options_of(variant, head);
  std::vector<int64_t> windows(static_cast<size_t>(layers), 0);
  if (variant == "gemma2" || variant == "gemma3" || variant == "olmo3") windows[0] = 4;
  give_windows(options.model, windows);
  if (variant == "qwen3_moe" || variant == "granitemoe") {
    options.model.moe_layers.assign(static_cast<size_t>(layers), true);
    options.model.moe_layers[0] = false;
  }
  return options;
}

// Log-probs (or values) before any update, grad norms, and weights after it, of every rank.
std::vector<Outcome> train_layout(EngineOptions options, const Layout& layout,
                                  const std::vector<int64_t>& owners, int64_t updates) {
  options.pipeline.stages = layout.pp;
  options.pipeline.chunks = layout.vpp;
  options.pipeline.first_layers = layout.first_layers;
  options.pipeline_order = layout.order;
  options.parallel.tp = layout.tp;
  options.parallel.ep = layout.ep;
  options.sequence_parallel = layout.sequence_parallel;
  options.gradient_checkpointing = options.activation_offload = layout.checkpointing;
  // The ranks of a pipeline are called with the same data.
  return train_shares(
      options, [&](int64_t rank) { return share_of(layout.data_part(rank), owners); },
      {.size = layout.pp * layout.dp * layout.tp, .sharding = layout.sharding}, updates);
}

void compare(const EngineOptions& options, const Layout& layout, const std::vector<int64_t>& owners,
             int64_t updates) {
  const int before = failures();
  const auto whole = create_engine(options);
  const Outcome expected =
      train(*whole, options.model.head, share_of(0, std::vector<int64_t>(kSequences, 0)), updates);
  const std::vector<Outcome> actual = train_layout(options, layout, owners, updates);
  std::vector<int64_t> response_start{0};
  for (int64_t i = 0; i < kSequences; ++i)
    response_start.push_back(response_start.back() + sequence(i).a.numel());
  for (size_t rank = 0; rank < actual.size(); ++rank) {
    const Outcome& outcome = actual[rank];
    if (!outcome.weights.defined()) break;  // reported already
    std::vector<at::Tensor> own{at::empty({0})};
    for (int64_t i = 0; i < kSequences; ++i) {
      if (owners[static_cast<size_t>(i)] != layout.data_part(static_cast<int64_t>(rank))) continue;
      own.push_back(expected.before.slice(0, response_start[static_cast<size_t>(i)],
                                          response_start[static_cast<size_t>(i) + 1]));
    }
    const at::Tensor before = at::cat(own);
    // Bit for bit where no sum is cut.
    CHECK(!layout.sums_are_cut() ? outcome.before.equal(before)
                                 : at::allclose(outcome.before, before, 0, 1e-5));
    CHECK(outcome.weights.equal(actual[0].weights));
    CHECK(relative(outcome.weights, expected.weights) < (layout.sums_are_cut() ? 1e-5 : 1e-6));
    CHECK(outcome.grad_norms == actual[0].grad_norms);
    CHECK(outcome.grad_norms.size() == expected.grad_norms.size());
    for (size_t step = 0; step < expected.grad_norms.size(); ++step)
      CHECK_CLOSE(outcome.grad_norms[step] / expected.grad_norms[step], 1.0, 1e-5);
  }
  report(failures() == before, __FILE__, __LINE__,
         options.model.family + " pp " + std::to_string(layout.pp) + " vpp " + std::to_string(layout.vpp) +
             " dp " + std::to_string(layout.dp) + " tp " + std::to_string(layout.tp) + " " + layout.sharding);
}

const std::vector<int64_t> kOnOne(kSequences, 0);

}  // namespace

TEST(ten_updates_equal_one_process_on_every_family) {
  for (const std::string variant : {"llama", "qwen2", "qwen3", "qwen3_moe", "gpt2", "gemma2", "gemma3",
                                    "olmo3", "granite", "granitemoe", "glm4"}) {
    compare(deep(variant, HeadKind::kLm, 4), {.pp = 2}, kOnOne, 10);
  }
}

TEST(ten_updates_equal_one_process_on_every_layout) {
  for (const HeadKind head : {HeadKind::kLm, HeadKind::kValue}) {
    const EngineOptions options = deep("qwen3", head, 4);
    compare(options, {.pp = 4, .checkpointing = true}, kOnOne, 10);
    compare(options, {.pp = 2, .vpp = 2}, kOnOne, 10);
    compare(options, {.pp = 2, .order = PipelineOrder::kGPipe}, kOnOne, 10);
    compare(options, {.pp = 2, .dp = 2}, round_robin(2), 10);
  }
}

TEST(ten_updates_equal_one_process_with_shards_in_a_stage) {
  for (const std::string sharding : {"shard_grad_op", "no_shard"})
    compare(deep("qwen3", HeadKind::kLm, 4), {.pp = 2, .dp = 2, .sharding = sharding}, round_robin(2), 10);
  compare(deep("qwen3_moe", HeadKind::kLm, 4), {.pp = 2, .vpp = 2, .dp = 2, .checkpointing = true},
          round_robin(2), 10);
  EngineOptions options = deep("gpt2", HeadKind::kLm, 4);  // tied embeddings
  options.prefetch = true;
  options.reduction = GradientReduction::kMiniBatch;
  options.offload = {true, true, true};
  compare(options, {.pp = 2, .dp = 2}, round_robin(2), 10);
}

TEST(ten_updates_equal_one_process_with_tensor_parallel_stages) {
  for (const std::string variant : {"llama", "qwen2", "qwen3_moe", "gpt2", "granite"}) {
    const HeadKind head = variant == "qwen2" ? HeadKind::kValue : HeadKind::kLm;
    compare(deep(variant, head, 4), {.pp = 2, .tp = 2, .sequence_parallel = variant != "llama"}, kOnOne, 10);
  }
  compare(deep("qwen3", HeadKind::kLm, 4), {.pp = 2, .vpp = 2, .dp = 2, .checkpointing = true, .tp = 2},
          round_robin(2), 10);
}

TEST(ten_updates_equal_one_process_with_experts_shared_in_a_stage) {
  const EngineOptions options = deep("qwen3_moe", HeadKind::kLm, 4);
  compare(options, {.pp = 2, .dp = 2, .ep = 2}, round_robin(2), 10);
  compare(options, {.pp = 2, .vpp = 2, .dp = 2, .checkpointing = true, .ep = 2}, kOnOne, 3);
}

TEST(stages_without_work_and_fewer_sequences_than_stages) {
  // Pipeline 1 has nothing at all; pipeline 0 has one micro-batch.
  EngineOptions options = deep("qwen3", HeadKind::kLm, 4);
  options.max_tokens = 400;
  compare(options, {.pp = 4, .dp = 2}, kOnOne, 3);
  // One sequence in the first mini-batch, three in the second.
  compare(deep("qwen3", HeadKind::kLm, 4), {.pp = 2, .vpp = 2, .dp = 2}, {1, 0, 0, 0, 0, 1, 1, 1}, 3);
}

TEST(uneven_parts) {
  const auto layers = [](const std::vector<StageRange>& parts) {
    std::vector<int64_t> counts;
    for (const StageRange& part : parts) counts.push_back(part.layers());
    return counts;
  };
  using Counts = std::vector<int64_t>;
  CHECK(layers(pipeline_parts(8, {.stages = 4})) == (Counts{2, 2, 2, 2}));
  CHECK(layers(pipeline_parts(7, {.stages = 3})) == (Counts{2, 3, 2}));
  CHECK(layers(pipeline_parts(9, {.stages = 4, .chunks = 1, .first_layers = 1, .last_layers = 2})) ==
        (Counts{1, 3, 3, 2}));
  CHECK(layers(pipeline_parts(6, {.stages = 4, .count_embedding = true, .count_head = true})) ==
        (Counts{1, 2, 2, 1}));
  CHECK(layers(pipeline_parts(8, {.stages = 2, .chunks = 2})) == (Counts{2, 2, 2, 2}));
  CHECK_THROWS(pipeline_parts(3, {.stages = 4}),
               "3 layers do not make pp(4) x vpp(1) = 4 parts with a layer in each (first 0, last 0)");
  CHECK_THROWS(pipeline_parts(8, {.stages = 2, .chunks = 1, .first_layers = 8}),
               "with the given numbers of layers at the ends");
  CHECK_THROWS(pipeline_parts(4, {.stages = 4, .count_head = true}), "part 3 would have none");
  CHECK_THROWS(pipeline_parts(4, {.stages = 1, .chunks = 2}), "vpp(2) needs at least 2 stages");
  compare(deep("gemma2", HeadKind::kLm, 5), {.pp = 2, .first_layers = 1}, kOnOne, 3);
}

TEST_MAIN()
