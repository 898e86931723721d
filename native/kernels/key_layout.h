// How the keys that each segment sees lie one behind the other.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "kernels/attention.h"

namespace troupe::ops {

// Of segments, for kernels that take the keys of a query as consecutive rows: the keys of a run of queries
// are those of its segment's prefix and the segment's own up to the run's end, so that a prefix lies once for
// every run that follows it. Legend: S runs of queries (without a share: segments), R real rows, N keys in
// all.
class KeyLayout {
 public:
  // All arrays go to the device in one copy, which the host does not await.
  KeyLayout(const Segments& segments, at::Device device);

  bool describes(const Segments& segments, at::Device device) const;

  at::Tensor query_offsets, key_offsets;  // [S + 1] int32
  int64_t longest_query = 0, longest_key = 0;
  // Only where there are prefixes or a share; elsewhere rows of the packed array serve as they are.
  at::Tensor index;          // [N] int32: the row of each key
  at::Tensor first, source;  // [R + 1], [N] int32: the keys that row r is are source[first[r]], ...

 private:
  std::vector<Segment> segments_;
  std::optional<std::vector<QueryRun>> share_;
};

}  // namespace troupe::ops
