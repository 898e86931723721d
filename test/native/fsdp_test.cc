#include <ATen/ATen.h>

#include <cstdlib>
#include <random>
#include <thread>

#include "check.h"
#include "comm/communicator.h"
#include "comm/rendezvous.h"
#include "core/error.h"
#include "toy_training.h"

using namespace troupe;
using namespace troupe::test;

namespace {

// Where and how a model is spread: `shard_size` ranks share a copy, 0: all.
struct Spread {
  int64_t size = 1;
  std::string sharding = "full_shard";
  int64_t shard_size = 0;
  bool delays = false;  // before every collective, of random length, another one on each rank

  int64_t parts() const { return sharding == "no_shard" ? 1 : shard_size == 0 ? size : shard_size; }
};

// A communicator that is late for every collective.
class Delayed final : public Communicator {
 public:
  Delayed(std::unique_ptr<Communicator> inner, unsigned seed)
      : Communicator(inner->rank(), inner->size()), inner_(std::move(inner)), seed_(seed), random_(seed) {}

  std::unique_ptr<Communicator> split(const std::string& name, const std::vector<int64_t>& ranks) override {
    return std::make_unique<Delayed>(inner_->split(name, ranks), seed_ + 100);
  }
  void abort(const std::string& reason) override { inner_->abort(reason); }

 protected:
  void move_all_gather(const at::Tensor& output, const at::Tensor& input) override {
    wait();
    inner_->all_gather(output, input, {});
  }
  void move_all_to_all(const at::Tensor& output, const at::Tensor& input) override {
    wait();
    inner_->all_to_all(output, input, {});
  }
  void move_broadcast(const at::Tensor& tensor, int64_t root) override {
    wait();
    inner_->broadcast(tensor, root, {});
  }

 private:
  void wait() {
    std::this_thread::sleep_for(std::chrono::microseconds(std::uniform_int_distribution<>(0, 3000)(random_)));
  }

  std::unique_ptr<Communicator> inner_;
  unsigned seed_;
  std::mt19937 random_;
};

struct Outcome {
  at::Tensor before;               // log-probs or values of this rank's sequences before any update
  std::vector<double> grad_norms;  // of every step
  at::Tensor weights;              // all of them, flat
  double loss = 0;                 // this rank's part of the last mini-batch's
  StateBytes bytes;
  int64_t bytes_sent = 0;  // by the updates
};

Outcome train(Engine& engine, HeadKind head, const Share& share, int64_t updates) {
  Outcome outcome;
  outcome.before = head == HeadKind::kLm ? engine.compute_log_prob(share.tokens, 1, false, false).log_probs
                                         : engine.compute_values(share.tokens);
  const int64_t bytes_sent = engine.bytes_sent();
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
  outcome.bytes_sent = engine.bytes_sent() - bytes_sent;
  std::vector<at::Tensor> weights;
  for (const ParameterInfo& info : engine.parameters()) {
    weights.push_back(engine.get_tensor(TensorKind::kParam, info.name).view({-1}));
  }
  outcome.weights = at::cat(weights);
  outcome.bytes = engine.state_bytes();
  return outcome;
}

std::vector<Outcome> train_sharded(EngineOptions options, const std::vector<int64_t>& owners,
                                   const Spread& spread, int64_t updates) {
  const int64_t size = spread.size;
  options.sharding = spread.sharding;
  options.shard_size = spread.shard_size;
  const auto rendezvous = Rendezvous::open();
  std::vector<Outcome> outcomes(static_cast<size_t>(size));
  std::vector<std::thread> threads;
  for (int64_t rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        auto direct = make_communicator({"gloo", rank, size, "127.0.0.1", rendezvous->port(), "secret",
                                         std::chrono::milliseconds(60'000)});
        std::shared_ptr<Communicator> comm;
        if (spread.delays) {
          comm = std::make_shared<Delayed>(std::move(direct), static_cast<unsigned>(rank));
        } else {
          comm = std::move(direct);
        }
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
void compare(const EngineOptions& options, const std::vector<int64_t>& owners, const Spread& spread,
             int64_t updates, double tolerance) {
  const int64_t size = spread.size;
  const auto whole = create_engine(options);
  const std::vector<int64_t> all_on_one(kSequences, 0);
  const Outcome expected = train(*whole, options.model.head, share_of(0, all_on_one), updates);
  const std::vector<Outcome> actual = train_sharded(options, owners, spread, updates);

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
    const int64_t parts = spread.parts();
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

namespace {

// All strategies at all sizes, with and without checkpointing and accumulation (several micro-batches in a
// mini-batch): every combination with TROUPE_TEST_EXHAUSTIVE=1, otherwise every third or so, such that each
// strategy, size and combination is there.
void compare_everywhere(HeadKind head) {
  std::vector<Spread> spreads;
  for (const int64_t size : {1, 2, 3, 4, 8}) {
    for (const std::string sharding : {"full_shard", "shard_grad_op", "no_shard"})
      spreads.push_back({size, sharding});
  }
  for (const std::string sharding : {"full_shard", "shard_grad_op"}) {
    for (const auto& [size, shard_size] : {std::pair{4, 2}, {8, 4}, {8, 2}})
      spreads.push_back({size, sharding, shard_size});
  }
  const bool exhaustive = std::getenv("TROUPE_TEST_EXHAUSTIVE") != nullptr;
  const size_t start = head == HeadKind::kLm ? 0 : 1;
  for (size_t i = 0; i < spreads.size(); ++i) {
    for (size_t combination = 0; combination < 4; ++combination) {
      if (!exhaustive && (i % 2 != start || combination != i / 2 % 4)) continue;
      EngineOptions options = options_of("qwen3", head);
      options.gradient_checkpointing = combination % 2 == 1;
      options.max_tokens = combination < 2 ? 40 : 400;
      compare(options, round_robin(spreads[i].size), spreads[i], 10, 1e-6);
    }
  }
}

// What a rank sends in two optimiser steps of one update, with `rounds` micro-batches in all.
int64_t theoretical_bytes(const std::vector<ParameterInfo>& parameters, const Spread& spread,
                          int64_t rounds) {
  std::vector<std::pair<std::string, int64_t>> groups;
  for (const ParameterInfo& info : parameters) {
    const std::string name = info.name.rfind("layers.", 0) == 0 ? info.name.substr(0, 8)
                             : info.name == "embed.weight"      ? "embed"
                                                                : "head";
    if (groups.empty() || groups.back().first != name) groups.emplace_back(name, 0);
    int64_t count = 1;
    for (const int64_t extent : info.shape) count *= extent;
    groups.back().second += (count + 15) / 16 * 16;
  }
  const int64_t peers = spread.size - 1;
  const int64_t steps = 2;
  int64_t bytes = steps * 8 * peers;  // the counts of micro-batches, int64
  for (size_t g = 0; g < groups.size(); ++g) {
    const int64_t part = (groups[g].second + 16 * spread.size - 1) / (16 * spread.size) * 16;
    // Embeddings, head and the last block are gathered for forward and backward together.
    const bool twice = groups[g].first != "embed" && g + 2 < groups.size();
    const int64_t gathers = spread.sharding == "full_shard" ? rounds * (twice ? 2 : 1) : steps;
    bytes += (gathers + rounds) * part * 4 * peers;  // gathered parameters, reduced gradients
    bytes += steps * 8 * peers;                      // squares of the gradients, float64
  }
  return bytes;
}

}  // namespace

TEST(ten_updates_of_an_actor_equal_one_process_for_every_size_and_strategy) {
  compare_everywhere(HeadKind::kLm);
}

TEST(ten_updates_of_a_critic_equal_one_process_for_every_size_and_strategy) {
  compare_everywhere(HeadKind::kValue);
}

TEST(delays_before_collectives_change_nothing) {
  const EngineOptions options = options_of("qwen3", HeadKind::kLm);
  for (Spread spread : {Spread{3, "full_shard"}, Spread{2, "shard_grad_op"}, Spread{4, "full_shard", 2}}) {
    const auto owners = round_robin(spread.size);
    const std::vector<Outcome> prompt = train_sharded(options, owners, spread, 2);
    spread.delays = true;
    const std::vector<Outcome> late = train_sharded(options, owners, spread, 2);
    for (size_t rank = 0; rank < prompt.size(); ++rank) {
      CHECK(late[rank].before.equal(prompt[rank].before));
      CHECK(late[rank].weights.equal(prompt[rank].weights));
      CHECK(late[rank].grad_norms == prompt[rank].grad_norms);
    }
  }
}

TEST(bytes_sent_by_an_update_are_the_theoretical_volume) {
  EngineOptions options = options_of("qwen3", HeadKind::kLm);
  options.max_tokens = 400;  // one micro-batch in each of the two mini-batches
  const std::vector<ParameterInfo> parameters = create_engine(options)->parameters();
  for (const Spread& spread :
       {Spread{2, "full_shard"}, Spread{3, "full_shard"}, Spread{3, "shard_grad_op"}}) {
    for (const Outcome& outcome : train_sharded(options, round_robin(spread.size), spread, 1))
      CHECK(outcome.bytes_sent == theoretical_bytes(parameters, spread, 2));
  }
}

TEST(tied_embeddings_and_experts) {
  for (const std::string variant : {"gpt2", "qwen3_moe"}) {
    compare(options_of(variant, HeadKind::kLm), round_robin(2), {2, "full_shard"}, 10, 1e-6);
  }
}

TEST(bfloat16_computes_on_gathered_copies_of_float32_masters) {
  for (const std::string sharding : {"full_shard", "no_shard"}) {
    EngineOptions options = options_of("qwen3", HeadKind::kLm);
    options.dtype = "bfloat16";
    compare(options, round_robin(2), {2, sharding}, 3, 1e-4);
  }
}

TEST(unequal_and_empty_shares_do_not_change_the_result) {
  // Rank 2 has nothing at all; rank 0 has one sequence, of the second mini-batch.
  const std::vector<int64_t> owners{1, 1, 1, 1, 1, 1, 0, 1};
  for (const HeadKind head : {HeadKind::kLm, HeadKind::kValue}) {
    for (const std::string sharding : {"full_shard", "shard_grad_op", "no_shard"}) {
      compare(options_of("qwen3", head), owners, {3, sharding}, 3, 1e-6);
    }
    compare(options_of("qwen3", head), owners, {4, "full_shard", 2}, 3, 1e-6);
  }
}

TEST(strategies_that_make_no_sense_are_refused) {
  const auto message = [](const std::string& sharding, int64_t shard_size) {
    EngineOptions options = options_of("qwen3", HeadKind::kLm);
    options.sharding = sharding;
    options.shard_size = shard_size;
    const auto rendezvous = Rendezvous::open();
    const auto join = [&](int64_t rank) {
      return make_communicator(
          {"gloo", rank, 2, "127.0.0.1", rendezvous->port(), "secret", std::chrono::milliseconds(20'000)});
    };
    std::thread peer([&] { join(1); });
    const std::shared_ptr<Communicator> comm = join(0);
    peer.join();
    try {
      create_engine(options, comm);
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string("(nothing thrown)");
  };
  CHECK(message("zero", 0) == "[fsdp] expected sharding full_shard, shard_grad_op or no_shard, got zero");
  CHECK(message("full_shard", 3) == "[fsdp] expected a number of ranks per copy that divides 2 ranks, got 3");
}

TEST_MAIN()
