// Collectives over rows of which ranks have different numbers: all of them send as many as the one with most.
#include "megatron/expert_rows.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <numeric>

namespace troupe {

ExpertRows ExpertRows::of(Communicator& ep, int64_t own, const CollectiveLabel& label) {
  ExpertRows rows(ep);
  const at::Tensor all = at::empty({ep.size()}, at::kLong);
  ep.all_gather(all, at::full({1}, own, at::kLong), label);
  rows.counts_.assign(all.const_data_ptr<int64_t>(), all.const_data_ptr<int64_t>() + ep.size());
  return rows;
}

int64_t ExpertRows::total() const {
  return std::accumulate(counts_.begin(), counts_.end(), int64_t{0});
}

int64_t ExpertRows::first() const {
  return counts_.empty() ? 0 : std::accumulate(counts_.begin(), counts_.begin() + ep_->rank(), int64_t{0});
}

int64_t ExpertRows::most() const {
  return *std::max_element(counts_.begin(), counts_.end());
}

at::Tensor ExpertRows::gather(const at::Tensor& own, const CollectiveLabel& label) const {
  if (counts_.empty()) return own;
  const int64_t most = this->most();
  at::Tensor sent = own.contiguous();
  if (own.size(0) < most) {
    sent = at::zeros({most, own.size(1)}, own.options());
    sent.narrow(0, 0, own.size(0)).copy_(own);
  }
  at::Tensor all = at::empty({most * ep_->size(), own.size(1)}, own.options());
  ep_->all_gather(all, sent, label);
  if (even()) return all;
  std::vector<at::Tensor> parts;
  for (size_t rank = 0; rank < counts_.size(); ++rank)
    parts.push_back(all.narrow(0, static_cast<int64_t>(rank) * most, counts_[rank]));
  return at::cat(parts);
}

void ExpertRows::sum(const at::Tensor& part, const at::Tensor& out, const CollectiveLabel& label) const {
  if (counts_.empty()) {
    const at::Tensor whole = part.contiguous();
    ep_->all_reduce(whole, ReduceOp::kSum, label);
    out.copy_(whole);
    return;
  }
  const int64_t most = this->most();
  at::Tensor sent = part.contiguous();
  if (!even()) {
    sent = at::zeros({most * ep_->size(), part.size(1)}, part.options());
    int64_t begin = 0;
    for (size_t rank = 0; rank < counts_.size(); ++rank) {
      sent.narrow(0, static_cast<int64_t>(rank) * most, counts_[rank])
          .copy_(part.narrow(0, begin, counts_[rank]));
      begin += counts_[rank];
    }
  }
  const at::Tensor own = at::empty({most, part.size(1)}, part.options());
  ep_->reduce_scatter(own, sent, label);
  out.copy_(own.narrow(0, 0, out.size(0)));
}

}  // namespace troupe
