// Ranks that share the rows of a micro-batch.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <string>

#include "comm/communicator.h"
#include "kernels/attention.h"

namespace troupe {

// Ulysses sequence parallelism (Jacobs et al. 2023, arXiv:2309.14509): S neighbouring ranks work on the same
// micro-batches. Each holds T / S consecutive rows of all that is computed row by row. Attention looks across
// rows: for it an all-to-all turns "my rows, all heads" into "all rows, my heads", and another one turns the
// result back. Each rank has as many query heads as any other; key heads are repeated where that needs it
// (KV copies), so that the heads of a rank are those of a smaller model.
//
// Legend: T rows, Q/K query/key heads, D head_dim; Q' = Q / S and K' = lcm(K, S) / S heads of one rank.
class SequenceGroup {
 public:
  // The ranks [k * size, (k + 1) * size) of `comm`, this one among them. Every rank of `comm` at the same
  // time. kInvalidArgument when the ranks do not divide into such groups or the query heads over their ranks.
  SequenceGroup(Communicator& comm, int64_t size, int64_t num_heads);

  int64_t size() const { return comm_->size(); }
  int64_t rank() const { return comm_->rank(); }

  // The attention of this rank's heads.
  ops::AttentionSpec own_heads(const ops::AttentionSpec& spec) const;
  // Rows of this rank, all heads -> all rows, heads of this rank, and back. q, k and v side by side:
  // [T/S, (Q+2K)*D] -> [T, (Q'+2K')*D]; the way back sums over the copies of a key head (in float32).
  at::Tensor gather_rows(const ops::AttentionSpec& spec, const at::Tensor& qkv,
                         const CollectiveLabel& label) const;
  at::Tensor gather_heads(const ops::AttentionSpec& spec, const at::Tensor& qkv,
                          const CollectiveLabel& label) const;
  // The same of query heads alone: [T/S, Q*D] -> [T, Q'*D] and back.
  at::Tensor gather_query_rows(const at::Tensor& heads, const CollectiveLabel& label) const;
  at::Tensor gather_query_heads(const at::Tensor& rows, const CollectiveLabel& label) const;

  Communicator& comm() const { return *comm_; }
  int64_t bytes_sent() const { return comm_->log().bytes_sent(); }
  void abort(const std::string& reason) { comm_->abort(reason); }

 private:
  at::Tensor exchange(const at::Tensor& input, const CollectiveLabel& label) const;

  std::unique_ptr<Communicator> comm_;  // its own: nothing else is ordered against the all-to-alls
};

}  // namespace troupe
