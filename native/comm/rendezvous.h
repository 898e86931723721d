// Where the ranks of a group meet.
#pragma once

#include <cstdint>
#include <memory>

namespace troupe {

// The meeting point of a group: a key-value store that rank 0 serves on a free port of 127.0.0.1. Ranks on
// other hosts reach it through a connection that somebody else makes and guards. It must live as long as the
// group's communicators.
class Rendezvous {
 public:
  static std::unique_ptr<Rendezvous> open();  // kComm when no port can be had
  virtual ~Rendezvous() = default;
  virtual int64_t port() const = 0;
};

}  // namespace troupe
