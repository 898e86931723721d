#include "batch/packing.h"
#include "long_training.h"

using namespace troupe;
using namespace troupe::test;

namespace {

// A batch in which some sequences have no gradient: their advantages are zero.
struct Mixed {
  LongBatch batch;
  at::Tensor has_gradient;  // [B]
};

Mixed mixed_batch(int64_t group, const std::vector<int64_t>& owners, const std::vector<int64_t>& still) {
  Mixed mixed{long_batch(group, owners), {}};
  std::vector<uint8_t> flags;
  int64_t start = 0;
  for (int64_t i = 0; i < kLongSequences; ++i) {
    if (owners[static_cast<size_t>(i)] != group) continue;
    flags.push_back(std::count(still.begin(), still.end(), i) == 0 ? 1 : 0);
    if (flags.back() == 0) mixed.batch.b.narrow(0, start, response_of(i)).zero_();
    start += response_of(i);
  }
  mixed.has_gradient = at::tensor(std::vector<int64_t>(flags.begin(), flags.end()), at::kLong).to(at::kByte);
  return mixed;
}

struct Result {
  MetricsList metrics;
  at::Tensor weights;
  int64_t bytes_sent = 0;
};

Result update(Engine& engine, const Mixed& mixed, const std::string& mode, bool told) {
  const LongBatch& batch = mixed.batch;
  PolicyLossOptions loss;
  loss.mode = parse_policy_mode(mode);
  PolicyBatch policy{batch.tokens, batch.mask, batch.a, batch.b, {}, {}, {}, {}};
  if (told) policy.has_gradient = mixed.has_gradient;
  MiniBatches mini = batch.mini;
  mini.epochs = 2;
  const int64_t before = engine.bytes_sent();
  Result result;
  result.metrics = engine.update_policy(policy, mini, loss, 0.9);
  result.bytes_sent = engine.bytes_sent() - before;
  std::vector<at::Tensor> weights;
  for (const ParameterInfo& info : engine.parameters())
    weights.push_back(engine.get_tensor(TensorKind::kParam, info.name).view({-1}));
  result.weights = at::cat(weights);
  return result;
}

// Two epochs over two mini-batches, with and without the knowledge of which sequences have no gradient.
std::vector<std::pair<Result, Result>> compare(const EngineOptions& options, int64_t size,
                                               const std::vector<int64_t>& owners,
                                               const std::vector<int64_t>& still,
                                               const std::string& mode = "vanilla") {
  std::vector<std::pair<Result, Result>> results(static_cast<size_t>(size));
  on_ranks(size, [&](int64_t rank, const std::shared_ptr<Communicator>& comm) {
    const Mixed mixed = mixed_batch(rank / options.ulysses, owners, still);
    auto& [plain, told] = results[static_cast<size_t>(rank)];
    plain = update(*create_engine(options, comm), mixed, mode, false);
    told = update(*create_engine(options, comm), mixed, mode, true);
  });
  for (const auto& [plain, told] : results) {
    if (!told.weights.defined()) return results;  // reported already
    CHECK((told.weights - plain.weights).abs().max().item<double>() < 1e-6);
    CHECK(told.metrics.size() == plain.metrics.size());
    for (size_t step = 0; step < plain.metrics.size(); ++step) {
      CHECK(told.metrics[step].size() == plain.metrics[step].size());
      for (const auto& [name, value] : plain.metrics[step])
        CHECK_CLOSE(told.metrics[step].at(name), value, 1e-5 * std::max(1.0, std::abs(value)));
    }
    // The first forward is over the same weights: packing changes no bit of a sequence.
    for (const char* name : {"entropy", "ppo_kl", "pg_loss"}) {
      if (plain.metrics[0].count(name) != 0) CHECK(told.metrics[0].at(name) == plain.metrics[0].at(name));
    }
  }
  return results;
}

const std::vector<int64_t> kPrompt{0, 1, 2};         // of one prompt
const std::vector<int64_t> kMiniBatch{0, 1, 2, 3};   // the whole first mini-batch
const std::vector<int64_t> kSecondRank{1, 3, 5, 7};  // all of the second of two ranks
const std::vector<int64_t> kAll{0, 1, 2, 3, 4, 5, 6, 7};

}  // namespace

TEST(one_process) {
  for (const std::string mode : {"vanilla", "gspo"}) {
    for (const auto& still : {kPrompt, kMiniBatch, kSecondRank, kAll})
      compare(long_options("qwen3", HeadKind::kLm), 1, round_robin(1), still, mode);
  }
  EngineOptions options = long_options("qwen3", HeadKind::kLm);
  options.gradient_checkpointing = true;
  options.lora = attention_adapters(options.model);
  compare(options, 1, round_robin(1), kPrompt);
}

TEST(without_any_gradient_no_weight_moves) {
  EngineOptions options = long_options("qwen3", HeadKind::kLm);
  options.optim->weight_decay = 0;
  const auto engine = create_engine(options);
  const Result none = update(*engine, mixed_batch(0, round_robin(1), kAll), "vanilla", true);
  for (const Metrics& step : none.metrics) CHECK(step.at("grad_norm") == 0);
  const Result some = update(*engine, mixed_batch(0, round_robin(1), kMiniBatch), "vanilla", true);
  CHECK(some.metrics[0].at("grad_norm") == 0 && some.metrics[1].at("grad_norm") > 0);
  const auto fresh = create_engine(options);
  std::vector<at::Tensor> weights;
  for (const ParameterInfo& info : fresh->parameters())
    weights.push_back(fresh->get_tensor(TensorKind::kParam, info.name).view({-1}));
  CHECK(none.weights.equal(at::cat(weights)));
  CHECK(!some.weights.equal(none.weights));
}

// Prompts 7 8 (three times), 9 (once) and a long one (twice).
TEST(a_prompt_is_not_computed_twice_to_save_less_than_it_costs) {
  std::vector<int32_t> tokens, offsets{0}, prompts;
  const auto add = [&](int32_t first, int32_t prompt, int32_t response) {
    for (int32_t t = 0; t < prompt + response; ++t) tokens.push_back(t < prompt ? first + t : 1);
    offsets.push_back(static_cast<int32_t>(tokens.size()));
    prompts.push_back(prompt);
  };
  for (int i = 0; i < 3; ++i) add(7, 2, 4);
  add(9, 1, 3);
  for (int i = 0; i < 2; ++i) add(12, 20, 4);
  const BatchLayout layout = check_layout(
      {at::tensor(tokens, at::kInt), at::tensor(offsets, at::kInt), at::tensor(prompts, at::kInt)},
      kVocabulary, 256);
  const auto parts = [&](const std::vector<int64_t>& flags) {
    return propagation(layout, 0, 6, at::tensor(flags, at::kLong).to(at::kByte));
  };
  using Indices = std::vector<int64_t>;
  CHECK(propagation(layout, 1, 3, {}).backward == Indices({1, 2}));
  CHECK(propagation(layout, 1, 3, {}).forward.empty());
  CHECK(parts({0, 0, 0, 0, 0, 0}).forward == Indices({0, 1, 2, 3, 4, 5}));
  // Once more the prompt of 2 costs less than backwards through 4 tokens; that of 20 does not.
  CHECK(parts({1, 0, 1, 1, 1, 0}).forward == Indices({1}));
  CHECK(parts({1, 0, 1, 1, 1, 0}).backward == Indices({0, 2, 3, 4, 5}));
  // Nobody else needs the long prompt.
  CHECK(parts({1, 1, 1, 0, 0, 0}).forward == Indices({3, 4, 5}));
}

TEST(ranks_that_have_none_take_part) {
  for (const std::string sharding : {"full_shard", "shard_grad_op", "no_shard"}) {
    EngineOptions options = long_options("qwen3", HeadKind::kLm);
    options.sharding = parse_sharding_strategy(sharding);
    options.prefetch = sharding == "full_shard";
    for (const auto& still : {kPrompt, kMiniBatch, kSecondRank}) compare(options, 2, round_robin(2), still);
  }
}

TEST(gradients_that_are_not_there_are_not_sent) {
  EngineOptions options = long_options("qwen3", HeadKind::kLm);
  options.sharding = parse_sharding_strategy("full_shard");
  for (const auto& [plain, told] : compare(options, 2, round_robin(2), kMiniBatch))
    CHECK(told.bytes_sent < 0.8 * static_cast<double>(plain.bytes_sent));
}

TEST(sequence_groups) {
  EngineOptions options = long_options("qwen3", HeadKind::kLm);
  options.ulysses = 2;
  options.sharding = parse_sharding_strategy("full_shard");
  for (const std::string mode : {"vanilla", "gspo"}) {
    compare(options, 4, round_robin(2), kPrompt, mode);
    compare(options, 4, round_robin(2), kSecondRank, mode);
  }
}

TEST(flags_of_another_length_are_refused) {
  const auto engine = create_engine(long_options("qwen3", HeadKind::kLm));
  Mixed mixed = mixed_batch(0, round_robin(1), kPrompt);
  mixed.has_gradient = at::ones({3}, at::kByte);
  CHECK_THROWS(update(*engine, mixed, "vanilla", true),
               "hasGradient: expected one value per sequence (8), got 3");
}

TEST_MAIN()
