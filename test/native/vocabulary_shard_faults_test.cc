#include "base/error.h"
#include "ranks.h"
#include "sharded_head.h"

// A head whose shards or inputs do not fit together: all ranks say the same, none waits for another.

using namespace troupe;
using namespace troupe::test;
using ops::VocabularyShard;

TEST(ranks_agree_on_the_shards_or_refuse_them_with_one_text) {
  const auto message = [](const std::vector<std::array<int64_t, 3>>& ranges) {
    const auto size = static_cast<int64_t>(ranges.size());
    const std::vector<std::string> errors = on_ranks(size, [&](Communicator& comm) {
      const auto [vocab, begin, end] = ranges[static_cast<size_t>(comm.rank())];
      std::string text;
      try {
        const VocabularyShard shard = VocabularyShard::agree(comm, vocab, begin, end);
        CHECK(shard.begin() == begin && shard.rows() == end - begin && shard.vocab() == vocab);
      } catch (const Error& error) {
        CHECK(error.code() == ErrorCode::kInvalidArgument);
        text = error.what();
      }
      comm.barrier({"after", "refusal"});
      fail(ErrorCode::kInternal, text);
    });
    for (const std::string& error : errors) CHECK(error == errors[0]);
    return errors[0];
  };
  const std::string head = "[linear_log_prob] expected ";
  CHECK(message({{10, 0, 4}, {10, 4, 4}, {10, 4, 10}}) == "");
  CHECK(message({{10, 0, 10}}) == "");
  const std::string where = " to hold rows of the vocabulary from 4 on, where the rank before it ends, got ";
  CHECK(message({{10, 0, 4}, {10, 3, 10}}) == head + "rank 1" + where + "[3, 10)");              // overlap
  CHECK(message({{10, 0, 4}, {10, 4, 4}, {10, 5, 10}}) == head + "rank 2" + where + "[5, 10)");  // gap
  CHECK(message({{10, 0, 4}, {10, 4, 3}}) == head + "rank 1" + where + "[4, 3)");
  CHECK(message({{10, 0, 4}, {10, 4, 9}}) ==
        head + "the last rank to hold rows up to the end of the vocabulary, 10, got 9");
  CHECK(message({{10, 0, 4}, {11, 4, 11}}) ==
        head + "one vocabulary on all ranks, got 10 rows on rank 0 and 11 on rank 1");
  const auto comm = make_local_communicator();
  for (const std::vector<int64_t>& offsets :
       std::vector<std::vector<int64_t>>{{}, {0}, {0, 0}, {1, 5}, {0, 5, 9}}) {
    CHECK_THROWS(VocabularyShard(*comm, offsets),
                 "expected 2 offsets into the vocabulary that ascend from 0");
  }
}

TEST(inputs_that_do_not_fit_are_refused_on_all_ranks_alike) {
  struct Case {
    std::function<void(HeadTask&, int64_t rank)> spoil;
    std::string message;
  };
  const std::string head = "[linear_log_prob] expected ";
  const std::vector<Case> cases{
      {[](HeadTask& task, int64_t) { task.targets[77] = 100; },
       head + "targets in [0, 100), the whole vocabulary, got 100 in row 77 on rank 0"},
      {[](HeadTask& task, int64_t rank) {
         if (rank == 2) task.targets[5] = -1;
       },
       head + "targets in [0, 100), the whole vocabulary, got -1 in row 5 on rank 2"},
      {[](HeadTask& task, int64_t rank) {
         if (rank == 1) task.targets[0] = 100;
       },
       head + "targets in [0, 100), the whole vocabulary, got 100 in row 0 on rank 1"},
      {[](HeadTask& task, int64_t rank) {
         if (rank == 1) task.targets = task.targets.narrow(0, 0, 127);
       },
       head + "128 targets of Int on rank 1, got 127 of Int"},
      {[](HeadTask& task, int64_t) { task.targets = task.targets.to(at::kLong); },
       head + "128 targets of Int on rank 0, got 128 of Long"},
      {[](HeadTask& task, int64_t rank) {
         if (rank == 1) task.weight = task.weight.narrow(0, 0, 39);
       },
       head + "a weight of [30, 8] Float on rank 1, got [29, 8] Float"},
      {[](HeadTask& task, int64_t rank) {
         if (rank == 2) task.weight = task.weight.narrow(1, 0, 7);
       },
       head + "a weight of [60, 8] Float on rank 2, got [60, 7] Float"},
      {[](HeadTask& task, int64_t rank) {
         if (rank == 1) task.weight = task.weight.to(at::kBFloat16);
       },
       head + "a weight of [30, 8] Float on rank 1, got [30, 8] BFloat16"},
      {[](HeadTask& task, int64_t rank) {
         if (rank == 2) task.hidden = at::cat({task.hidden, task.hidden});
       },
       head +
           "the same hidden states on all ranks, got [128, 8] Float on rank 0 and [256, 8] Float on rank 2"},
      {[](HeadTask& task, int64_t rank) {
         if (rank == 2) task.hidden = task.hidden.to(at::kBFloat16);
       },
       head + "the same hidden states on all ranks, got [128, 8] Float on rank 0 and [128, 8] BFloat16 on "
              "rank 2"},
  };
  const std::vector<std::string> errors = on_ranks(3, [&](Communicator& comm) {
    const VocabularyShard shard(comm, {0, 10, 40, 100}, ops::InputChecks::kAllRanks);
    for (const Case& c : cases) {
      HeadTask task(128, 8, 100, {1, 0});
      c.spoil(task, comm.rank());
      const at::Tensor weight =
          task.weight.size(0) == 100
              ? task.weight.narrow(0, shard.begin(), shard.rows())
              : task.weight.narrow(0, shard.begin(), task.weight.size(0) - shard.begin());
      const ops::LogProbRows rows = poisoned_rows(128, at::kFloat);
      const at::Tensor d_hidden = at::full({128, 8}, NAN), d_weight = at::zeros({shard.rows(), 8});
      ops::LogProbSpec spec = task.spec;
      spec.shard = &shard;
      const ops::RowGradients none = [](int64_t, int64_t, const at::Tensor&, const at::Tensor&) {
        CHECK(false);
      };
      CHECK_THROWS(ops::linear_log_prob_forward(spec, task.hidden, weight, task.targets, rows), c.message);
      CHECK_THROWS(ops::linear_log_prob_backward(spec, task.hidden, weight, task.targets, rows, false, none,
                                                 d_hidden, d_weight),
                   c.message);
      CHECK_THROWS(ops::linear_log_prob_forward_reference(spec, task.hidden, weight, task.targets, rows),
                   c.message);
      CHECK(rows.log_probs.isnan().all().item<bool>() && d_hidden.isnan().all().item<bool>());
    }
    run_head(HeadTask(128, 8, 100, {1, 0}), at::kFloat, &shard);  // as good as before
  });
  for (const std::string& error : errors) CHECK(error == "");
}

TEST(a_rank_refuses_shapes_that_it_sees_to_be_wrong_by_itself) {
  const auto comm = make_local_communicator();
  const VocabularyShard shard(*comm, {0, 100});
  const HeadTask task(128, 8, 100, {1, 0});
  CHECK_THROWS(shard.check(task.hidden, task.weight.narrow(0, 0, 99), task.targets, "forward"),
               "expected a weight of [100, 8] Float on rank 0, got [99, 8] Float");
  CHECK_THROWS(shard.check(task.hidden, task.weight, task.targets.to(at::kLong), "forward"),
               "expected 128 targets of Int on rank 0, got 128 of Long");
  shard.check(task.hidden, task.weight, task.targets, "forward");
  CHECK(comm->log().collectives() == 0);
}

TEST_MAIN()
