// Keys and values on their way to the ranks that share a sequence, and their gradients back.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "comm/communicator.h"

namespace troupe {

// Context parallelism: the ranks of a group work on the same micro-batches, and each has part of the rows of
// every sequence (batch/row_parts.h). What is computed row by row needs no other rank. Attention looks across
// rows: before it the keys and values of all rows are gathered, and each rank computes its own queries; in
// the backward pass they are gathered again, so that between the two a rank keeps its own alone, and the
// parts of their gradient are summed where the rows came from. An all-gather, and a reduce-scatter that is
// its backward pass; sums are float32, in the order of the ranks.
//
// Gathering beats passing blocks round a ring where there are few key heads for many query heads: keys and
// values are small beside what is computed with them, a row's softmax runs over its keys in one order, so
// that its bits are those of one process, and any packing of sequences is the same to it (Llama 3:
// Grattafiori et al. 2024, arXiv:2407.21783, section 3.3.2).
class ContextGroup {
 public:
  // comm outlives this.
  explicit ContextGroup(Communicator& comm) : comm_(&comm) {}

  int64_t size() const { return comm_->size(); }
  int64_t rank() const { return comm_->rank(); }
  Communicator& comm() const { return *comm_; }

  // This rank's rows [T / size, C] -> all of them [T, C] in the order of the micro-batch. places [T] int64:
  // where each of them lies in the rows of all ranks side by side.
  at::Tensor gather(const at::Tensor& own, const at::Tensor& places, const CollectiveLabel& label) const;
  // Parts of all rows [T, C] -> this rank's rows of their sum [T / size, C].
  at::Tensor sum(const at::Tensor& part, const at::Tensor& places, const CollectiveLabel& label) const;

 private:
  Communicator* comm_;
};

}  // namespace troupe
