// Bounds what name servers cost connections to addresses that are known.
#pragma once

#include <resolv.h>

namespace troupe {

// While it exists, this thread asks a name server once and waits at most 1 s for the answer. c10d asks for
// the name behind every socket's address, for its messages, and the address that it has for 127.0.0.1
// (::ffff:127.0.0.1) is in no hosts file: where a name server is out of reach, or answers are lost, each
// connection of a group would otherwise be held up for 5 s per try.
class BriefNameQueries {
 public:
  BriefNameQueries() {
    if ((_res.options & RES_INIT) == 0) res_init();
    seconds_ = _res.retrans;
    tries_ = _res.retry;
    _res.retrans = 1;
    _res.retry = 1;
  }
  ~BriefNameQueries() {
    _res.retrans = seconds_;
    _res.retry = tries_;
  }
  BriefNameQueries(const BriefNameQueries&) = delete;
  BriefNameQueries& operator=(const BriefNameQueries&) = delete;

 private:
  int seconds_, tries_;
};

}  // namespace troupe
