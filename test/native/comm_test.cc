#include <ATen/ATen.h>
#include <sched.h>

#include <filesystem>
#include <fstream>
#include <future>
#include <vector>

#include "base/error.h"
#include "ranks.h"

using namespace troupe;
using namespace troupe::test;

namespace {

at::Tensor values(int64_t rank, int64_t count) {
  return at::arange(count, at::kFloat).mul(0.37).sin().add(static_cast<double>(rank) * 1.1);
}

const CollectiveLabel kLabel{"forward", "layers.0"};

// The policies of Gloo's threads for incoming messages. A listing of a process's threads ends early where one
// of them ends meanwhile, so it may lack some.
std::vector<int> policies_of_message_threads() {
  std::vector<int> policies;
  for (const auto& thread : std::filesystem::directory_iterator("/proc/self/task")) {
    std::ifstream file(thread.path() / "comm");
    std::string name;
    if (!std::getline(file, name) || name != "gloo_tcp_loop") continue;
    const int policy = sched_getscheduler(std::stoi(thread.path().filename().string()));
    if (policy >= 0) policies.push_back(policy);
  }
  return policies;
}

}  // namespace

TEST(collectives_of_one_to_four_ranks) {
  for (int64_t size = 1; size <= 4; ++size) {
    for (const int64_t count : {1, 5, 5000}) {
      check_all(size, [&](Communicator& comm) {
        const int64_t rank = comm.rank();
        std::vector<at::Tensor> all;
        for (int64_t r = 0; r < size; ++r) all.push_back(values(r, count * size));
        at::Tensor sum = all[0].clone();
        for (int64_t r = 1; r < size; ++r) sum.add_(all[static_cast<size_t>(r)]);
        const at::Tensor own = all[static_cast<size_t>(rank)];

        const at::Tensor gathered = at::empty({size * size * count});
        comm.all_gather(gathered, own, kLabel);
        CHECK(gathered.equal(at::cat(all)));

        const at::Tensor half = at::empty({size * size * count}, at::kBFloat16);
        comm.all_gather(half, own.to(at::kBFloat16), kLabel);
        CHECK(half.equal(at::cat(all).to(at::kBFloat16)));

        const at::Tensor part = at::empty({count});
        comm.reduce_scatter(part, own, kLabel);
        CHECK(part.equal(sum.narrow(0, rank * count, count)));

        const at::Tensor reduced = own.clone();
        comm.all_reduce(reduced, ReduceOp::kSum, kLabel);
        CHECK(reduced.equal(sum));
        const at::Tensor odd = own.narrow(0, 0, size * count - (size > 1)).clone();
        comm.all_reduce(odd, ReduceOp::kSum, kLabel);
        CHECK(odd.equal(sum.narrow(0, 0, odd.numel())));

        const at::Tensor largest = at::full({3}, static_cast<double>(rank), at::kDouble);
        comm.all_reduce(largest, ReduceOp::kMax, kLabel);
        CHECK(largest.eq(static_cast<double>(size - 1)).all().item<bool>());

        const at::Tensor from_last = own.clone();
        comm.broadcast(from_last, size - 1, kLabel);
        CHECK(from_last.equal(all.back()));

        const at::Tensor exchanged = at::empty({size * count});
        comm.all_to_all(exchanged, own, kLabel);
        for (int64_t r = 0; r < size; ++r) {
          CHECK(exchanged.narrow(0, r * count, count)
                    .equal(all[static_cast<size_t>(r)].narrow(0, rank * count, count)));
        }
        comm.barrier(kLabel);
      });
    }
  }
}

// Of few numbers and of so many that ranks sum a part each.
TEST(maxima_and_sums_of_narrow_numbers) {
  for (const int64_t count : {3, 5000}) {
    check_all(3, [&](Communicator& comm) {
      const at::Tensor largest = at::full({count}, comm.rank() == 1 ? 7 : -1, at::kLong);
      comm.all_reduce(largest, ReduceOp::kMax, kLabel);
      CHECK(largest.eq(7).all().item<bool>());
      // In bfloat16 256 and 1 are 256 again.
      const at::Tensor sum = at::full({count}, comm.rank() == 0 ? 256 : 1, at::kBFloat16);
      comm.all_reduce(sum, ReduceOp::kSum, kLabel);
      CHECK(sum.eq(258).all().item<bool>());
      // Of what one rank has every bit stays.
      const at::Tensor own = at::full({count}, comm.rank() == 2 ? -0.0F : 0.0F);
      CHECK(at::signbit(combine_parts(comm, own, kLabel)).all().item<bool>());
    });
  }
}

TEST(splits_work_beside_the_whole_group) {
  check_all(4, [](Communicator& comm) {
    const int64_t rank = comm.rank();
    const auto pair = comm.split("pairs" + std::to_string(rank / 2), {rank / 2 * 2, rank / 2 * 2 + 1});
    const auto stride = comm.split("strides" + std::to_string(rank % 2), {rank % 2, rank % 2 + 2});
    const auto alone = comm.split("alone" + std::to_string(rank), {rank});
    CHECK(pair->rank() == rank % 2 && pair->size() == 2 && stride->rank() == rank / 2 && alone->size() == 1);
    const auto sum = [&](Communicator& group) {
      const at::Tensor value = at::full({1}, static_cast<double>(rank));
      group.all_reduce(value, ReduceOp::kSum, kLabel);
      return value.item<double>();
    };
    CHECK(sum(*pair) == static_cast<double>(rank / 2 * 4 + 1));
    CHECK(sum(comm) == 6);
    CHECK(sum(*stride) == static_cast<double>(rank % 2 * 2 + 2));
    CHECK(sum(*alone) == static_cast<double>(rank));
  });
}

TEST(a_split_names_the_ranks_of_the_whole_group) {
  std::promise<void> waited;
  const auto errors = on_ranks(
      3,
      [&](Communicator& comm) {
        if (comm.rank() == 0) return;
        const auto pair = comm.split("pair", {1, 2});
        pair->barrier(kLabel);
        if (comm.rank() == 1) {
          waited.get_future().wait();
          return;
        }
        try {
          pair->barrier({"backward", "layers.3"});
        } catch (...) {
          waited.set_value();
          throw;
        }
        waited.set_value();
      },
      3000);
  CHECK(errors[2].find("rank 2: barrier #2 of layers.3 (backward)") != std::string::npos);
  CHECK(errors[2].find("No sign of rank 1") != std::string::npos);
}

TEST(ranks_with_another_token_do_not_meet) {
  const auto rendezvous = Rendezvous::open();
  const auto join = [&](int64_t rank, const std::string& token) {
    make_communicator(
        {"gloo", rank, 2, "127.0.0.1", rendezvous->port(), token, std::chrono::milliseconds(700)});
  };
  std::thread stranger(
      [&] { CHECK_THROWS(join(1, "theirs"), "rank 1 of 2 could not join its group at 127.0.0.1:"); });
  CHECK_THROWS(join(0, "ours"), "rank 0 of 2 could not join its group at 127.0.0.1:");
  stranger.join();
}

TEST(bytes_sent_are_the_theoretical_volume) {
  check_all(3, [](Communicator& comm) {
    const at::Tensor full = at::zeros({3000});
    comm.all_gather(full, at::zeros({1000}), kLabel);
    comm.reduce_scatter(at::zeros({1000}), full, kLabel);
    CHECK(comm.log().bytes_sent() == 2 * 2 * 1000 * 4);
    comm.broadcast(full, 1, kLabel);
    CHECK(comm.log().bytes_sent() == 2 * 2 * 1000 * 4 + (comm.rank() == 1 ? 2 * 3000 * 4 : 0));
  });
}

TEST(a_time_out_names_the_collective_the_missing_rank_and_what_was_finished) {
  const auto errors = on_ranks(
      3,
      [](Communicator& comm) {
        comm.barrier({"start", "group"});
        if (comm.rank() == 2) {  // busy with something else
          std::this_thread::sleep_for(std::chrono::seconds(5));
          return;
        }
        comm.all_gather(at::zeros({3}), at::zeros({1}), {"backward", "layers.7"});
      },
      1000);
  for (const std::string& error : {errors[0], errors[1]}) {
    CHECK(error.find("all_gather #2 of layers.7 (backward)") != std::string::npos);
    CHECK(error.find("No sign of rank 2") != std::string::npos);
    CHECK(error.find("rank 0: barrier #1 of group (start)") != std::string::npos);
    CHECK(error.find("rank 1: barrier #1 of group (start)") != std::string::npos);
    CHECK(error.find("rank 2: unknown") != std::string::npos);
  }
  if (errors[0].find("did not complete within 1 s") == std::string::npos)
    CHECK(errors[1].find("did not complete within 1 s") != std::string::npos);
}

TEST(a_lost_peer_fails_the_others_at_once_and_for_good) {
  const auto start = std::chrono::steady_clock::now();
  const auto errors = on_ranks(3, [](Communicator& comm) {
    comm.barrier(kLabel);
    if (comm.rank() == 1) return;
    std::string first;
    try {
      comm.barrier({"save", "files"});
    } catch (const Error& error) {
      CHECK(error.code() == ErrorCode::kComm);
      first = error.what();
    }
    CHECK(first.find("barrier #2 of files (save)") != std::string::npos);
    CHECK_THROWS(comm.barrier(kLabel), first);
  });
  for (const std::string& error : errors) CHECK(error == "");
  CHECK(std::chrono::steady_clock::now() - start < std::chrono::seconds(15));
}

TEST(abort_from_another_thread_ends_a_collective) {
  const auto errors = on_ranks(2, [](Communicator& comm) {
    if (comm.rank() == 1) {
      std::this_thread::sleep_for(std::chrono::milliseconds(500));
      return;
    }
    std::thread other([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
      comm.abort("the trainer stops");
    });
    const auto start = std::chrono::steady_clock::now();
    try {
      comm.barrier(kLabel);
    } catch (const Error& error) {
      CHECK(error.code() == ErrorCode::kAborted);
      CHECK(std::string(error.what()).find("the trainer stops") != std::string::npos);
    }
    CHECK(std::chrono::steady_clock::now() - start < std::chrono::milliseconds(450));
    other.join();
    CHECK_THROWS(comm.barrier(kLabel), "the trainer stops");
  });
  for (const std::string& error : errors) CHECK(error == "");
}

TEST(a_gather_that_is_under_way_ends_before_the_collectives_behind_it) {
  check_all(3, [](Communicator& comm) {
    const at::Tensor own = values(comm.rank(), 5000);
    const at::Tensor first = at::empty({15000}), second = at::empty({15000}), between = own.clone();
    Pending one = comm.all_gather_async(first, own, kLabel);
    Pending two = comm.all_gather_async(second, own * 2, kLabel);
    comm.all_reduce(between, ReduceOp::kSum, kLabel);
    CHECK(comm.log().finished() == comm.log().begun());
    two.wait();
    one.wait();
    one.wait();
    CHECK(first.equal(at::cat({values(0, 5000), values(1, 5000), values(2, 5000)})));
    CHECK(second.equal(first * 2));
    CHECK_CLOSE((between - first.view({3, 5000}).sum(0)).abs().max().item<double>(), 0.0, 1e-5);
  });
}

TEST(a_reduction_that_is_under_way_gives_the_bits_of_one_that_was_waited_for) {
  check_all(3, [](Communicator& comm) {
    const at::Tensor input = values(comm.rank(), 15000), gathered = at::empty({45000});
    const at::Tensor one = at::empty({5000}), two = at::empty({5000}), expected = at::empty({5000});
    Pending first = comm.reduce_scatter_async(one, input, kLabel);
    Pending second = comm.reduce_scatter_async(two, input * 2, kLabel);
    comm.all_gather(gathered, input, kLabel);
    second.wait();
    first.wait();
    first.wait();
    comm.reduce_scatter(expected, input, kLabel);
    CHECK(one.equal(expected) && two.equal(expected * 2));
    CHECK(gathered.narrow(0, 15000 * comm.rank(), 15000).equal(input));
  });
}

TEST(a_gather_that_never_ends_is_named_whatever_was_waited_for) {
  const auto errors = on_ranks(
      2,
      [](Communicator& comm) {
        comm.barrier({"start", "group"});
        if (comm.rank() == 1) {
          std::this_thread::sleep_for(std::chrono::seconds(4));
          return;
        }
        const at::Tensor all = at::zeros({2}), own = at::zeros({1});
        Pending pending = comm.all_gather_async(all, own, {"forward", "layers.4"});
        comm.barrier({"optimizer", "gradient norm"});
      },
      1000);
  CHECK(errors[0].find("all_gather #2 of layers.4 (forward) did not complete within 1 s") !=
        std::string::npos);
  CHECK(errors[0].find("rank 0: barrier #1 of group (start)") != std::string::npos);
}

TEST(abort_ends_a_gather_that_is_under_way) {
  const auto errors = on_ranks(2, [](Communicator& comm) {
    if (comm.rank() == 1) {
      std::this_thread::sleep_for(std::chrono::milliseconds(500));
      return;
    }
    const at::Tensor all = at::zeros({2}), own = at::zeros({1});
    Pending pending = comm.all_gather_async(all, own, {"forward", "layers.4"});
    comm.abort("the trainer stops");
    CHECK_THROWS(pending.wait(), "[comm] aborted in all_gather #1 of layers.4 (forward): the trainer stops");
    CHECK_THROWS(comm.barrier(kLabel), "the trainer stops");
  });
  for (const std::string& error : errors) CHECK(error == "");
}

TEST(abort_ends_the_wait_for_a_message_and_nothing_that_has_come) {
  const auto errors = on_ranks(2, [](Communicator& comm) {
    const at::Tensor one = at::zeros({1});
    if (comm.rank() == 1) {
      comm.send(one, 0, kLabel);
      std::this_thread::sleep_for(std::chrono::milliseconds(2500));
      return;
    }
    comm.recv(one, 1, kLabel);
    std::thread other([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
      comm.abort("the trainer stops");
    });
    const auto start = std::chrono::steady_clock::now();
    CHECK_THROWS(comm.recv(one, 1, kLabel), "the trainer stops");
    CHECK(std::chrono::steady_clock::now() - start < std::chrono::milliseconds(1500));
    other.join();
  });
  for (const std::string& error : errors) CHECK(error == "");
  check_all(2, [](Communicator& comm) {
    const at::Tensor one = at::zeros({1});
    if (comm.rank() == 1) return comm.send(one, 0, kLabel);
    comm.recv(one, 1, kLabel);
    comm.abort("the trainer stops");
  });
}

// What it costs otherwise is in native/comm/gloo.cc.
TEST(threads_for_incoming_messages_do_not_preempt_others) {
  check_all(2, [&](Communicator& comm) {
    CHECK(sched_getscheduler(0) == SCHED_OTHER);
    std::vector<int> policies;
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    while (policies.size() < 2 && std::chrono::steady_clock::now() < end) {
      policies = policies_of_message_threads();
    }
    CHECK(policies.size() >= 2);
    for (const int policy : policies) CHECK(policy == SCHED_BATCH);
    comm.barrier(kLabel);
  });
}

TEST(a_log_of_collectives_says_nothing_of_those_that_it_has_forgotten) {
  CollectiveLog log;
  for (int64_t i = 1; i <= 9; ++i) log.begin("barrier", {"start", "part " + std::to_string(i)}, 0);
  CHECK(log.describe(0) == "none" && log.find(0) == nullptr);
  CHECK(log.describe(1) == "one before the last 8" && log.find(1) == nullptr);
  CHECK(log.describe(2) == "barrier #2 of part 2 (start)" && log.find(10) == nullptr);
}

TEST(bad_options_are_refused) {
  CHECK_THROWS(make_communicator({"gloo", 2, 2}), "rank 2 of 2");
  CHECK_THROWS(make_communicator({"mpi", 0, 2}), "expected backend gloo or nccl, got mpi");
  CHECK_THROWS(make_communicator({"nccl", 0, 2}), "no NCCL communicator");
}

TEST_MAIN()
