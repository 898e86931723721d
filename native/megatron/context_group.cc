// Collectives over the rows of keys and values.
#include "megatron/context_group.h"

#include <ATen/ATen.h>

namespace troupe {

at::Tensor ContextGroup::gather(const at::Tensor& own, const at::Tensor& places,
                                const CollectiveLabel& label) const {
  const at::Tensor by_rank = at::empty({own.size(0) * size(), own.size(1)}, own.options());
  comm_->all_gather(by_rank, own.contiguous(), label);
  return by_rank.index_select(0, places);
}

at::Tensor ContextGroup::sum(const at::Tensor& part, const at::Tensor& places,
                             const CollectiveLabel& label) const {
  const at::Tensor by_rank = at::empty(part.sizes(), part.options());
  by_rank.index_copy_(0, places, part);
  at::Tensor own = at::empty({part.size(0) / size(), part.size(1)}, part.options());
  comm_->reduce_scatter(own, by_rank, label);
  return own;
}

}  // namespace troupe
