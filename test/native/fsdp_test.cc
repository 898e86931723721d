#include <ATen/ATen.h>

#include <cstdlib>

#include "base/error.h"
#include "sharded_training.h"

using namespace troupe;
using namespace troupe::test;

namespace {

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

// What a rank sends in two optimiser steps of one update, with `rounds` micro-batches in all, of which
// `reductions` (all, or one per step) sum the gradients.
int64_t theoretical_bytes(const std::vector<ParameterInfo>& parameters, const Spread& spread, int64_t rounds,
                          int64_t reductions) {
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
  // That the rank begins, and for every step the counts of micro-batches with and without gradient: int64.
  int64_t bytes = (1 + steps * 2) * 8 * peers;
  for (size_t g = 0; g < groups.size(); ++g) {
    const int64_t part = (groups[g].second + 16 * spread.size - 1) / (16 * spread.size) * 16;
    // Embeddings, head and the last block are gathered for forward and backward together.
    const bool twice = groups[g].first != "embed" && g + 2 < groups.size();
    const int64_t gathers = spread.sharding == "full_shard" ? rounds * (twice ? 2 : 1) : steps;
    bytes += (gathers + reductions) * part * 4 * peers;  // gathered parameters, reduced gradients
    bytes += steps * 8 * peers;                          // squares of the gradients, float64
  }
  return bytes;
}

// How many are the same: gradients that differ in their last bits can round a weight to its other neighbour,
// other random numbers do so with six of ten.
double same_share(const at::Tensor& a, const at::Tensor& b) {
  return a.eq(b).to(at::kDouble).mean().item<double>();
}

}  // namespace

TEST(ten_updates_of_an_actor_equal_one_process_for_every_size_and_strategy) {
  compare_everywhere(HeadKind::kLm);
}

TEST(ten_updates_of_a_critic_equal_one_process_for_every_size_and_strategy) {
  compare_everywhere(HeadKind::kValue);
}

// 10 bytes a weight: itself and two moments in bfloat16, a float32 gradient.
TEST(weights_that_are_kept_in_bfloat16_are_rounded_alike_however_they_are_spread) {
  for (const HeadKind head : {HeadKind::kLm, HeadKind::kValue}) {
    EngineOptions options = options_of("qwen3", head);
    options.max_tokens = 400;  // one micro-batch: sums over ranks have one order
    options.dtype = options.master_dtype = at::kBFloat16;
    std::vector<Outcome> first;
    for (const Spread& spread : {Spread{4, "full_shard"}, Spread{4, "shard_grad_op"}, Spread{4, "no_shard"},
                                 Spread{4, "full_shard", 2}}) {
      const std::vector<Outcome> outcomes = train_sharded(options, round_robin(spread.size), spread, 5);
      for (const Outcome& outcome : outcomes) {
        if (!outcome.weights.defined()) return;  // reported already
        CHECK(outcome.weights.equal(outcomes[0].weights));
        CHECK(outcome.weights.equal(outcome.weights.to(at::kBFloat16).to(at::kFloat)));
        CHECK(outcome.bytes.moments == 2 * outcome.bytes.parameters);
        CHECK(outcome.bytes.gradients == 2 * outcome.bytes.parameters);
      }
      if (first.empty()) first = outcomes;
      // Replicas are summed behind the shards of each: in another order.
      if (spread.shard_size == 0) CHECK(outcomes[0].weights.equal(first[0].weights));
      CHECK(same_share(outcomes[0].weights, first[0].weights) > 0.99);
    }
    const auto alone = create_engine(options);
    const Outcome one = train(*alone, head, share_of(0, std::vector<int64_t>(kSequences, 0)), 5);
    CHECK(same_share(one.weights, first[0].weights) > 0.99);
    options.master_dtype = at::kFloat;
    const auto wide = create_engine(options);
    const Outcome exact = train(*wide, head, share_of(0, std::vector<int64_t>(kSequences, 0)), 5);
    CHECK(relative(one.weights, exact.weights) < 0x1p-7);
    CHECK(exact.bytes.parameters == 3 * one.bytes.parameters);
  }
}

TEST(masters_in_bfloat16_are_refused_where_they_would_be_rounded_apart) {
  EngineOptions options = options_of("qwen3", HeadKind::kLm);
  options.master_dtype = at::kBFloat16;
  CHECK_THROWS(create_engine(options), "expected the dtype bfloat16, too, got float32");
  options.dtype = at::kBFloat16;
  options.pipeline.stages = 2;
  CHECK_THROWS(create_engine(options), "expected tp, ep and stages of a pipeline to be 1, got 1, 1 and 2");
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

TEST(gradients_that_are_summed_beside_the_backward_have_the_bits_of_those_that_are_not) {
  for (const std::string variant : {"qwen3", "gpt2", "qwen3_moe"}) {
    EngineOptions options = options_of(variant, HeadKind::kLm);
    options.gradient_checkpointing = variant == "gpt2";
    for (Spread spread : {Spread{3, "full_shard"}, Spread{2, "shard_grad_op"}, Spread{4, "full_shard", 2}}) {
      const auto owners = round_robin(spread.size);
      options.overlap_reduction = false;
      const std::vector<Outcome> after = train_sharded(options, owners, spread, 2);
      options.overlap_reduction = true;
      options.prefetch = variant != "qwen3";
      spread.delays = variant == "qwen3";
      const std::vector<Outcome> beside = train_sharded(options, owners, spread, 2);
      for (size_t rank = 0; rank < after.size(); ++rank) {
        CHECK(beside[rank].weights.equal(after[rank].weights));
        CHECK(beside[rank].grad_norms == after[rank].grad_norms && after[rank].grad_norms[0] > 0);
        CHECK(beside[rank].bytes_sent == after[rank].bytes_sent);
      }
    }
  }
}

TEST(gradients_that_are_sent_in_bfloat16_are_rounded_once_and_summed_in_float32) {
  EngineOptions options = options_of("qwen3", HeadKind::kLm);
  options.max_tokens = 400;  // one micro-batch in each mini-batch
  options.optim->lr = 0;
  options.reduce_dtype = at::kBFloat16;
  for (Spread spread : {Spread{2, "full_shard"}, Spread{3, "shard_grad_op"}, Spread{2, "no_shard"}}) {
    spread.gradients = true;
    const auto owners = round_robin(spread.size);
    const bool sharded = spread.sharding != "no_shard";
    at::Tensor expected;
    for (int64_t rank = 0; rank < spread.size; ++rank) {
      const auto alone = create_engine(options);
      at::Tensor own = train(*alone, HeadKind::kLm, share_of(rank, owners), 1, true).gradients;
      if (sharded) own = own.to(at::kBFloat16).to(at::kFloat);
      expected = expected.defined() ? expected + own : own;
    }
    for (const std::string reduction : {"micro_batch", "mini_batch"}) {
      for (const bool overlap : {false, true}) {
        options.reduction = parse_reduction(reduction);
        options.overlap_reduction = overlap;
        for (const Outcome& outcome : train_sharded(options, owners, spread, 1))
          CHECK(outcome.gradients.equal(expected));
      }
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
      CHECK(outcome.bytes_sent == theoretical_bytes(parameters, spread, 2, 2));
    options.reduce_dtype = at::kBFloat16;  // two sums of half the bytes each
    for (const Outcome& outcome : train_sharded(options, round_robin(spread.size), spread, 1))
      CHECK(outcome.bytes_sent == theoretical_bytes(parameters, spread, 2, 1));
    options.reduce_dtype = at::kFloat;
  }
}

TEST(gradients_that_are_summed_once_per_mini_batch_are_sent_once) {
  EngineOptions options = options_of("qwen3", HeadKind::kLm);
  options.max_tokens = 20;  // several micro-batches per mini-batch
  const std::vector<ParameterInfo> parameters = create_engine(options)->parameters();
  for (const Spread& spread : {Spread{2, "full_shard"}, Spread{3, "shard_grad_op"}}) {
    const auto sent = [&](const std::string& reduction) {
      options.reduction = parse_reduction(reduction);
      return train_sharded(options, round_robin(spread.size), spread, 1)[0].bytes_sent;
    };
    const int64_t often = sent("micro_batch");
    int64_t rounds = 1;
    while (theoretical_bytes(parameters, spread, rounds, rounds) < often) ++rounds;
    CHECK(rounds > 2 && often == theoretical_bytes(parameters, spread, rounds, rounds));
    CHECK(sent("mini_batch") == theoretical_bytes(parameters, spread, rounds, 2));
    options.prefetch = true;
    options.offload = {true, true, true};
    CHECK(sent("mini_batch") == theoretical_bytes(parameters, spread, rounds, 2));
    options.prefetch = false;
    options.offload = {};
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
    options.dtype = parse_dtype("bfloat16");
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
  const auto message = [](int64_t shard_size) {
    EngineOptions options = options_of("qwen3", HeadKind::kLm);
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
  CHECK_THROWS(parse_sharding_strategy("zero"),
               "[fsdp] expected sharding full_shard, shard_grad_op or no_shard, got zero");
  CHECK(message(3) == "[fsdp] expected a number of ranks per copy that divides 2 ranks, got 3");
  // A single rank has all, whatever was asked for.
  CHECK(shard_count(ShardingStrategy::kFullShard, 2, 1) == 1);
}

TEST_MAIN()
