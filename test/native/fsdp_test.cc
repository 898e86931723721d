#include <ATen/ATen.h>

#include <thread>

#include "check.h"
#include "comm/communicator.h"
#include "comm/rendezvous.h"
#include "core/engine.h"
#include "core/error.h"

using namespace troupe;

namespace {

constexpr int64_t kSequences = 8;
constexpr int64_t kVocabulary = 50;

ModelConfig small(const std::string& variant, HeadKind head) {
  ModelConfig c;
  c.family = variant;
  c.head = head;
  c.vocab_size = kVocabulary;
  c.hidden_size = 24;
  c.num_layers = 2;
  c.num_heads = 4;
  c.num_kv_heads = 2;
  c.head_dim = 8;
  c.intermediate_size = 40;
  c.max_positions = 64;
  c.attention_scale = 0.35;
  c.sliding_windows = {0, 0};
  for (int64_t i = 0; i < 4; ++i) c.rope_inv_freq.push_back(std::pow(100.0, -static_cast<double>(i) / 4));
  if (variant == "gpt2") {
    c.norm = NormKind::kLayer;
    c.positions = PositionKind::kLearned;
    c.rope_inv_freq.clear();
    c.gated_mlp = false;
    c.qkv_bias = c.output_bias = c.mlp_bias = true;
    c.tied_embeddings = true;
  } else if (variant == "qwen3_moe") {
    c.qk_norm = true;
    c.moe = MoeConfig{4, 2, 16, true};
    c.moe_layers = {false, true};
  }
  if (head == HeadKind::kValue) c.value_bias = true;
  return c;
}

EngineOptions options_of(const std::string& variant, HeadKind head) {
  EngineOptions options;
  options.model = small(variant, head);
  options.max_tokens = 40;  // several micro-batches per mini-batch
  options.optim = AdamWOptions{};
  options.optim->lr = 1e-4;
  options.seed = 3;
  options.num_threads = 1;
  return options;
}

// Sequence i of the whole batch, whoever computes it.
struct Sequence {
  at::Tensor tokens;  // [L]
  int64_t prompt;
  at::Tensor a, b;  // [R] two columns
};

Sequence sequence(int64_t i) {
  const int64_t prompt = 1 + i % 3;
  const int64_t response = 4 + (i * 7) % 11;
  const at::Tensor at_ = at::arange(response, at::kFloat).add(static_cast<double>(i) * 1.7);
  return {at::arange(prompt + response, at::kInt).mul(7 + i).add(3 * i).remainder(kVocabulary), prompt,
          at_.sin().sub(3.9), at_.mul(1.3).cos()};
}

// The sequences of one rank: `owners[i]` is the rank of sequence i.
struct Share {
  TokenBatch tokens;
  at::Tensor mask, a, b;
  MiniBatches mini;  // two mini-batches of half of the sequences each
};

Share share_of(int64_t rank, const std::vector<int64_t>& owners) {
  Share share;
  std::vector<at::Tensor> tokens{at::empty({0}, at::kInt)}, a{at::empty({0})}, b{at::empty({0})};
  std::vector<int32_t> offsets{0}, prompts;
  share.mini.offsets = {0};
  share.mini.global_tokens = {0, 0};
  share.mini.global_sequences = {kSequences / 2.0, kSequences / 2.0};
  for (int64_t i = 0; i < kSequences; ++i) {
    const Sequence s = sequence(i);
    const size_t m = i < kSequences / 2 ? 0 : 1;
    share.mini.global_tokens[m] += static_cast<double>(s.a.numel());
    if (owners[static_cast<size_t>(i)] == rank) {
      tokens.push_back(s.tokens);
      a.push_back(s.a);
      b.push_back(s.b);
      offsets.push_back(offsets.back() + static_cast<int32_t>(s.tokens.numel()));
      prompts.push_back(static_cast<int32_t>(s.prompt));
    }
    if (i + 1 == kSequences / 2 || i + 1 == kSequences) {
      share.mini.offsets.push_back(static_cast<int64_t>(prompts.size()));
    }
  }
  share.tokens = {at::cat(tokens), at::tensor(offsets, at::kInt), at::tensor(prompts, at::kInt)};
  share.a = at::cat(a);
  share.b = at::cat(b);
  share.mask = at::ones({share.a.numel()}, at::kByte);
  return share;
}

struct Outcome {
  at::Tensor before;               // log-probs or values of this rank's sequences before any update
  std::vector<double> grad_norms;  // of every step
  at::Tensor weights;              // all of them, flat
  double loss = 0;                 // this rank's part of the last mini-batch's
  StateBytes bytes;
};

Outcome train(Engine& engine, HeadKind head, const Share& share, int64_t updates) {
  Outcome outcome;
  outcome.before = head == HeadKind::kLm ? engine.compute_log_prob(share.tokens, 1, false, false).log_probs
                                         : engine.compute_values(share.tokens);
  for (int64_t update = 0; update < updates; ++update) {
    MetricsList metrics;
    if (head == HeadKind::kLm) {
      PolicyLossOptions loss;
      loss.entropy_coeff = 0.01;
      metrics =
          engine.update_policy({share.tokens, share.mask, share.a, share.b, {}, {}, {}}, share.mini, loss, 1);
    } else {
      ValueLossOptions loss;
      loss.clip_range = 100;  // no prediction is so far from the old value that it has no gradient
      metrics = engine.update_critic({share.tokens, share.mask, share.a, share.b}, share.mini, loss);
    }
    for (const Metrics& step : metrics) outcome.grad_norms.push_back(step.at("grad_norm"));
    const auto loss = metrics.back().find("loss");
    outcome.loss = loss == metrics.back().end() ? 0 : loss->second;
  }
  std::vector<at::Tensor> weights;
  for (const ParameterInfo& info : engine.parameters()) {
    weights.push_back(engine.get_tensor(TensorKind::kParam, info.name).view({-1}));
  }
  outcome.weights = at::cat(weights);
  outcome.bytes = engine.state_bytes();
  return outcome;
}

std::vector<Outcome> train_sharded(const EngineOptions& options, const std::vector<int64_t>& owners,
                                   int64_t size, int64_t updates) {
  const auto rendezvous = Rendezvous::open();
  std::vector<Outcome> outcomes(static_cast<size_t>(size));
  std::vector<std::thread> threads;
  for (int64_t rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        const std::shared_ptr<Communicator> comm = make_communicator(
            {"gloo", rank, size, "127.0.0.1", rendezvous->port(), std::chrono::milliseconds(60'000)});
        const auto engine = create_engine(options, comm);
        outcomes[static_cast<size_t>(rank)] =
            train(*engine, options.model.head, share_of(rank, owners), updates);
      } catch (const std::exception& error) {
        test::report(false, __FILE__, __LINE__, error.what());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  return outcomes;
}

double relative(const at::Tensor& a, const at::Tensor& b) {
  return ((a - b).norm() / b.norm()).item<double>();
}

// The same sequences, spread by `owners`, give what one process gives.
void compare(EngineOptions options, const std::vector<int64_t>& owners, int64_t size,
             const std::string& sharding, int64_t updates, double tolerance) {
  options.sharding = sharding;
  const auto whole = create_engine(options);
  const std::vector<int64_t> all_on_one(kSequences, 0);
  const Outcome expected = train(*whole, options.model.head, share_of(0, all_on_one), updates);
  const std::vector<Outcome> actual = train_sharded(options, owners, size, updates);

  std::vector<int64_t> response_start{0};
  for (int64_t i = 0; i < kSequences; ++i)
    response_start.push_back(response_start.back() + sequence(i).a.numel());
  double loss = 0;
  for (int64_t rank = 0; rank < size; ++rank) {
    const Outcome& outcome = actual[static_cast<size_t>(rank)];
    if (!outcome.weights.defined()) return;  // reported already
    std::vector<at::Tensor> own{at::empty({0})};
    for (int64_t i = 0; i < kSequences; ++i) {
      if (owners[static_cast<size_t>(i)] != rank) continue;
      own.push_back(expected.before.slice(0, response_start[static_cast<size_t>(i)],
                                          response_start[static_cast<size_t>(i) + 1]));
    }
    CHECK(outcome.before.equal(at::cat(own)));
    CHECK(outcome.weights.equal(actual[0].weights));
    CHECK(relative(outcome.weights, expected.weights) < tolerance);
    CHECK(outcome.grad_norms.size() == expected.grad_norms.size());
    for (size_t step = 0; step < expected.grad_norms.size(); ++step) {
      CHECK(outcome.grad_norms[step] == actual[0].grad_norms[step]);
      CHECK(expected.grad_norms[step] > 0);
      CHECK_CLOSE(outcome.grad_norms[step] / expected.grad_norms[step], 1.0, 10 * tolerance);
    }
    loss += outcome.loss;
    const int64_t parts = sharding == "no_shard" ? 1 : size;
    for (const auto member : {&StateBytes::parameters, &StateBytes::gradients, &StateBytes::moments}) {
      // Slices are padded by at most a cache line per group.
      const double bytes = static_cast<double>(expected.bytes.*member) / static_cast<double>(parts);
      CHECK(static_cast<double>(outcome.bytes.*member) >= bytes);
      CHECK(static_cast<double>(outcome.bytes.*member) <= bytes * 1.02 + 4 * 2 * 64);
    }
  }
  CHECK_CLOSE(loss, expected.loss, 10 * tolerance * std::max(1.0, std::abs(expected.loss)));
}

std::vector<int64_t> round_robin(int64_t size) {
  std::vector<int64_t> owners;
  for (int64_t i = 0; i < kSequences; ++i) owners.push_back(i % size);
  return owners;
}

}  // namespace

TEST(ten_updates_of_an_actor_equal_one_process_for_every_size_and_strategy) {
  for (const int64_t size : {1, 2, 3, 4}) {
    for (const std::string sharding : {"full_shard", "shard_grad_op", "no_shard"}) {
      EngineOptions options = options_of("qwen3", HeadKind::kLm);
      options.gradient_checkpointing = size % 2 == 0;
      compare(options, round_robin(size), size, sharding, 10, 1e-6);
    }
  }
}

TEST(ten_updates_of_a_critic_equal_one_process) {
  for (const std::string sharding : {"full_shard", "shard_grad_op", "no_shard"}) {
    EngineOptions options = options_of("qwen3", HeadKind::kValue);
    options.gradient_checkpointing = sharding == "shard_grad_op";
    compare(options, round_robin(3), 3, sharding, 10, 1e-6);
  }
}

TEST(tied_embeddings_and_experts) {
  for (const std::string variant : {"gpt2", "qwen3_moe"}) {
    compare(options_of(variant, HeadKind::kLm), round_robin(2), 2, "full_shard", 10, 1e-6);
  }
}

TEST(bfloat16_computes_on_gathered_copies_of_float32_masters) {
  for (const std::string sharding : {"full_shard", "no_shard"}) {
    EngineOptions options = options_of("qwen3", HeadKind::kLm);
    options.dtype = "bfloat16";
    compare(options, round_robin(2), 2, sharding, 3, 1e-4);
  }
}

TEST(unequal_and_empty_shares_do_not_change_the_result) {
  // Rank 2 has nothing at all; rank 0 has one sequence, of the second mini-batch.
  const std::vector<int64_t> owners{1, 1, 1, 1, 1, 1, 0, 1};
  for (const std::string sharding : {"full_shard", "shard_grad_op", "no_shard"}) {
    compare(options_of("qwen3", HeadKind::kLm), owners, 3, sharding, 3, 1e-6);
  }
}

TEST(unknown_strategies_are_refused) {
  EngineOptions options = options_of("qwen3", HeadKind::kLm);
  options.sharding = "zero";
  const auto rendezvous = Rendezvous::open();
  std::thread peer([&] {
    make_communicator({"gloo", 1, 2, "127.0.0.1", rendezvous->port(), std::chrono::milliseconds(20'000)});
  });
  const std::shared_ptr<Communicator> comm =
      make_communicator({"gloo", 0, 2, "127.0.0.1", rendezvous->port(), std::chrono::milliseconds(20'000)});
  peer.join();
  CHECK_THROWS(create_engine(options, comm),
               "expected sharding full_shard, shard_grad_op or no_shard, got zero");
}

TEST_MAIN()
