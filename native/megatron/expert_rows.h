// Rows on their way to experts that several ranks share, and back.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "comm/communicator.h"

namespace troupe {

// Of a mixture of experts each rank of an expert-parallel group holds some. The rows of all ranks are
// gathered, each rank computes what its own experts add to every row, and the parts are summed where the rows
// came from: an all-gather and a reduce-scatter, each the other's backward pass. A row is sent to N - 1
// ranks; an all-to-all sends it to those of its k experts, min(k, N - 1) of them at most, and takes less
// where k is small beside N. Sums are float32, in the order of the ranks.
//
// In a generation all ranks have the same rows: nothing is gathered, and the parts are summed everywhere.
class ExpertRows {
 public:
  // Every rank has all experts.
  ExpertRows() = default;
  // All ranks have the same rows. ep outlives this.
  explicit ExpertRows(Communicator& ep) : ep_(&ep) {}
  // This rank has `own` rows, perhaps none, and the others may have another number. All ranks at the same
  // time.
  static ExpertRows of(Communicator& ep, int64_t own, const CollectiveLabel& label);

  bool shared() const { return ep_ != nullptr; }
  // Whether there is anything to compute, on whichever rank.
  bool any() const { return counts_.empty() || total() > 0; }
  // Where this rank's rows begin among those of all.
  int64_t first() const;

  // This rank's rows [n, c] -> those of all ranks, in their order.
  at::Tensor gather(const at::Tensor& own, const CollectiveLabel& label) const;
  // Parts of all ranks' rows -> the sum for this rank's rows, into `out` [n, c].
  void sum(const at::Tensor& part, const at::Tensor& out, const CollectiveLabel& label) const;

 private:
  int64_t total() const;
  int64_t most() const;
  bool even() const { return total() == most() * static_cast<int64_t>(counts_.size()); }

  Communicator* ep_ = nullptr;
  std::vector<int64_t> counts_;  // rows by rank; empty: the same rows everywhere
};

}  // namespace troupe
