#pragma once

#include <chrono>
#include <functional>
#include <latch>
#include <string>
#include <thread>
#include <vector>

#include "check.h"
#include "comm/communicator.h"
#include "comm/rendezvous.h"

namespace troupe::test {

// Runs body(communicator) on `size` ranks, one thread each; what each threw, "" for nothing.
inline std::vector<std::string> on_ranks(int64_t size, const std::function<void(Communicator&)>& body,
                                         int64_t timeout_ms = 20'000) {
  const auto rendezvous = Rendezvous::open();
  std::vector<std::string> errors(static_cast<size_t>(size));
  std::vector<std::thread> threads;
  // A rank whose body needs no other would be gone before the others are connected with it.
  std::latch connected(size);
  struct AtEnd {
    std::function<void()> what;
    ~AtEnd() { what(); }
  };
  for (int64_t rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        const auto comm = [&] {
          const AtEnd arrived{[&] { connected.count_down(); }};
          return make_communicator({"gloo", rank, size, "127.0.0.1", rendezvous->port(), "secret",
                                    std::chrono::milliseconds(timeout_ms)});
        }();
        const AtEnd stays{[&] { connected.wait(); }};
        body(*comm);
      } catch (const std::exception& error) {
        errors[static_cast<size_t>(rank)] = error.what();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  return errors;
}

inline void check_all(int64_t size, const std::function<void(Communicator&)>& body) {
  for (const std::string& error : on_ranks(size, body)) CHECK(error == "");
}

}  // namespace troupe::test
