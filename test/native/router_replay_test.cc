// Experts that are recorded in one pass and taken in another one, on every layout.
#include "batch/routed_experts.h"
#include "model/expert_routing.h"
#include "rollout/routing_pages.h"
#include "tensor_training.h"

using namespace troupe;
using namespace troupe::test;

namespace {

EngineOptions mixture(int64_t tp = 1) {
  EngineOptions options = tensor_options("qwen3_moe", HeadKind::kLm, tp, tp > 1);
  options.model.moe_layers.assign(static_cast<size_t>(options.model.num_layers), true);
  options.model.moe->shared_intermediate_size = 21;
  // Steps that send tokens elsewhere, in proportion to the gradient: rounding stays what it is.
  options.optim->lr = 0.5;
  options.optim->eps = 1;
  return options;
}

// Of every kind of axis, and of some together; ranks that are called with data of their own.
struct Layout {
  EngineOptions options;
  int64_t groups;
};

std::vector<Layout> layouts() {
  std::vector<Layout> all;
  const auto add = [&](int64_t tp, int64_t groups, auto&& change) {
    EngineOptions options = mixture(tp);
    change(options);
    all.push_back({options, groups});
  };
  add(1, 2, [](EngineOptions&) {});
  add(2, 1, [](EngineOptions&) {});
  add(1, 1, [](EngineOptions& o) { o.parallel.cp = 2; });
  add(1, 1, [](EngineOptions& o) { o.pipeline.stages = 2; });
  add(1, 1, [](EngineOptions& o) { o.ulysses = 2; });
  add(1, 2, [](EngineOptions& o) {
    o.parallel.ep = 2;
    o.gradient_checkpointing = true;
  });
  add(2, 1, [](EngineOptions& o) {
    o.parallel.cp = 2;
    o.pipeline.stages = 2;
    o.gradient_checkpointing = true;
  });
  return all;
}

// Experts that no router has asked for. Of the three sequences with one prompt two send it to the same ones.
at::Tensor given_of(const RoutingShape& shape, int64_t group, const std::vector<int64_t>& owners) {
  std::vector<uint8_t> choices;
  for (int64_t i = 0; i < kLongSequences; ++i) {
    if (owners[static_cast<size_t>(i)] != group) continue;
    const int64_t prompt = prompt_of(i);
    for (int64_t t = 0; t < prompt + response_of(i); ++t) {
      const int64_t key = t < prompt && i % 4 < 2 ? i / 4 : 11 * i;
      for (int64_t c = 0; c < shape.width(); ++c) {
        const int64_t layer = c / shape.top_k, first = (key + t * (layer + 1) + t / 7) % shape.experts;
        choices.push_back(static_cast<uint8_t>((first + c % shape.top_k) % shape.experts));
      }
    }
  }
  return at::tensor(at::ArrayRef<uint8_t>(choices), at::kByte);
}

// The choices at positions that are computed: all but the last of every sequence.
at::Tensor computed(const at::Tensor& choices, const TokenBatch& batch, int64_t width) {
  const at::Tensor rows = choices.view({-1, width}), ends = batch.seq_offsets;
  std::vector<at::Tensor> kept{at::empty({0, width}, at::kByte)};
  for (int64_t i = 0; i + 1 < ends.numel(); ++i) {
    const int32_t* end = ends.const_data_ptr<int32_t>() + i;
    kept.push_back(rows.narrow(0, end[0], end[1] - end[0] - 1));
  }
  return at::cat(kept);
}

struct Replay {
  at::Tensor natural, recorded, moved;  // choices at first; with given ones, after updates; without, then
  at::Tensor log_probs;
  std::vector<Metrics> metrics;
  std::vector<at::Tensor> weights;
};

Replay replay(Engine& engine, LongBatch batch, const at::Tensor& given) {
  const int64_t width = given.numel() / std::max<int64_t>(1, batch.tokens.tokens.numel());
  const auto record = [&](const TokenBatch& tokens) {
    const LogProbResult result = engine.compute_log_prob(tokens, 0.9, false, false, false, true);
    return std::pair(computed(result.routed_experts, tokens, std::max<int64_t>(1, width)), result.log_probs);
  };
  Replay all;
  all.natural = record(batch.tokens).first;
  TokenBatch told = batch.tokens;
  told.routed_experts = given;
  for (int64_t update = 0; update < 2; ++update) {
    const MetricsList metrics =
        engine.update_policy({told, batch.mask, batch.a, batch.b, {}, {}, {}}, batch.mini, {}, 0.9);
    all.metrics.insert(all.metrics.end(), metrics.begin(), metrics.end());
  }
  std::tie(all.recorded, all.log_probs) = record(told);
  all.moved = record(batch.tokens).first;
  for (const ParameterInfo& info : engine.parameters())
    all.weights.push_back(engine.get_tensor(TensorKind::kParam, info.name));
  return all;
}

}  // namespace

TEST(every_layout_records_and_replays_as_one_process_does) {
  const EngineOptions options = mixture();
  const RoutingShape shape = routing_shape(options.model);
  const std::vector<int64_t> whole(kLongSequences, 0);
  const LongBatch batch = long_batch(0, whole);
  const at::Tensor given = given_of(shape, 0, whole);
  const Replay expected = replay(*create_engine(alone(options)), batch, given);
  // Weights have moved so far that the routers would choose others, and others than those that are given.
  CHECK(expected.recorded.equal(computed(given, batch.tokens, shape.width())));
  CHECK(!expected.moved.equal(expected.natural) && !expected.moved.equal(expected.recorded));
  for (const Layout& layout : layouts()) {
    const std::vector<int64_t> owners = round_robin(layout.groups);
    const int64_t size = ranks_per_group(layout.options) * layout.groups;
    const at::Tensor order = at::cat([&] {
      std::vector<at::Tensor> parts;  // of the whole batch's computed positions, those of each group
      for (int64_t group = 0; group < layout.groups; ++group) {
        int64_t start = 0;
        for (int64_t i = 0; i < kLongSequences; ++i) {
          const int64_t length = prompt_of(i) + response_of(i) - 1;
          if (owners[static_cast<size_t>(i)] == group) parts.push_back(at::arange(start, start + length));
          start += length;
        }
      }
      return parts;
    }());
    std::vector<Replay> ranks(static_cast<size_t>(size));
    on_ranks(size, [&](int64_t rank, const std::shared_ptr<Communicator>& comm) {
      const int64_t group = group_of(layout.options, rank, size);
      const auto engine = create_engine(layout.options, comm);
      ranks[static_cast<size_t>(rank)] =
          replay(*engine, long_batch(group, owners), given_of(shape, group, owners));
    });
    std::vector<at::Tensor> natural, recorded;
    std::vector<bool> seen(static_cast<size_t>(layout.groups), false);
    double loss = 0;
    for (int64_t group = 0; group < layout.groups; ++group) {
      for (int64_t rank = 0; rank < size; ++rank) {
        const Replay& own = ranks[static_cast<size_t>(rank)];
        if (own.weights.empty() || group_of(layout.options, rank, size) != group) continue;
        CHECK(seen[static_cast<size_t>(group)] ? own.natural.equal(natural.back()) : true);
        if (seen[static_cast<size_t>(group)]) continue;
        seen[static_cast<size_t>(group)] = true;
        natural.push_back(own.natural);
        recorded.push_back(own.recorded);
        CHECK((own.log_probs - part_of(expected.log_probs, group, owners)).abs().max().item<double>() < 1e-4);
        loss += own.metrics[0].at("loss");
      }
    }
    CHECK(at::cat(natural).equal(expected.natural.index_select(0, order)));
    CHECK(at::cat(recorded).equal(expected.recorded.index_select(0, order)));
    CHECK_CLOSE(loss, expected.metrics[0].at("loss"), 1e-5);
    for (size_t step = 0; step < expected.metrics.size(); ++step)
      CHECK_CLOSE(ranks[0].metrics[step].at("grad_norm") / expected.metrics[step].at("grad_norm"), 1, 1e-4);
    CHECK(relative(flat(ranks[0].weights), flat(expected.weights)) < 1e-5);
  }
}

TEST(the_ratio_of_the_first_forward_is_one) {
  for (const Layout& layout : layouts()) {
    const std::vector<int64_t> owners = round_robin(layout.groups);
    const int64_t size = ranks_per_group(layout.options) * layout.groups;
    on_ranks(size, [&](int64_t rank, const std::shared_ptr<Communicator>& comm) {
      const auto engine = create_engine(layout.options, comm);
      const int64_t group = group_of(layout.options, rank, size);
      LongBatch batch = long_batch(group, owners);
      batch.mini = {{0, batch.mini.offsets.back()},
                    {batch.mini.global_tokens[0] + batch.mini.global_tokens[1]},
                    {kLongSequences},
                    1};
      // What the routers chose, and what they did not.
      const LogProbResult old = engine->compute_log_prob(batch.tokens, 0.9, false, false, false, true);
      TokenBatch recorded = batch.tokens, given = batch.tokens;
      recorded.routed_experts = old.routed_experts;
      given.routed_experts = given_of(routing_shape(layout.options.model), group, owners);
      CHECK(engine->compute_log_prob(recorded, 0.9, false, false).log_probs.equal(old.log_probs));
      const at::Tensor replayed = engine->compute_log_prob(given, 0.9, false, false).log_probs;
      CHECK(!replayed.equal(old.log_probs));
      for (const auto& [tokens, log_probs] : {std::pair(given, replayed)}) {
        const Metrics metrics = engine->update_policy({tokens, batch.mask, log_probs, batch.b, {}, {}, {}},
                                                      batch.mini, {}, 0.9)[0];
        CHECK(metrics.at("ppo_kl") == 0);
      }
    });
  }
}

TEST(a_rollout_records_what_compute_log_prob_does) {
  std::vector<EngineOptions> all{mixture(), mixture(2), mixture(), mixture()};
  all[2].pipeline.stages = 2;
  all[3].parallel.ep = 2;
  for (const EngineOptions& options : all) {
    const int64_t size = ranks_per_group(options) * options.parallel.ep;
    on_ranks(size, [&](int64_t, const std::shared_ptr<Communicator>& comm) {
      const auto engine = create_engine(options, comm);
      const RoutingShape shape = routing_shape(options.model);
      RolloutOptions limits;
      limits.max_sequences = 4;
      limits.max_step_tokens = 24;                                  // prompts in parts
      limits.kv_cache_bytes = 24'576 / size * options.parallel.ep;  // six pages
      limits.routed_experts = true;
      const RolloutStats opened = engine->open_rollout(limits);
      engine->begin_rollout(0);
      RolloutCommands commands;
      std::vector<std::vector<int32_t>> sequences;
      for (int64_t i = 0; i < 8; ++i) {
        RolloutRequest request;
        request.id = static_cast<uint64_t>(i + 1);
        // Two samples of each prompt; prompts that begin alike.
        for (int64_t t = 0; t < 62; ++t)
          request.prompt.push_back(static_cast<int32_t>(t < 40 ? t * 7 % 50 : (t * 3 + i / 2) % 50));
        request.sampling.max_new_tokens = 5 + i;
        request.seed = static_cast<uint64_t>(i);
        sequences.push_back(request.prompt);
        commands.submit.push_back(std::move(request));
      }
      commands.milliseconds = 60'000;
      std::vector<std::vector<uint8_t>> choices(8);
      RolloutTurn turn;
      for (int64_t turns = 0; turns < 100 && !turn.idle; ++turns) {
        turn = engine->rollout_turn(std::move(commands));
        commands = {};
        for (RolloutOutput& output : turn.outputs) {
          CHECK(output.error.empty());
          std::vector<int32_t>& sequence = sequences[output.id - 1];
          sequence.insert(sequence.end(), output.tokens.begin(), output.tokens.end());
          CHECK(output.routed_experts.empty() == (output.finish == Finish::kNone));
          if (!output.routed_experts.empty()) choices[output.id - 1] = std::move(output.routed_experts);
        }
      }
      CHECK(turn.idle && opened.pages == 6);
      CHECK(turn.stats.preemptions > 0 && turn.stats.cached_prompt_tokens > 0);
      std::vector<int32_t> tokens, ends{0}, prompts;
      std::vector<at::Tensor> rows;
      for (size_t i = 0; i < sequences.size(); ++i) {
        tokens.insert(tokens.end(), sequences[i].begin(), sequences[i].end());
        ends.push_back(static_cast<int32_t>(tokens.size()));
        prompts.push_back(62);
        CHECK(choices[i].size() == (sequences[i].size() - 1) * static_cast<size_t>(shape.row_bytes()));
        rows.push_back(at::tensor(at::ArrayRef<uint8_t>(choices[i]), at::kByte).view({-1, shape.width()}));
      }
      const TokenBatch batch{at::tensor(tokens, at::kInt), at::tensor(ends, at::kInt),
                             at::tensor(prompts, at::kInt)};
      const LogProbResult result = engine->compute_log_prob(batch, 1, false, false, false, true);
      const at::Tensor again = computed(result.routed_experts, batch, shape.width());
      // Where products are not ours the two round otherwise, and a router may be undecided.
      const double same = again.eq(at::cat(rows)).to(at::kDouble).mean().item<double>();
      CHECK(same > 0.99);
    });
  }
}

TEST(a_request_that_is_given_up_says_where_its_tokens_went) {
  for (const int64_t stages : {1, 2}) {
    EngineOptions options = mixture();
    options.pipeline.stages = stages;
    on_ranks(stages, [&](int64_t, const std::shared_ptr<Communicator>& comm) {
      const auto engine = create_engine(options, comm);
      const auto row = static_cast<size_t>(routing_shape(options.model).row_bytes());
      RolloutOptions limits;
      limits.kv_cache_bytes = int64_t{1} << 20;
      limits.routed_experts = true;
      engine->open_rollout(limits);
      engine->begin_rollout(0);
      RolloutRequest request;
      for (int64_t t = 0; t < 40; ++t) request.prompt.push_back(static_cast<int32_t>(t * 7 % 50));
      request.sampling.max_new_tokens = 30;
      // What comes of the request until `tokens` of it are there and it is given up, or it ends.
      const auto served = [&](size_t tokens) {
        RolloutOutput all;
        RolloutCommands commands;  // of no time: one step for each turn
        commands.submit.push_back(request);
        for (int64_t turns = 0; turns < 100 && all.finish == Finish::kNone; ++turns) {
          for (const RolloutOutput& output : engine->rollout_turn(std::exchange(commands, {})).outputs) {
            all.tokens.insert(all.tokens.end(), output.tokens.begin(), output.tokens.end());
            all.routed_experts.insert(all.routed_experts.end(), output.routed_experts.begin(),
                                      output.routed_experts.end());
            all.finish = output.finish;
          }
          if (all.tokens.size() == tokens) commands.abort.push_back(request.id);
        }
        ++request.id;
        return all;
      };
      const RolloutOutput whole = served(31);
      CHECK(whole.finish == Finish::kLength && whole.routed_experts.size() == 69 * row);
      for (const size_t tokens : {1, 7, 29}) {
        const RolloutOutput part = served(tokens);
        CHECK(part.finish == Finish::kAbort && part.tokens.size() == tokens);
        CHECK(part.routed_experts.size() == (39 + tokens) * row);
        CHECK(
            std::equal(part.routed_experts.begin(), part.routed_experts.end(), whole.routed_experts.begin()));
      }
      // It waits for a mask, and the page that it goes on from is not its own yet.
      request.sampling.constrained = true;
      RolloutCommands commands;
      commands.submit.push_back(request);
      CHECK(engine->rollout_turn(std::move(commands)).stats.running == 1);
      commands = {};
      commands.abort.push_back(request.id);
      const RolloutTurn turn = engine->rollout_turn(std::move(commands));
      CHECK(turn.outputs.size() == 1 && turn.outputs[0].finish == Finish::kAbort);
      CHECK(turn.outputs[0].routed_experts.empty());
    });
  }
}

TEST(choices_of_a_page_are_those_of_its_copy) {
  RoutingPages pages({2, 4, 2});
  const at::Tensor rows = at::arange(8, at::kByte).view({2, 4});
  pages.store({{0, 0}, {0, 1}}, rows);
  const std::vector<uint8_t> kept = pages.read({0}, 2);
  CHECK(kept == std::vector<uint8_t>({0, 1, 2, 3, 4, 5, 6, 7}));
  pages.copy_page(0, 100);  // beyond all pages so far
  CHECK(pages.read({100}, 2) == kept && pages.read({0}, 2) == kept);
  pages.store({{100, 1}}, rows.narrow(0, 0, 1));
  CHECK(pages.read({100}, 2) == std::vector<uint8_t>({0, 1, 2, 3, 0, 1, 2, 3}) && pages.read({0}, 2) == kept);
  pages.copy_page(100, 0);
  CHECK(pages.read({0}, 2) == pages.read({100}, 2));
}

TEST(passes_through_other_layers_leave_what_was_recorded) {
  RoutingRecord record(3, {2, 8, 1});
  PackedTokens packed;
  packed.tokens = at::zeros({3}, at::kInt);
  packed.sources = {{0, 0, 3}};
  for (const int64_t layer : {0, 1}) {
    const at::Tensor rows = record.rows(packed, at::kCPU);
    rows.select(1, layer).copy_(at::arange(3) + 1 + 3 * layer);
    record.keep(packed, rows);
  }
  CHECK(at::equal(record.choices(), at::tensor({1, 4, 2, 5, 3, 6}, at::kByte)));
}

TEST(more_experts_than_a_byte_counts) {
  EngineOptions options = mixture();
  options.model.moe_layers[0] = false;
  options.model.moe->num_experts = 300;
  options.model.moe->intermediate_size = 3;
  const auto engine = create_engine(options);
  const RoutingShape shape = routing_shape(options.model);
  const LongBatch batch = long_batch(0, std::vector<int64_t>(kLongSequences, 0));
  const LogProbResult first = engine->compute_log_prob(batch.tokens, 1, false, false, false, true);
  CHECK(first.routed_experts.numel() == batch.tokens.tokens.numel() * shape.width() * 2);
  CHECK(first.routed_experts.view(at::kShort).max().item<int64_t>() > 255);
  TokenBatch told = batch.tokens;
  told.routed_experts = first.routed_experts;
  const LogProbResult second = engine->compute_log_prob(told, 1, false, false, false, true);
  CHECK(second.routed_experts.equal(first.routed_experts) && second.log_probs.equal(first.log_probs));
}

TEST(choices_that_cannot_be_are_refused) {
  const EngineOptions options = mixture();
  const auto engine = create_engine(options);
  const LongBatch batch = long_batch(0, std::vector<int64_t>(kLongSequences, 0));
  const at::Tensor good = engine->compute_log_prob(batch.tokens, 1, false, false, false, true).routed_experts;
  const auto expect = [&](const at::Tensor& choices, const char* message) {
    TokenBatch told = batch.tokens;
    told.routed_experts = choices;
    CHECK_THROWS(engine->compute_log_prob(told, 1, false, false), message);
  };
  const int64_t width = routing_shape(options.model).width();
  const at::Tensor first = good.clone(), unknown = good.clone(), twice = good.clone(), last = good.clone();
  first[width - 1] = 4;
  expect(first,
         "sequence 0, position 0, layer 1 of 2 with experts: expected 2 different experts below 4, got 4");
  unknown[3 * width] = 4;
  expect(unknown,
         "sequence 0, position 3, layer 0 of 2 with experts: expected 2 different experts below 4, got 4");
  twice[width + 1] = twice[width].item<int64_t>();
  expect(twice, "sequence 0, position 1");
  expect(good.narrow(0, 1, good.numel() - 1).clone(), "expected routed experts of");
  // The last token of a sequence goes nowhere.
  last.narrow(0, (prompt_of(0) + response_of(0) - 1) * width, width).fill_(77);
  TokenBatch told = batch.tokens;
  told.routed_experts = last;
  engine->compute_log_prob(told, 1, false, false);
  EngineOptions dense = tensor_options("qwen3", HeadKind::kLm, 1, false);
  const auto plain = create_engine(dense);
  CHECK_THROWS(plain->compute_log_prob(batch.tokens, 1, false, false, false, true),
               "the model has no experts");
  CHECK_THROWS(plain->compute_log_prob(told, 1, false, false), "a model without experts");
}

TEST_MAIN()
