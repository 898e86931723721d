#include <ATen/ATen.h>

#include <limits>

#include "base/parallel.h"
#include "check.h"
#include "ranks.h"
#include "toy_training.h"

// Numbers that are none: the step is skipped on every rank, and what was trained so far stays.

using namespace troupe;
using namespace troupe::test;

namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

at::Tensor spoiled(const at::Tensor& column, bool spoil) {
  const at::Tensor copy = column.clone();
  if (spoil) copy[1].fill_(kNan);
  return copy;
}

// One update of all sequences in one mini-batch. `column`: the one that holds NaN, "" for none.
Metrics update(Engine& engine, HeadKind head, Share share, const std::string& column) {
  share.mini = {{0, share.tokens.size()},
                {share.mini.global_tokens[0] + share.mini.global_tokens[1]},
                {static_cast<double>(kSequences)}};
  const auto with = [&](const char* name, const at::Tensor& values) {
    return spoiled(values, column == name);
  };
  if (head == HeadKind::kValue) {
    const ValueBatch batch{share.tokens, share.mask, with("values", share.a), with("returns", share.b)};
    return engine.update_critic(batch, share.mini, {}).at(0);
  }
  PolicyLossOptions loss;
  loss.use_kl_loss = true;
  const PolicyBatch batch{share.tokens,
                          share.mask,
                          with("oldLogProbs", share.a),
                          with("advantages", share.b),
                          with("refLogProbs", share.a - 0.1),
                          with("rolloutIsWeights", at::ones_like(share.a)),
                          {}};
  return engine.update_policy(batch, share.mini, loss, 1).at(0);
}

struct Kept {
  at::Tensor weights, moments;
  int64_t steps;
};

Kept kept(Engine& engine) {
  std::vector<at::Tensor> weights, moments;
  for (const ParameterInfo& info : engine.parameters()) {
    weights.push_back(engine.get_tensor(TensorKind::kParam, info.name).view({-1}));
    moments.push_back(engine.get_tensor(TensorKind::kExpAvg, info.name).view({-1}));
  }
  return {at::cat(weights), at::cat(moments), engine.optimizer_steps()};
}

// An update in which some rank (this one: `spoils`) has NaN in `column`.
void check_skipped(Engine& engine, HeadKind head, const Share& share, const std::string& column,
                   bool spoils) {
  const Kept before = kept(engine);
  const Metrics metrics = update(engine, head, share, spoils ? column : "");
  CHECK(metrics.at("update_skipped") == 1);
  CHECK(!std::isfinite(metrics.at("grad_norm")));
  const Kept after = kept(engine);
  CHECK(after.weights.equal(before.weights));
  CHECK(after.moments.equal(before.moments));
  CHECK(after.steps == before.steps);
}

const std::vector<std::pair<HeadKind, std::vector<std::string>>> kColumns = {
    {HeadKind::kLm, {"oldLogProbs", "advantages", "refLogProbs", "rolloutIsWeights"}},
    {HeadKind::kValue, {"values", "returns"}}};

}  // namespace

TEST(nan_in_any_column_skips_the_step_and_the_next_one_is_good) {
  for (const auto& [head, columns] : kColumns) {
    const auto engine = create_engine(options_of("qwen3", head));
    const Share share = share_of(0, std::vector<int64_t>(kSequences, 0));
    update(*engine, head, share, "");  // so that there is momentum
    for (const std::string& column : columns) check_skipped(*engine, head, share, column, true);
    const Kept before = kept(*engine);
    CHECK(update(*engine, head, share, "").at("update_skipped") == 0);
    const Kept after = kept(*engine);
    CHECK(after.steps == before.steps + 1);
    CHECK(!after.weights.equal(before.weights) && after.weights.isfinite().all().item<bool>());
  }
}

TEST(nan_skips_the_step_of_what_is_kept_on_the_host) {
  for (const auto& [head, columns] : kColumns) {
    EngineOptions options = options_of("qwen3", head);
    options.offload = {true, true, true};
    const auto engine = create_engine(options);
    const Share share = share_of(0, std::vector<int64_t>(kSequences, 0));
    update(*engine, head, share, "");
    for (const std::string& column : columns) check_skipped(*engine, head, share, column, true);
    CHECK(update(*engine, head, share, "").at("update_skipped") == 0);
  }
}

TEST(all_ranks_skip_what_one_of_them_cannot_use) {
  struct Layout {
    const char* sharding;
    int64_t shard_size;
    const char* reduction;
  };
  for (const Layout layout : {Layout{"full_shard", 0, "micro_batch"},
                              {"full_shard", 0, "mini_batch"},
                              {"no_shard", 0, "micro_batch"},
                              {"shard_grad_op", 2, "micro_batch"}}) {
    EngineOptions options = options_of("qwen3", HeadKind::kLm);
    options.sharding = parse_sharding_strategy(layout.sharding);
    options.shard_size = layout.shard_size;
    options.reduction = parse_reduction(layout.reduction);
    check_all(4, [&](Communicator& comm) {
      const auto engine = create_engine(options, std::shared_ptr<Communicator>(&comm, [](Communicator*) {}));
      const Share share = share_of(comm.rank(), {0, 1, 2, 3, 0, 1, 2, 3});
      CHECK(update(*engine, HeadKind::kLm, share, "").at("update_skipped") == 0);
      check_skipped(*engine, HeadKind::kLm, share, "oldLogProbs", comm.rank() == 2);
      CHECK(update(*engine, HeadKind::kLm, share, "").at("update_skipped") == 0);
    });
  }
}

TEST(more_threads_than_any_processor_has_cores) {
  EngineOptions options = options_of("qwen3", HeadKind::kLm);
  for (const int64_t count : {kMaxThreads + 1, int64_t{1'000'000}, int64_t{1} << 40, int64_t{-1}}) {
    options.num_threads = count;
    CHECK_THROWS(create_engine(options), "from 0 (LibTorch's choice) to 1024, got " + std::to_string(count));
  }
  CHECK(at::get_num_threads() <= kMaxThreads);
}

TEST_MAIN()
