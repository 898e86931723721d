#include <ATen/ATen.h>

#include <cstdlib>

#include "base/error.h"
#include "generation.h"
#include "sharded_training.h"

// State and activations on the host, gathers ahead of their use, and gradients that are summed once per
// mini-batch: none of them changes a number more than the order of a sum does.

using namespace troupe;
using namespace troupe::test;

namespace {

constexpr StateKinds kAll{true, true, true};

struct Variant {
  const char* name;
  StateKinds offload;
  bool prefetch = false;
  bool checkpointing = false;
  bool activations = false;
};

const std::vector<Variant> kVariants = {
    {"parameters", {true, false, false}},
    {"moments", {false, false, true}},
    {"gradients", {false, true, false}, false, true},
    {"parameters and moments", {true, false, true}},
    {"prefetch", {}, true},
    {"activations", {}, false, true, true},
    {"everything", kAll, true, true, true},
};

EngineOptions with(EngineOptions options, const Variant& variant) {
  options.offload = variant.offload;
  options.prefetch = variant.prefetch;
  options.gradient_checkpointing = variant.checkpointing;
  options.activation_offload = variant.activations;
  return options;
}

void check_equal(const std::vector<Outcome>& actual, const std::vector<Outcome>& expected,
                 const std::string& what) {
  for (size_t rank = 0; rank < expected.size(); ++rank) {
    const Outcome &a = actual[rank], &e = expected[rank];
    if (!a.weights.defined() || !e.weights.defined()) return;  // reported already
    const bool same = a.before.equal(e.before) && a.weights.equal(e.weights) &&
                      a.grad_norms == e.grad_norms && a.loss == e.loss && a.bytes_sent == e.bytes_sent;
    if (!same) std::printf("  rank %zu differs: %s\n", rank, what.c_str());
    CHECK(same);
    for (const auto part : {&HeldBytes::parameters, &HeldBytes::gradients, &HeldBytes::moments})
      CHECK(a.bytes.*part + a.bytes.host.*part == e.bytes.*part + e.bytes.host.*part);
  }
}

// Ten updates of every size and strategy: variants of an engine equal it bit for bit, and one process within
// 1e-6. Every variant everywhere with TROUPE_TEST_EXHAUSTIVE=1, otherwise one at each place in turn, and one
// reduction per mini-batch at every other place.
void compare_everywhere(HeadKind head, const std::string& reduction) {
  std::vector<Spread> spreads;
  for (const int64_t size : {1, 2, 3, 4}) {
    for (const std::string sharding : {"full_shard", "shard_grad_op", "no_shard"})
      spreads.push_back({size, sharding});
  }
  for (const std::string sharding : {"full_shard", "shard_grad_op"}) spreads.push_back({4, sharding, 2});
  const bool exhaustive = std::getenv("TROUPE_TEST_EXHAUSTIVE") != nullptr;
  EngineOptions options = options_of("qwen3", head);
  const auto alone = create_engine(options);
  const Outcome expected = train(*alone, head, share_of(0, std::vector<int64_t>(kSequences, 0)), 10);
  options.reduction = parse_reduction(reduction);
  const size_t start = head == HeadKind::kLm ? 0 : 1;
  for (size_t place = 0; place < spreads.size(); ++place) {
    if (!exhaustive && reduction == "mini_batch" && place % 2 != start) continue;
    const Spread& spread = spreads[place];
    const auto owners = round_robin(spread.size);
    const std::vector<Outcome> plain = train_sharded(options, owners, spread, 10);
    for (const Outcome& outcome : plain) {
      CHECK(outcome.weights.defined() && relative(outcome.weights, expected.weights) < 1e-6);
      CHECK(outcome.grad_norms.size() == expected.grad_norms.size());
      for (size_t step = 0; step < expected.grad_norms.size(); ++step)
        CHECK_CLOSE(outcome.grad_norms[step] / expected.grad_norms[step], 1.0, 1e-5);
    }
    for (size_t i = 0; i < (exhaustive ? kVariants.size() : 1); ++i) {
      // Another one for each strategy at the next size.
      const Variant& variant = kVariants[(start + place + place / 3 + i) % kVariants.size()];
      const std::string what = spread.sharding + " over " + std::to_string(spread.size) + ", " + variant.name;
      check_equal(train_sharded(with(options, variant), owners, spread, 10), plain, what);
    }
  }
}

// The query projection and the output of the MLP of every layer.
LoraOptions adapters(const ModelConfig& c) {
  LoraOptions lora{4, 2.5, {}};
  for (int64_t layer = 0; layer < c.num_layers; ++layer) {
    const std::string prefix = "layers." + std::to_string(layer) + ".";
    lora.sites.push_back({prefix + "attn.qkv.q", prefix + "attn.qkv.weight", 0, c.q_size()});
    lora.sites.push_back({prefix + "mlp.out.down", prefix + "mlp.out.weight", 0, c.hidden_size});
  }
  return lora;
}

bool same(const HeldBytes& a, const HeldBytes& b) {
  return a.parameters == b.parameters && a.gradients == b.gradients && a.moments == b.moments;
}

}  // namespace

TEST(ten_updates_of_an_actor_are_the_same_wherever_its_state_lies) {
  compare_everywhere(HeadKind::kLm, "micro_batch");
}

TEST(ten_updates_of_a_critic_are_the_same_wherever_its_state_lies) {
  compare_everywhere(HeadKind::kValue, "micro_batch");
}

TEST(one_reduction_per_mini_batch_is_one_process_too) {
  compare_everywhere(HeadKind::kLm, "mini_batch");
  compare_everywhere(HeadKind::kValue, "mini_batch");
}

TEST(bfloat16_experts_tied_embeddings_and_adapters) {
  for (const std::string variant :
       {"qwen3", "gpt2", "qwen3_moe", "glm4_moe", "deepseek_v3", "gpt_oss", "qwen3_5", "olmo3", "olmo_hybrid",
        "granite", "granitemoe", "glm4", "lora"}) {
    EngineOptions options = options_of(variant == "lora" ? "qwen3" : variant, HeadKind::kLm);
    if (variant == "lora") options.lora = adapters(options.model);
    for (const std::string dtype : {"float32", "bfloat16"}) {
      options.dtype = parse_dtype(dtype);
      for (const Spread& spread : {Spread{1, "full_shard"}, Spread{2, "full_shard"}, Spread{2, "no_shard"}}) {
        const auto owners = round_robin(spread.size);
        check_equal(train_sharded(with(options, {"", kAll, true}), owners, spread, 3),
                    train_sharded(options, owners, spread, 3), variant + " in " + dtype);
      }
    }
  }
}

TEST(ranks_without_data_and_delays_change_nothing) {
  const std::vector<int64_t> owners{1, 1, 1, 1, 1, 1, 0, 1};  // rank 2 has nothing at all
  for (const std::string reduction : {"micro_batch", "mini_batch"}) {
    EngineOptions options = options_of("qwen3", HeadKind::kLm);
    options.reduction = parse_reduction(reduction);
    for (Spread spread : {Spread{3, "full_shard"}, Spread{3, "shard_grad_op"}, Spread{4, "full_shard", 2}}) {
      const std::vector<Outcome> plain = train_sharded(options, owners, spread, 3);
      spread.delays = true;
      check_equal(train_sharded(with(options, {"", kAll, true}), owners, spread, 3), plain, reduction);
    }
  }
}

TEST(state_that_is_moved_between_phases_comes_back_by_itself) {
  for (const std::string dtype : {"float32", "bfloat16"}) {
    EngineOptions options = options_of("qwen3", HeadKind::kLm);
    options.dtype = parse_dtype(dtype);
    const Share share = share_of(0, std::vector<int64_t>(kSequences, 0));
    const auto still = create_engine(options);
    const auto moved = create_engine(options);
    const StateBytes before = moved->state_bytes();
    CHECK(same(before.host, {}));
    const auto generate = [](Engine& engine) {
      return test::generate(engine, {at::tensor({1, 2}, at::kInt), at::tensor({0, 2}, at::kInt), 1, {7}},
                            {6, 1, 0, 1, {}});
    };
    for (const StateKinds& kinds : {StateKinds{true, false, false}, StateKinds{false, false, true}, kAll}) {
      moved->offload(kinds);
      moved->offload(kinds);  // a second time there is nothing to do
      const StateBytes away = moved->state_bytes();
      CHECK(away.parameters == (kinds.parameters ? 0 : before.parameters));
      CHECK(away.host.parameters == (kinds.parameters ? before.parameters : 0));
      CHECK(away.gradients == (kinds.gradients ? 0 : before.gradients));
      CHECK(away.host.moments == (kinds.moments ? before.moments : 0));
      CHECK(generate(*moved).tokens.equal(generate(*still).tokens));
      const Outcome a = train(*moved, HeadKind::kLm, share, 1), b = train(*still, HeadKind::kLm, share, 1);
      CHECK(a.before.equal(b.before) && a.weights.equal(b.weights) && a.grad_norms == b.grad_norms);
      for (const TensorKind kind : {TensorKind::kGrad, TensorKind::kExpAvg, TensorKind::kExpAvgSq}) {
        CHECK(moved->get_tensor(kind, "layers.1.mlp.in.weight")
                  .equal(still->get_tensor(kind, "layers.1.mlp.in.weight")));
      }
      moved->onload(kinds);
      CHECK(same(moved->state_bytes(), before) && same(moved->state_bytes().host, {}));
      CHECK(moved->compute_log_prob(share.tokens, 1, false, false)
                .log_probs.equal(still->compute_log_prob(share.tokens, 1, false, false).log_probs));
    }
  }
}

TEST(a_verb_that_fails_leaves_state_on_the_host_as_it_was) {
  EngineOptions options = options_of("qwen3", HeadKind::kLm);
  options.offload = kAll;
  const Share share = share_of(0, std::vector<int64_t>(kSequences, 0));
  const auto whole = create_engine(options);
  const auto failed = create_engine(options);
  PolicyLossOptions impossible;  // found out by the loss, behind the first forward pass
  impossible.clip_ratio_c = 1;
  CHECK_THROWS(failed->update_policy({share.tokens, share.mask, share.a, share.b, {}, {}, {}}, share.mini,
                                     impossible, 1),
               "clip_ratio_c expected a value above 1");
  const Outcome a = train(*failed, HeadKind::kLm, share, 2), b = train(*whole, HeadKind::kLm, share, 2);
  CHECK(a.before.equal(b.before) && a.weights.equal(b.weights) && a.grad_norms == b.grad_norms);
  CHECK(same(failed->state_bytes(), {}));
}

TEST(moves_and_words_that_make_no_sense_are_refused) {
  EngineOptions options = options_of("qwen3", HeadKind::kLm);
  CHECK_THROWS(parse_reduction("epoch"), "expected reduction micro_batch or mini_batch, got epoch");
  options = options_of("qwen3", HeadKind::kLm);
  options.optim.reset();
  const auto frozen = create_engine(options);
  frozen->offload({true, false, false});
  CHECK(frozen->state_bytes().parameters == 0);
  CHECK_THROWS(frozen->offload({false, false, true}), "has no gradients or optimiser state to move");
  CHECK_THROWS(frozen->onload({false, true, false}), "has no gradients or optimiser state to move");
}

TEST_MAIN()
