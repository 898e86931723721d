// A generation of ranks that train with whole matrices and decode with parts of them: what one process
// generates.
#include "engine/decoding_copy.h"

#include <chrono>
#include <map>
#include <thread>

#include "check.h"
#include "kernels/gemm.h"
#include "ranks.h"
#include "toy_training.h"

using namespace troupe;
using namespace troupe::test;

namespace {

constexpr int64_t kRequests = 6;

struct Answer {
  std::vector<int32_t> tokens;
  std::vector<float> log_probs;
};
using Answers = std::map<uint64_t, Answer>;

RolloutOptions limits(int64_t tensor_parallel, bool latent_cache = false) {
  RolloutOptions limits;
  limits.latent_cache = latent_cache;
  limits.max_sequences = 4;
  limits.max_step_tokens = 24;  // prompts in parts
  limits.kv_cache_bytes = int64_t{1} << 20;
  limits.tensor_parallel = tensor_parallel;
  return limits;
}

RolloutCommands requests() {
  RolloutCommands commands;
  for (int64_t i = 0; i < kRequests; ++i) {
    RolloutRequest request;
    request.id = request.seed = static_cast<uint64_t>(i);
    for (int64_t t = 0; t < 3 + 5 * i; ++t)
      request.prompt.push_back(static_cast<int32_t>((t * 7 + i) % kVocabulary));
    request.sampling.max_new_tokens = 6 + i;
    request.sampling.temperature = i % 2 == 0 ? 0 : 1;
    commands.submit.push_back(std::move(request));
  }
  commands.milliseconds = 60'000;
  return commands;
}

// Half of them greedy.
Answers answers(Engine& engine) {
  RolloutCommands commands = requests();
  engine.begin_rollout(0);
  Answers found;
  RolloutTurn turn;
  for (int64_t turns = 0; turns < 100 && !turn.idle; ++turns) {
    turn = engine.rollout_turn(std::exchange(commands, {}));
    for (const RolloutOutput& output : turn.outputs) {
      CHECK(output.error.empty());
      Answer& answer = found[output.id];
      answer.tokens.insert(answer.tokens.end(), output.tokens.begin(), output.tokens.end());
      answer.log_probs.insert(answer.log_probs.end(), output.log_probs.begin(), output.log_probs.end());
    }
  }
  CHECK(turn.idle && turn.stats.running == 0 && turn.stats.pages_held == 0);
  engine.park_rollout(false);
  return found;
}

// Before and after an update by all ranks.
std::vector<Answers> generations(Engine& engine, int64_t rank, int64_t size, const RolloutOptions& limits) {
  engine.open_rollout(limits);
  std::vector<Answers> all{answers(engine), answers(engine)};
  std::vector<int64_t> owners;
  for (int64_t i = 0; i < kSequences; ++i) owners.push_back(i % size);
  const Share share = share_of(rank, owners);
  engine.update_policy({share.tokens, share.mask, share.a, share.b, {}, {}, {}}, share.mini, {}, 1);
  all.push_back(answers(engine));
  return all;
}

double distance(const Answers& a, const Answers& b) {
  double most = 0;
  CHECK(a.size() == kRequests && b.size() == kRequests);
  for (const auto& [id, answer] : a) {
    const Answer& other = b.at(id);
    CHECK(answer.tokens == other.tokens);
    for (size_t i = 0; i < answer.log_probs.size() && i < other.log_probs.size(); ++i)
      most = std::max(most, std::abs(static_cast<double>(answer.log_probs[i]) - other.log_probs[i]));
  }
  return most;
}

EngineOptions options_for(const std::string& variant) {
  const bool lora = variant == "lora", predictions = variant == "predictions";
  EngineOptions options = options_of(lora || predictions ? "qwen3" : variant, HeadKind::kLm);
  if (predictions) options.model.prediction = PredictionConfig{2, false};
  options.optim->lr = 1e-2;  // an update that shows
  if (options.model.linear) options.model.linear->key_heads = 4;
  if (!lora) return options;
  LoraOptions adapters;
  adapters.rank = 4;
  adapters.scale = 2;
  for (int64_t layer = 0; layer < options.model.num_layers; ++layer) {
    const std::string prefix = "layers." + std::to_string(layer) + ".";
    const int64_t q = options.model.num_heads * options.model.head_dim;
    adapters.sites.push_back({prefix + "attn.q", prefix + "attn.qkv.weight", 0, q});
    adapters.sites.push_back({prefix + "attn.o", prefix + "attn.out.weight", 0, options.model.hidden_size});
  }
  options.lora = adapters;
  return options;
}

struct Layout {
  int64_t ranks, tp;
  ShardingStrategy sharding = ShardingStrategy::kFullShard;
  int64_t shard_size = 0;
  bool offload = false;
};

}  // namespace

// 4 of tp share two heads of keys; the vocabulary of 50 leaves the last rank less.
TEST(ranks_that_decode_together_generate_what_one_process_does) {
  // Ranks have narrower matrices; where products are LibTorch's, their sums are in another order then.
  const double rounding = ops::packs(at::zeros({1, 1})) ? 2e-5 : 1e-4;
  for (const std::string variant : {"qwen2",
                                    "qwen3",
                                    "gpt2",
                                    "gemma2",
                                    "gemma3",
                                    "smollm3",
                                    "qwen3_moe",
                                    "glm4_moe",
                                    "deepseek_v3",
                                    "gpt_oss",
                                    "latent",
                                    "qwen3_5",
                                    "olmo3",
                                    "olmo_hybrid",
                                    "granite",
                                    "granitemoe",
                                    "glm4",
                                    "gemma4_moe",
                                    "gemma4_shared",
                                    "lora",
                                    "predictions",
                                    "deepseek_v3 over latents",
                                    "latent over latents"}) {
    const size_t form = variant.find(" over latents");
    const bool latents = form != std::string::npos;
    const EngineOptions options = options_for(variant.substr(0, form));
    const auto engine = create_engine(options, nullptr);
    const std::vector<Answers> expected = generations(*engine, 0, 1, limits(1, latents));
    CHECK(distance(expected[0], expected[1]) == 0);
    for (const Layout& layout :
         {Layout{2, 2}, Layout{4, 2, ShardingStrategy::kFullShard, 2, true},
          Layout{4, 4, ShardingStrategy::kShardGradOp}, Layout{2, 2, ShardingStrategy::kNoShard}}) {
      check_all(layout.ranks, [&](Communicator& comm) {
        EngineOptions own = options;
        own.sharding = layout.sharding;
        own.shard_size = layout.shard_size;
        if (layout.offload) own.offload = {true, true, true};
        const auto sharded = create_engine(own, std::shared_ptr<Communicator>(&comm, [](Communicator*) {}));
        const std::vector<Answers> found =
            generations(*sharded, comm.rank(), layout.ranks, limits(layout.tp, latents));
        for (size_t i = 0; i < found.size(); ++i) CHECK(distance(found[i], expected[i]) < rounding);
      });
    }
  }
}

TEST(experts_with_buffers_and_weights_of_8_bits_in_bfloat16) {
  for (const auto& [variant, kind] :
       {std::pair("glm4_moe", ops::Quantization::kNone), std::pair("qwen3", ops::Quantization::kInt8),
        std::pair("qwen2", ops::Quantization::kFp8)}) {
    EngineOptions options = options_for(variant);
    options.dtype = at::kBFloat16;
    check_all(2, [&, kind = kind](Communicator& comm) {
      const auto engine = create_engine(options, std::shared_ptr<Communicator>(&comm, [](Communicator*) {}));
      RolloutOptions own = limits(2);
      own.quantization = kind;
      engine->open_rollout(own);
      const Answers found = answers(*engine);
      CHECK(found.size() == kRequests);
      std::vector<int32_t> tokens, ends{0}, prompts;
      std::vector<float> log_probs;
      const RolloutCommands asked = requests();
      for (const RolloutRequest& request : asked.submit) {
        const Answer& answer = found.at(request.id);
        tokens.insert(tokens.end(), request.prompt.begin(), request.prompt.end());
        tokens.insert(tokens.end(), answer.tokens.begin(), answer.tokens.end());
        ends.push_back(static_cast<int32_t>(tokens.size()));
        prompts.push_back(static_cast<int32_t>(request.prompt.size()));
        log_probs.insert(log_probs.end(), answer.log_probs.begin(), answer.log_probs.end());
      }
      // Whole matrices say of them what the parts did, up to their rounding.
      const LogProbResult scored = engine->compute_log_prob(
          {at::tensor(tokens, at::kInt), at::tensor(ends, at::kInt), at::tensor(prompts, at::kInt)}, 1, false,
          false);
      const double most = (scored.log_probs - at::tensor(log_probs)).abs().max().item<double>();
      CHECK(most < 0.05);
    });
  }
}

// A verb that one rank refuses while a generation is under way ends it on all ranks alike, and another
// begins.
TEST(ranks_leave_and_enter_a_generation_together) {
  for (const int64_t tp : {1, 2}) {
    for (const bool offload : {false, true}) {
      check_all(2, [&](Communicator& comm) {
        EngineOptions options = options_for("qwen3");
        if (offload) options.offload = {true, true, true};
        const auto engine =
            create_engine(options, std::shared_ptr<Communicator>(&comm, [](Communicator*) {}));
        engine->open_rollout(limits(tp));
        const Answers expected = answers(*engine);
        engine->begin_rollout(0);
        RolloutCommands commands = requests();
        commands.milliseconds = 0;  // one step
        const RolloutTurn first = engine->rollout_turn(std::move(commands));
        CHECK(first.ready && !first.idle);
        Share share = share_of(comm.rank(), {0, 1, 0, 1, 0, 1, 0, 1});
        if (comm.rank() == 0) share.tokens.tokens.fill_(kVocabulary);
        CHECK_THROWS(engine->compute_log_prob(share.tokens, 1, false, false),
                     comm.rank() == 0 ? "token" : "another rank");
        CHECK(!engine->rollout_turn({}).ready);
        engine->begin_rollout(0);
        std::map<uint64_t, std::vector<int32_t>> tokens;
        for (const RolloutOutput& output : first.outputs)
          tokens[output.id].insert(tokens[output.id].end(), output.tokens.begin(), output.tokens.end());
        RolloutTurn turn;
        for (int64_t turns = 0; turns < 1000 && !turn.idle; ++turns) {
          turn = engine->rollout_turn({});
          for (const RolloutOutput& output : turn.outputs)
            tokens[output.id].insert(tokens[output.id].end(), output.tokens.begin(), output.tokens.end());
        }
        for (const auto& [id, answer] : expected) CHECK(tokens[id] == answer.tokens);
      });
    }
  }
}

TEST(what_cannot_decode_together_is_refused_on_all_ranks) {
  const auto refused = [](EngineOptions options, int64_t ranks, int64_t tp, const std::string& telling) {
    check_all(ranks, [&](Communicator& comm) {
      const auto engine = create_engine(options, std::shared_ptr<Communicator>(&comm, [](Communicator*) {}));
      CHECK_THROWS(engine->open_rollout(limits(tp)), telling);
      // It is as good as before.
      engine->open_rollout(limits(1));
      CHECK(answers(*engine).size() == kRequests);
    });
  };
  const EngineOptions plain = options_of("qwen3", HeadKind::kLm);
  refused(plain, 2, 3, "divide the 2 ranks, got 3");
  refused(plain, 2, 0, "tensorParallel >= 1, got 0");
  EngineOptions three = plain;
  three.model.num_heads = 6;
  three.model.num_kv_heads = 3;
  refused(three, 2, 2, "key heads");
  EngineOptions cut = plain;
  cut.parallel.tp = 2;
  refused(cut, 2, 2, "generates as it trains");
}

TEST(an_abort_ends_a_generation_of_ranks_that_wait_for_each_other) {
  check_all(2, [](Communicator& comm) {
    const auto engine = create_engine(options_of("qwen3", HeadKind::kLm),
                                      std::shared_ptr<Communicator>(&comm, [](Communicator*) {}));
    engine->open_rollout(limits(2));
    engine->begin_rollout(0);
    if (comm.rank() == 1) return std::this_thread::sleep_for(std::chrono::seconds(1));  // it makes no turn
    std::thread watch([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(200));
      engine->abort("rank 1 is lost");
    });
    RolloutCommands commands;
    commands.submit.resize(1);
    commands.submit[0].prompt = {1, 2, 3};
    commands.submit[0].sampling.max_new_tokens = 4;
    CHECK_THROWS(engine->rollout_turn(std::move(commands)), "rank 1 is lost");
    watch.join();
  });
}

TEST_MAIN()
