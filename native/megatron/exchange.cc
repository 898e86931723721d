// Collectives over rows.
#include "megatron/exchange.h"

#include <ATen/ATen.h>

namespace troupe {

at::Tensor Exchange::own(const at::Tensor& all) const {
  if (!scattered_) return all;
  const int64_t rows = all.size(0) / size();
  return all.narrow(0, rank() * rows, rows);
}

at::Tensor Exchange::gather(const at::Tensor& own, const CollectiveLabel& label) const {
  if (!scattered_) return own;
  at::Tensor all = at::empty({own.size(0) * size(), own.size(1)}, own.options());
  comm_->all_gather(all, own.contiguous(), label);
  return all;
}

at::Tensor Exchange::sum(const at::Tensor& part, const CollectiveLabel& label) const {
  if (!scattered_) {
    comm_->all_reduce(part, ReduceOp::kSum, label);
    return part;
  }
  at::Tensor own = at::empty({part.size(0) / size(), part.size(1)}, part.options());
  comm_->reduce_scatter(own, part, label);
  return own;
}

at::Tensor Exchange::gather_columns(const at::Tensor& own, const CollectiveLabel& label) const {
  const at::Tensor all = at::empty({size(), own.size(0), own.size(1)}, own.options());
  comm_->all_gather(all, own.contiguous(), label);
  return all.transpose(0, 1).reshape({own.size(0), size() * own.size(1)});
}

}  // namespace troupe
