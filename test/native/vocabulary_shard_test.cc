#include "base/parallel.h"
#include "comm/fake.h"
#include "engine/policy_gradient.h"
#include "ranks.h"
#include "sharded_head.h"

// linear_log_prob over a weight whose rows are spread over ranks, against the float64 reference on the whole.

using namespace troupe;
using namespace troupe::test;
using ops::VocabularyShard;

namespace {

std::vector<at::Tensor> outputs(const HeadOutcome& out) {
  return {out.rows.log_probs, out.rows.lse, out.rows.entropy, out.rows.sum_pi_squared, out.d_hidden};
}

// Of every rank, and the rows of their weight gradients together; empty when a rank threw.
std::vector<HeadOutcome> run_sharded(const HeadTask& task, at::ScalarType type,
                                     const std::vector<int64_t>& offsets) {
  const auto size = static_cast<int64_t>(offsets.size()) - 1;
  std::vector<HeadOutcome> outcomes(static_cast<size_t>(size));
  for (const std::string& error : on_ranks(size, [&](Communicator& comm) {
         const VocabularyShard shard(comm, offsets);
         outcomes[static_cast<size_t>(comm.rank())] = run_head(task, type, &shard);
       })) {
    CHECK(error == "");
    if (!error.empty()) return {};
  }
  std::vector<at::Tensor> d_weights;
  for (const HeadOutcome& out : outcomes) d_weights.push_back(out.d_weight);
  for (HeadOutcome& out : outcomes) out.d_weight = at::cat(d_weights);
  return outcomes;
}

void check_close(const HeadOutcome& actual, const HeadOutcome& expected, double forward, double gradients) {
  CHECK(worst(actual.rows.log_probs, expected.rows.log_probs) <= forward);
  CHECK(worst(actual.rows.lse, expected.rows.lse) <= forward);
  CHECK(worst(actual.rows.entropy, expected.rows.entropy) <= 10 * forward);
  CHECK(worst(actual.rows.sum_pi_squared, expected.rows.sum_pi_squared) <= 10 * forward);
  CHECK(worst(actual.d_hidden, expected.d_hidden) <= gradients);
  CHECK(worst(actual.d_weight, expected.d_weight) <= gradients);
}

// What the ranks have is one thing, bit by bit, and the forward's bits are those of the backward.
void check_agreement(const std::vector<HeadOutcome>& outcomes) {
  for (const HeadOutcome& out : outcomes) {
    for (size_t i = 0; i < outputs(out).size(); ++i) CHECK(outputs(out)[i].equal(outputs(outcomes[0])[i]));
    CHECK(out.forward.log_probs.equal(out.rows.log_probs) && out.forward.lse.equal(out.rows.lse));
    CHECK(out.forward.entropy.equal(out.rows.entropy));
    CHECK(out.forward.sum_pi_squared.equal(out.rows.sum_pi_squared));
  }
}

}  // namespace

TEST(shards_give_what_the_whole_gives) {
  struct Case {
    int64_t n, hidden_size;
    double temperature, softcap, magnitude;
    std::vector<int64_t> offsets;
  };
  for (const Case& c :
       std::vector<Case>{{128, 16, 1, 0, 1, {0, 5}},
                         {128, 16, 1, 0, 1, {0, 2, 5}},
                         {256, 48, 0.7, 0, 1, {0, 1024, 1025}},       // one row on the last rank
                         {128, 33, 5, 12, 3, {0, 1000, 1000, 3001}},  // none on the one in the middle
                         {256, 64, 0.05, 0, 0.1, {0, 512, 1024, 1536, 2048}},
                         {128, 24, 0.05, 0, 1, {0, 7, 900, 2000}},
                         {128, 8, 1, 0, 300, {0, 0, 0, 1499, 1500}},
                         {0, 8, 1, 0, 1, {0, 50, 100}},  // no token
                         {128, 1, 1, 0, 1, {0, 1, 1}}}) {
    const HeadTask task(c.n, c.hidden_size, c.offsets.back(), {c.temperature, c.softcap}, c.magnitude);
    const HeadOutcome whole = run_head(task, at::kDouble, nullptr);
    const double scale = std::max(1.0, c.magnitude / c.temperature);
    const std::vector<HeadOutcome> floats = run_sharded(task, at::kFloat, c.offsets);
    check_agreement(floats);
    for (const HeadOutcome& out : floats) check_close(out, whole, 4e-6 * scale, 4e-4 * scale);
    const std::vector<HeadOutcome> doubles = run_sharded(task, at::kDouble, c.offsets);
    check_agreement(doubles);
    for (const HeadOutcome& out : doubles) check_close(out, whole, 1e-13 * scale, 1e-11 * scale);
  }
}

TEST(further_tokens_of_a_row_lie_on_any_rank) {
  for (const std::vector<int64_t>& offsets :
       std::vector<std::vector<int64_t>>{{0, 800, 1600}, {0, 3, 1600}, {0, 700, 700, 1600}, {0, 5, 8}}) {
    HeadTask task(256, 24, offsets.back(), {0.7, 12});
    task.give_tokens(6);
    const HeadOutcome whole = run_head(task, at::kDouble, nullptr);
    for (const auto& [type, tolerance] : {std::pair(at::kFloat, 1e-5), std::pair(at::kDouble, 1e-11)}) {
      const std::vector<HeadOutcome> all = run_sharded(task, type, offsets);
      check_agreement(all);
      for (const HeadOutcome& out : all) {
        CHECK(out.forward.top.ids.equal(whole.forward.top.ids));
        CHECK(worst(out.forward.top.log_probs, whole.forward.top.log_probs) < tolerance);
        CHECK(out.rows.given.log_probs.equal(all[0].rows.given.log_probs));
        CHECK(worst(out.rows.given.log_probs, whole.rows.given.log_probs) < tolerance);
        CHECK(out.rows.given.among_top.equal(whole.rows.given.among_top));
        CHECK(worst_of_largest(out.d_hidden, whole.d_hidden) < tolerance);
        CHECK(worst_of_largest(out.d_weight, whole.d_weight) < tolerance);
      }
    }
  }
}

TEST(one_rank_gives_the_bits_of_the_whole) {
  const auto comm = make_local_communicator();
  for (const double softcap : {0.0, 30.0}) {
    const HeadTask task(384, 40, 2500, {0.7, softcap});
    const VocabularyShard shard(*comm, {0, 2500});
    const HeadOutcome whole = run_head(task, at::kFloat, nullptr),
                      sharded = run_head(task, at::kFloat, &shard);
    for (size_t i = 0; i < outputs(whole).size(); ++i) CHECK(outputs(whole)[i].equal(outputs(sharded)[i]));
    CHECK(whole.d_weight.equal(sharded.d_weight));
  }
}

TEST(one_token) {
  const HeadTask task(1, 12, 90, {1, 0});
  const HeadOutcome whole = run_head(task, at::kDouble, nullptr);
  for (const HeadOutcome& out : run_sharded(task, at::kDouble, {0, 30, 61, 90})) {
    check_close(out, whole, 1e-13, 1e-12);
  }
}

TEST(logits_of_1e4_on_both_sides) {
  // At temperature 0.05 up to 2e5. One rank has none but the smallest. Whole numbers, so that what float32
  // cannot hold is no part of it: lse is 2000.3 at temperature 5. (An entropy of 2e-59 is 0 there.)
  for (const double temperature : {0.05, 1.0, 5.0}) {
    HeadTask task(128, 1, 3000, {temperature, 0});
    task.hidden.fill_(1);
    task.weight.copy_(at::linspace(-1e4, 1e4, 3000).round().unsqueeze(1));
    std::vector<HeadOutcome> outcomes = run_sharded(task, at::kFloat, {0, 10, 1500, 3000});
    check_agreement(outcomes);
    outcomes.push_back(run_head(task, at::kFloat, nullptr));
    const HeadOutcome whole = run_head(task, at::kDouble, nullptr);
    for (const HeadOutcome& out : outcomes) {
      for (size_t i = 0; i < outputs(out).size(); ++i) {
        CHECK(worst_of_largest(outputs(out)[i], outputs(whole)[i]) < 1e-4);
      }
      CHECK(worst_of_largest(out.d_weight, whole.d_weight) < 1e-4);
    }
  }
}

TEST(bfloat16_is_rounded_after_the_sum_over_the_ranks) {
  HeadTask task(256, 48, 1700, {0.9, 0});
  task.hidden = task.hidden.to(at::kBFloat16).to(at::kFloat);
  task.weight = task.weight.to(at::kBFloat16).to(at::kFloat);
  const std::vector<HeadOutcome> shards = run_sharded(task, at::kBFloat16, {0, 600, 1300, 1700});
  check_agreement(shards);
  const HeadOutcome whole = run_head(task, at::kBFloat16, nullptr);
  CHECK(worst_of_largest(shards[0].rows.log_probs, whole.rows.log_probs) < 1e-6);
  // The sums differ in their order: few of them lie so close to the middle that they are rounded to the other
  // side. With a rounding per rank most would differ.
  const double differing = shards[0].d_hidden.ne(whole.d_hidden).to(at::kDouble).mean().item<double>();
  CHECK(differing < 0.01);
  CHECK(worst_of_largest(shards[0].d_weight, whole.d_weight) < 1e-3);
}

TEST(rows_of_one_rank_keep_their_bits_in_other_batches) {
  const HeadTask task(kRowTile * 3, 40, 2500, {1, 0});
  HeadTask last(kRowTile, 40, 2500, {1, 0});
  last.weight = task.weight;
  last.hidden = task.hidden.narrow(0, 2 * kRowTile, kRowTile);
  last.targets = task.targets.narrow(0, 2 * kRowTile, kRowTile).contiguous();
  const std::vector<HeadOutcome> all = run_sharded(task, at::kFloat, {0, 1200, 2500});
  const std::vector<HeadOutcome> few = run_sharded(last, at::kFloat, {0, 1200, 2500});
  CHECK(all[0].rows.log_probs.narrow(0, 2 * kRowTile, kRowTile).equal(few[0].rows.log_probs));
  CHECK(all[0].rows.entropy.narrow(0, 2 * kRowTile, kRowTile).equal(few[0].rows.entropy));
}

TEST(parts_of_the_hidden_gradient_are_left_to_the_caller) {
  const HeadTask task(128, 24, 1000, {0.8, 0});
  std::vector<at::Tensor> parts(3);
  const std::vector<int64_t> offsets{0, 400, 400, 1000};
  for (const std::string& error : on_ranks(3, [&](Communicator& comm) {
         const VocabularyShard shard(comm, offsets);
         parts[static_cast<size_t>(comm.rank())] = run_head(task, at::kFloat, &shard, false).d_hidden;
       })) {
    CHECK(error == "");
  }
  CHECK(parts[1].eq(0).all().item<bool>());
  CHECK(at::equal(parts[0] + parts[1] + parts[2], run_sharded(task, at::kFloat, offsets)[0].d_hidden));
}

TEST(collectives_and_bytes_are_those_that_the_header_promises) {
  // Chunks of the backward are cut by the widest shard: 640 rows in 384 and 256.
  const int64_t n = 640, hidden_size = 24, size = 2;
  const std::vector<int64_t> offsets{0, 40'000, 41'000};
  const HeadTask task(n, hidden_size, offsets.back(), {1, 0});
  for (const std::string& error : on_ranks(size, [&](Communicator& comm) {
         const VocabularyShard shard(comm, offsets);
         run_head(task, at::kFloat, &shard);
         const int64_t chunks = 2, reduction = 2;  // an all-reduce of many is a reduce_scatter and a gather
         CHECK(comm.log().collectives() == 1 + chunks * (1 + reduction));
         const int64_t gradients = 2 * n * hidden_size * 4 / size * (size - 1);
         CHECK(comm.log().bytes_sent() == (size - 1) * 2 * n * 40 + gradients);
       })) {
    CHECK(error == "");
  }
}

TEST(a_group_that_is_not_there_has_the_same_collectives) {
  const auto calls = std::make_shared<FakeCommunicator::Calls>();
  const int64_t size = 64, n = 256, hidden_size = 32;
  FakeCommunicator comm(3, size, calls);
  std::vector<int64_t> offsets(static_cast<size_t>(size + 1));
  for (int64_t r = 0; r <= size; ++r) offsets[static_cast<size_t>(r)] = 10 * r;
  const VocabularyShard shard(comm, offsets);
  run_head(HeadTask(n, hidden_size, offsets.back(), {1, 0}), at::kFloat, &shard);
  std::vector<std::string> names;
  int64_t bytes = 0;
  for (const CollectiveLog::Entry& call : *calls) {
    names.push_back(std::string(call.name) + " of " + call.label.subject + ", " + call.label.phase);
    bytes += call.bytes;
  }
  const std::string gradient = " of hidden states of the head, backward";
  CHECK((names == std::vector<std::string>{"all_gather of head sums, forward",
                                           "all_gather of head sums, backward", "reduce_scatter" + gradient,
                                           "all_gather" + gradient}));
  CHECK(bytes == (size - 1) * 2 * n * 40 + 2 * n * hidden_size * 4 / size * (size - 1));
}

// The policy loss of 200 response tokens in two sequences while they come out of the head.
struct LossOutcome {
  at::Tensor log_probs, entropy, d_hidden, d_weight;

  LossOutcome(const HeadTask& task, const std::string& mode, const VocabularyShard* shard) {
    PackedTokens packed;
    packed.targets = task.targets.narrow(0, 0, 200);
    packed.response_offsets = {0, 70, 200};
    PolicyLossOptions options;
    options.mode = parse_policy_mode(mode);
    options.entropy_coeff = 0.01;
    losses::PolicyInputs inputs;
    inputs.layout = {at::tensor(packed.response_offsets, at::kLong), at::ones({200}, at::kByte), 200, 2};
    inputs.old_log_probs = task.h.narrow(0, 0, 200) * 0.1 - 6;
    inputs.advantages = task.g.narrow(0, 0, 200);
    ops::LogProbSpec spec = task.spec;
    spec.shard = shard;
    const at::Tensor weight =
        shard != nullptr ? task.weight.narrow(0, shard->begin(), shard->rows()) : task.weight;
    d_hidden = at::full_like(task.hidden, NAN);
    d_weight = at::zeros_like(weight);
    PolicyGradient gradient(inputs, {}, packed, nullptr, options);
    gradient.run(spec, task.hidden, weight, task.targets, d_hidden, d_weight);
    log_probs = gradient.log_probs();
    entropy = gradient.entropy();
  }
};

TEST(policy_losses_take_a_sharded_head_as_they_take_a_whole_one) {
  const HeadTask task(256, 32, 1900, {0.9, 0});
  for (const std::string mode : {"vanilla", "gspo"}) {  // one head pass, and two
    const LossOutcome whole(task, mode, nullptr);
    check_all(3, [&](Communicator& comm) {
      const VocabularyShard shard(comm, {0, 800, 800, 1900});
      const LossOutcome own(task, mode, &shard);
      CHECK(worst(own.log_probs, whole.log_probs.to(at::kDouble)) < 1e-6);
      CHECK(worst(own.entropy, whole.entropy.to(at::kDouble)) < 1e-5);
      CHECK((own.d_hidden - whole.d_hidden).abs().max().item<double>() <
            1e-5 * whole.d_hidden.abs().max().item<double>());
      if (shard.rows() == 0) return;
      const at::Tensor rows = whole.d_weight.narrow(0, shard.begin(), shard.rows());
      CHECK((own.d_weight - rows).abs().max().item<double>() < 1e-5 * rows.abs().max().item<double>());
    });
  }
}

TEST_MAIN()
