// Drafts by the layer for further tokens on every layout, of engines that train it and of ones that do not.
#include <map>
#include <utility>

#include "ranks.h"
#include "tensor_training.h"

using namespace troupe;
using namespace troupe::test;

namespace {

struct Answer {
  std::vector<int32_t> tokens;
  std::vector<float> log_probs;
  bool operator==(const Answer&) const = default;
};
using Answers = std::map<uint64_t, Answer>;

struct Layout {
  int64_t ranks = 1, tp = 1, pp = 1, vpp = 1, ep = 1, decoding = 1;
  ShardingStrategy sharding = ShardingStrategy::kFullShard;
  bool offload = false;
};

const std::vector<Layout> kLayouts{{},
                                   {.ranks = 2},
                                   {.ranks = 2, .sharding = ShardingStrategy::kShardGradOp, .offload = true},
                                   {.ranks = 2, .tp = 2},
                                   {.ranks = 2, .pp = 2},
                                   {.ranks = 2, .pp = 2, .vpp = 2},
                                   {.ranks = 4, .tp = 2, .pp = 2},
                                   {.ranks = 2, .decoding = 2},
                                   {.ranks = 4, .decoding = 2, .offload = true},
                                   {.ranks = 2, .ep = 2}};

EngineOptions options_for(const std::string& variant, const Layout& layout, bool trained) {
  EngineOptions options = tensor_options(variant, HeadKind::kLm, layout.tp, layout.tp == 2);
  ModelConfig& model = options.model;
  model.num_layers = 4;
  model.sliding_windows.assign(4, 0);
  if (model.moe) model.moe_layers = {false, true, false, true};
  if (model.linear) model.linear_layers = {true, false, true, false};
  model.prediction = PredictionConfig{2, layout.tp == 2, trained};
  options.prediction = {0.5, false};
  options.parallel.ep = layout.ep;
  options.pipeline.stages = layout.pp;
  options.pipeline.chunks = layout.vpp;
  options.sharding = layout.sharding;
  if (layout.offload) options.offload = {true, true, true};
  options.optim->lr = 1e-2;  // an update that shows
  return options;
}

Answers generate(Engine& engine, const RolloutOptions& limits, RolloutStats& stats) {
  RolloutCommands commands;
  for (int64_t i = 0; i < 7; ++i) {
    RolloutRequest request;
    request.id = request.seed = static_cast<uint64_t>(i);
    for (int64_t t = 0; t < 3 + 5 * (i / 2); ++t)
      request.prompt.push_back(static_cast<int32_t>((t * 7 + i / 2) % kVocabulary));
    request.sampling.max_new_tokens = 16 + i;
    request.sampling.temperature = i % 2 == 0 ? 0 : 0.5;
    commands.submit.push_back(std::move(request));
  }
  commands.milliseconds = 60'000;
  engine.open_rollout(limits);
  engine.begin_rollout(0);
  Answers answers;
  RolloutTurn turn;
  for (int64_t turns = 0; turns < 100 && !turn.idle; ++turns) {
    turn = engine.rollout_turn(std::exchange(commands, {}));
    for (const RolloutOutput& output : turn.outputs) {
      CHECK(output.error.empty());
      Answer& answer = answers[output.id];
      answer.tokens.insert(answer.tokens.end(), output.tokens.begin(), output.tokens.end());
      answer.log_probs.insert(answer.log_probs.end(), output.log_probs.begin(), output.log_probs.end());
    }
  }
  CHECK(turn.idle && turn.stats.running == 0 && turn.stats.pages_held == 0);
  engine.park_rollout(false);
  stats = turn.stats;
  return answers;
}

RolloutOptions limits_of(const Layout& layout, bool drafts) {
  RolloutOptions limits;
  limits.max_sequences = 5;
  limits.max_step_tokens = 20;  // prompts in parts
  limits.kv_cache_bytes = int64_t{1} << 20;
  limits.tensor_parallel = layout.decoding;
  if (drafts) limits.drafts = {.num_tokens = 3, .predicts = true, .max_sequences = 1'000'000};
  return limits;
}

}  // namespace

TEST(no_layout_says_another_token_where_it_drafts) {
  for (const char* variant : {"llama", "qwen3_moe", "deepseek_v3", "qwen3_next"}) {
    for (const Layout& layout : kLayouts) {
      for (const bool trained : {false, true}) {
        const EngineOptions options = options_for(variant, layout, trained);
        if (layout.ep > 1 && !options.model.moe) continue;
        check_all(layout.ranks, [&](Communicator& comm) {
          const auto shared = std::shared_ptr<Communicator>(&comm, [](Communicator*) {});
          const auto engine = create_engine(options, shared), plain = create_engine(options, shared);
          RolloutStats with, without;
          const auto same = [&] {
            const Answers answers = generate(*engine, limits_of(layout, true), with);
            CHECK(answers.size() == 7 && answers == generate(*plain, limits_of(layout, false), without));
            CHECK(with.drafted_tokens > 0 && without.drafted_tokens == 0);
            return answers;
          };
          const std::string name = "layers.4.predict.in.weight";
          const auto weights = [&] { return engine->get_tensor(TensorKind::kParam, name); };
          const Answers before = same();
          const at::Tensor kept = weights();
          const int64_t groups = layout.ranks / ranks_per_group(options);
          const LongBatch batch =
              long_batch(group_of(options, comm.rank(), layout.ranks), round_robin(groups));
          for (const auto& own : {engine.get(), plain.get()}) {
            const at::Tensor old = own->compute_log_prob(batch.tokens, 1, false, false).log_probs;
            own->update_policy({batch.tokens, batch.mask, old, batch.b, {}, {}, {}}, batch.mini, {}, 1);
          }
          CHECK(weights().equal(kept) == !trained);
          CHECK(same() != before);
        });
      }
    }
  }
}

// What is not trained takes no part in training: all else has the bits that it has without it.
TEST(layers_that_are_held_change_no_gradient) {
  for (const char* variant : {"llama", "deepseek_v3"}) {
    for (const Layout& layout : {Layout{}, Layout{.ranks = 2}, Layout{.ranks = 2, .pp = 2}}) {
      EngineOptions options = options_for(variant, layout, /*trained=*/false);
      check_all(layout.ranks, [&](Communicator& comm) {
        const auto shared = std::shared_ptr<Communicator>(&comm, [](Communicator*) {});
        EngineOptions plain = options;
        plain.model.prediction.reset();
        const auto engine = create_engine(options, shared), without = create_engine(plain, shared);
        const int64_t groups = layout.ranks / ranks_per_group(options);
        const LongBatch batch = long_batch(group_of(options, comm.rank(), layout.ranks), round_robin(groups));
        std::vector<Metrics> metrics;
        for (const auto& own : {engine.get(), without.get()}) {
          const at::Tensor old = own->compute_log_prob(batch.tokens, 1, false, false).log_probs;
          metrics.push_back(
              own->update_policy({batch.tokens, batch.mask, old, batch.b, {}, {}, {}}, batch.mini, {}, 1)
                  .back());
        }
        CHECK(metrics[0] == metrics[1]);
        for (const ParameterInfo& info : without->parameters())
          CHECK(engine->get_tensor(TensorKind::kParam, info.name)
                    .equal(without->get_tensor(TensorKind::kParam, info.name)));
      });
    }
  }
}

// What the steps before computed with has neither codes nor the layer for further tokens.
TEST(opening_again_asks_for_weights_of_its_own) {
  EngineOptions options = options_for("llama", {}, false);
  const auto engine = create_engine(options, nullptr);
  RolloutStats stats;
  const Answers expected = generate(*engine, limits_of({}, false), stats);
  engine->begin_rollout(0);
  CHECK(engine->rollout_turn({}).ready);
  engine->open_rollout(limits_of({}, true));
  CHECK(!engine->rollout_turn({}).ready);
  CHECK(generate(*engine, limits_of({}, true), stats) == expected && stats.drafts > 0);
}

TEST(ranks_that_decode_together_draft_as_before) {
  check_all(2, [&](Communicator& comm) {
    const Layout layout{.ranks = 2, .decoding = 2};
    const auto engine = create_engine(options_for("llama", layout, true),
                                      std::shared_ptr<Communicator>(&comm, [](Communicator*) {}));
    engine->open_rollout(limits_of(layout, true));
    CHECK_THROWS(engine->open_rollout(limits_of(layout, false)),
                 "expected tensorParallel 2, drafting by the layers for further tokens, as before, got 2, "
                 "not drafting");
  });
}

TEST_MAIN()
