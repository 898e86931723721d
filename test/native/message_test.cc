#include <ATen/ATen.h>

#include "base/error.h"
#include "comm/fake.h"
#include "ranks.h"

// Messages between two ranks of a group.

using namespace troupe;
using namespace troupe::test;

namespace {

at::Tensor values(int64_t count) {
  return at::arange(count, at::kFloat).mul(0.37).sin().add(7.7);
}

const CollectiveLabel kLabel{"forward", "layers.0"};

}  // namespace

TEST(messages_of_every_dtype_go_back_and_forth) {
  for (const int64_t size : {2, 3}) {
    check_all(size, [&](Communicator& comm) {
      const int64_t rank = comm.rank();
      for (const int64_t count : {0, 1, 5, 300'000}) {
        for (const at::ScalarType type : {at::kFloat, at::kBFloat16, at::kDouble, at::kLong, at::kBool}) {
          const at::Tensor ball = values(count).to(type);
          if (rank == 0) {
            comm.send(ball, size - 1, kLabel);
            const at::Tensor back = at::empty_like(ball);
            comm.recv(back, size - 1, kLabel);
            CHECK(back.equal(ball.to(at::kFloat).add(1).to(type)));
          } else if (rank == size - 1) {
            const at::Tensor taken = at::empty_like(ball);
            comm.recv(taken, 0, kLabel);
            CHECK(taken.equal(ball));
            comm.send(taken.to(at::kFloat).add(1).to(type), 0, kLabel);
          }
        }
      }
      comm.barrier(kLabel);
    });
  }
}

TEST(messages_go_around_a_ring_and_stay_in_their_order) {
  for (const int64_t size : {2, 3, 4}) {
    check_all(size, [&](Communicator& comm) {
      const int64_t rank = comm.rank(), next = (rank + 1) % size, previous = (rank + size - 1) % size;
      for (int64_t round = 0; round < 3; ++round) {
        const at::Tensor first = at::full({3}, static_cast<double>(10 * round)), second = first + 1;
        if (rank == 0) {
          comm.send(first, next, kLabel);
          comm.send(second, next, kLabel);
        }
        const at::Tensor one = at::empty({3}), two = at::empty({3});
        comm.recv(one, previous, kLabel);
        comm.recv(two, previous, kLabel);
        const double steps = static_cast<double>(rank == 0 ? size - 1 : rank - 1);
        CHECK(one.equal(first + steps) && two.equal(second + steps));
        if (rank != 0) {
          comm.send(one + 1, next, kLabel);
          comm.send(two + 1, next, kLabel);
        }
        comm.barrier(kLabel);  // and collectives between them
      }
      CHECK(comm.log().collectives() == 3 && comm.log().begun() == 15);
    });
  }
}

TEST(messages_within_parts_of_a_group) {
  check_all(4, [](Communicator& comm) {
    const int64_t rank = comm.rank();
    const auto stride = comm.split("strides" + std::to_string(rank % 2), {rank % 2, rank % 2 + 2});
    const at::Tensor value = at::full({2}, static_cast<double>(rank));
    if (rank < 2) {
      stride->send(value, 1, kLabel);
      comm.recv(value, 3 - rank, kLabel);
      CHECK(value[0].item<int64_t>() == 3 - rank);
    } else {
      const at::Tensor taken = at::empty({2});
      stride->recv(taken, 0, kLabel);
      CHECK(taken[1].item<int64_t>() == rank - 2);
      comm.send(value, 3 - rank, kLabel);
    }
    // What ranks have sent to each other does not count as what all of them have done.
    CHECK(comm.log().collectives() == 0 && stride->log().collectives() == 0);
  });
}

TEST(a_message_that_does_not_fit_is_dropped_and_named) {
  for (const int64_t size : {2, 3}) {
    const auto errors = on_ranks(size, [&](Communicator& comm) {
      const at::Tensor good = values(6);
      if (comm.rank() == 0) {
        for (const int64_t count : {5, 7, 0, 100'000}) comm.send(values(count), 1, {"forward", "layer 2"});
        comm.send(good.to(at::kInt), 1, {"forward", "layer 2"});
        comm.send(good, 1, kLabel);
      } else if (comm.rank() == 1) {
        const at::Tensor frame = at::full({8}, -1.0), middle = frame.narrow(0, 1, 6);
        int64_t number = 0;
        for (const std::string got : {"5 elements of Float", "7 elements of Float", "0 elements of Float",
                                      "100000 elements of Float", "6 elements of Int"}) {
          try {
            comm.recv(middle, 0, {"forward", "layer 2"});
            CHECK(false);
          } catch (const Error& error) {
            CHECK(error.code() == ErrorCode::kInternal);
            const std::string expected = "[comm] rank 1: recv #" + std::to_string(++number) +
                                         " from rank 0 of layer 2 (forward) expected 6 elements of Float, "
                                         "got " +
                                         got;
            CHECK(error.what() == expected);
          }
          CHECK(frame.eq(-1).all().item<bool>());
        }
        comm.recv(middle, 0, kLabel);
        CHECK(middle.equal(good) && frame[0].item<double>() == -1 && frame[7].item<double>() == -1);
      }
      comm.barrier(kLabel);
    });
    for (const std::string& error : errors) CHECK(error == "");
  }
}

TEST(messages_to_nobody_are_refused) {
  check_all(2, [](Communicator& comm) {
    const at::Tensor value = at::zeros({4, 4});
    for (const int64_t peer : {comm.rank(), int64_t{2}, int64_t{-1}}) {
      const std::string text = "expected another rank than " + std::to_string(comm.rank()) +
                               " among the 2 of the group, got " + std::to_string(peer);
      CHECK_THROWS(comm.send(value, peer, kLabel), "[comm] send of layers.0 " + text);
      CHECK_THROWS(comm.recv(value, peer, kLabel), "[comm] recv of layers.0 " + text);
    }
    CHECK_THROWS(comm.send(value.t().narrow(0, 0, 2), 1 - comm.rank(), kLabel), "a contiguous tensor");
    CHECK_THROWS(comm.recv(value.narrow(1, 0, 2), 1 - comm.rank(), kLabel), "a contiguous tensor");
    CHECK(comm.log().begun() == 0);
    comm.barrier(kLabel);
  });
  const auto alone = make_local_communicator();
  CHECK_THROWS(alone->send(at::zeros({1}), 0, kLabel), "a group of one has nobody to talk to");
  CHECK_THROWS(alone->recv(at::zeros({1}), 1, kLabel), "a group of one has nobody to talk to");
}

TEST(a_message_that_nobody_takes_names_the_peer) {
  const auto errors = on_ranks(
      3,
      [](Communicator& comm) {
        const auto backwards = comm.split("backwards", {2, 1, 0});
        backwards->barrier({"start", "group"});
        if (comm.rank() == 1) backwards->send(at::ones({9}), 0, {"forward", "layers.7"});
        if (comm.rank() == 0) backwards->recv(at::ones({9}), 0, {"backward", "layers.8"});
        std::this_thread::sleep_for(std::chrono::seconds(4));
      },
      1000);
  CHECK(errors[1].find("[comm] rank 1: send #1 to rank 2 of layers.7 (forward) ") == 0);
  CHECK(errors[0].find("[comm] rank 0: recv #1 from rank 2 of layers.8 (backward) ") == 0);
  CHECK(errors[2] == "");
  for (const int64_t rank : {0, 1}) {
    const std::string& error = errors[static_cast<size_t>(rank)];
    CHECK(error.find("No sign of rank 2: dead") != std::string::npos);
    CHECK(error.find("rank 1: barrier #1 of group (start)") != std::string::npos);
    CHECK(error.find("rank 2: unknown") != std::string::npos);
  }
  if (errors[0].find("did not complete within 1 s") == std::string::npos)
    CHECK(errors[1].find("did not complete within 1 s") != std::string::npos);
}

TEST(a_lost_peer_ends_a_message_at_once) {
  const auto start = std::chrono::steady_clock::now();
  const auto errors = on_ranks(2, [](Communicator& comm) {
    comm.barrier(kLabel);
    if (comm.rank() == 1) return;
    CHECK_THROWS(comm.send(at::ones({100'000}), 1, kLabel), "failed because a peer is gone");
    CHECK_THROWS(comm.recv(at::ones({1}), 1, kLabel), "send #1 to rank 1 of layers.0 (forward)");
  });
  for (const std::string& error : errors) CHECK(error == "");
  CHECK(std::chrono::steady_clock::now() - start < std::chrono::seconds(15));
}

TEST(abort_ends_a_message) {
  for (const bool sends : {true, false}) {
    const auto errors = on_ranks(2, [&](Communicator& comm) {
      comm.barrier(kLabel);
      if (comm.rank() == 1) {
        std::this_thread::sleep_for(std::chrono::milliseconds(1500));
        return;
      }
      std::thread other([&] {
        std::this_thread::sleep_for(std::chrono::milliseconds(100));
        comm.abort("the trainer stops");
      });
      const auto start = std::chrono::steady_clock::now();
      const at::Tensor tensor = at::ones({7});
      const std::string text =
          sends ? "[comm] aborted in send #1 to rank 1 of layers.0 (forward): the trainer stops"
                : "[comm] aborted in recv #1 from rank 1 of layers.0 (forward): the trainer stops";
      CHECK_THROWS(sends ? comm.send(tensor, 1, kLabel) : comm.recv(tensor, 1, kLabel), text);
      CHECK(std::chrono::steady_clock::now() - start < std::chrono::milliseconds(1200));
      other.join();
      CHECK_THROWS(comm.send(tensor, 1, kLabel), "the trainer stops");
    });
    for (const std::string& error : errors) CHECK(error == "");
  }
}

TEST(bytes_of_messages_are_counted_by_the_sender) {
  check_all(3, [](Communicator& comm) {
    const at::Tensor tensor = at::zeros({3000});
    if (comm.rank() == 0) comm.send(tensor, 2, kLabel);
    if (comm.rank() == 2) comm.recv(tensor, 0, kLabel);
    CHECK(comm.log().bytes_sent() == (comm.rank() == 0 ? 3000 * 4 + Communicator::kMessageHeader : 0));
  });
}

TEST(a_group_that_is_not_there_counts_messages) {
  const auto calls = std::make_shared<FakeCommunicator::Calls>();
  FakeCommunicator comm(3, 1024, calls);
  const at::Tensor activations = at::empty({512, 64}, at::TensorOptions(at::kBFloat16).device(at::kMeta));
  comm.recv(activations, 2, {"forward", "layers.7"});
  comm.send(activations, 4, {"forward", "layers.8"});
  CHECK(calls->size() == 2);
  CHECK(std::string(calls->front().name) == "recv" && calls->front().peer == 2 && calls->front().bytes == 0);
  CHECK(calls->back().peer == 4 && calls->back().bytes == 512 * 64 * 2 + Communicator::kMessageHeader);
  CHECK(comm.log().bytes_sent() == calls->back().bytes);
}

TEST_MAIN()
