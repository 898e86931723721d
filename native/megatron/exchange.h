// What happens to rows on their way into and out of matrices that ranks share.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "comm/communicator.h"

namespace troupe {

// A pair of matrices is shared by the ranks of a tensor-parallel group: of the first each has some outputs,
// of the second the inputs that belong to them (Shoeybi et al. 2019, arXiv:1909.08053, section 3). The first
// takes all T rows on every rank; the second yields a part of all T rows, and the sum of the parts is the
// result.
//
// Without sequence parallelism every rank has all rows between such pairs: gather() does nothing and sum() is
// an all-reduce. With it (Korthikanti et al. 2022, arXiv:2205.05198, section 4.2.2) a rank has T / size
// consecutive rows there: gather() is an all-gather and sum() a reduce-scatter. Either is the other's
// backward pass. Sums are float32, in the order of the ranks, rounded once to the dtype of what is summed:
// the same bits with and without sequence parallelism.
class Exchange {
 public:
  // comm outlives this.
  Exchange(Communicator& comm, bool sequence_parallel) : comm_(&comm), scattered_(sequence_parallel) {}

  int64_t size() const { return comm_->size(); }
  int64_t rank() const { return comm_->rank(); }
  // The same ranks, all rows on each.
  Exchange of_whole_rows() const { return {*comm_, false}; }
  // Whether a rank has a part of the rows between pairs.
  bool scattered() const { return scattered_; }
  int64_t own_rows(int64_t all) const { return scattered_ ? all / size() : all; }
  // The first of the rows that this rank has of them.
  int64_t first_row(int64_t all) const { return scattered_ ? rank() * own_rows(all) : 0; }
  // Of all rows, those that this rank has between pairs. T must be a multiple of size() where they are
  // scattered.
  at::Tensor own(const at::Tensor& all) const;

  // This rank's rows of all [T', H] -> all rows [T, H]; the same tensor where they are all here.
  at::Tensor gather(const at::Tensor& own, const CollectiveLabel& label) const;
  // Parts of all rows [T, H] -> this rank's rows of their sum [T', H]. `part` may be overwritten.
  at::Tensor sum(const at::Tensor& part, const CollectiveLabel& label) const;
  // Columns of this rank [n, c], the same number on all ranks -> those of all, side by side [n, size * c].
  at::Tensor gather_columns(const at::Tensor& own, const CollectiveLabel& label) const;

 private:
  Communicator* comm_;
  bool scattered_;
};

}  // namespace troupe
