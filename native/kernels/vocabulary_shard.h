// The rows of a head's weight that one rank of several holds.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "comm/communicator.h"

namespace troupe::ops {

// What is checked of the inputs of a call before anything is computed. kOwnShapes: what a rank sees of its
// own without waiting for a device; a mistake of one rank leaves the others in a collective until their
// time-out. kAllRanks, for debugging: the targets' values too, and between ranks by one more collective, so
// that all of them refuse alike.
enum class InputChecks { kOwnShapes, kAllRanks };

// The rows of the head's weight W [V, H] that a rank of a tensor-parallel group holds: rank r those of
// [offsets[r], offsets[r + 1]), which may be none. What linear_log_prob needs of the other ranks goes
// through here: which inputs they have, what they know of each row, and their part of the gradient by the
// hidden states (as Megatron's vocab-parallel cross-entropy and column-parallel output layer do;
// Shoeybi et al. 2019, arXiv:1909.08053). The communicator outlives the shard; every rank calls the same at
// the same time.
class VocabularyShard {
 public:
  // offsets [size + 1], the same on all ranks, from 0 to V. kInvalidArgument for others.
  VocabularyShard(Communicator& comm, std::vector<int64_t> offsets,
                  InputChecks checks = InputChecks::kOwnShapes);
  // Where a rank knows only its own rows [begin, end) of `vocab`. Ranges that overlap, leave gaps, are not in
  // the order of the ranks or belong to vocabularies of several sizes are kInvalidArgument on all ranks
  // alike.
  static VocabularyShard agree(Communicator& comm, int64_t vocab, int64_t begin, int64_t end);

  int64_t size() const { return comm_->size(); }
  int64_t vocab() const { return offsets_.back(); }
  int64_t begin() const { return offsets_[static_cast<size_t>(comm_->rank())]; }
  int64_t rows() const { return rows_of(comm_->rank()); }
  int64_t most_rows() const;  // of any rank: what has to be cut alike everywhere is cut by it

  // hidden [N, H], this rank's rows of the weight, targets [N] int32 of the whole vocabulary. kInternal for
  // shapes and dtypes that do not fit a rank's shard or, with kAllRanks, differ between ranks; with kAllRanks
  // kInvalidArgument for a target outside of [0, V).
  void check(const at::Tensor& hidden, const at::Tensor& weight, const at::Tensor& targets,
             const char* phase) const;
  // What each rank knows of its logits (kernels::RowSums in float64, or another number of columns) [n, k] ->
  // [size, n, k].
  at::Tensor gather(const at::Tensor& own, const char* phase, const char* what = "head sums") const;
  // In place: the sum of the ranks' parts of the gradient by the hidden states, float32 or float64.
  void sum(const at::Tensor& d_hidden) const;

 private:
  int64_t rows_of(int64_t rank) const {
    return offsets_[static_cast<size_t>(rank + 1)] - offsets_[static_cast<size_t>(rank)];
  }

  struct Inputs;
  void check_rank(const Inputs& in, const Inputs& first, int64_t rank) const;

  Communicator* comm_;
  std::vector<int64_t> offsets_;
  InputChecks checks_;
};

}  // namespace troupe::ops
