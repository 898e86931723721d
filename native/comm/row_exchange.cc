// One all-to-all each way.
#include "comm/row_exchange.h"

#include <ATen/ATen.h>

namespace troupe {

namespace {

// body(columns of a block [n, width] of all ranks, of one rank's): where they begin, and widths.
template <typename Body>
void for_each_block(const std::vector<int64_t>& blocks, int64_t ranks, Body&& body) {
  int64_t first = 0;
  for (const int64_t width : blocks) {
    body(first, width, first / ranks, width / ranks);
    first += width;
  }
}

}  // namespace

at::Tensor RowExchange::gather_rows(const at::Tensor& columns, const std::vector<int64_t>& blocks,
                                    const CollectiveLabel& label) const {
  const int64_t rows = columns.size(0), own = columns.size(1) / size();
  const at::Tensor sent = at::empty({size(), rows, own}, columns.options());
  for_each_block(blocks, size(), [&](int64_t first, int64_t width, int64_t own_first, int64_t own_width) {
    const at::Tensor by_rank = columns.narrow(1, first, width).reshape({rows, size(), own_width});
    sent.narrow(2, own_first, own_width).copy_(by_rank.transpose(0, 1));
  });
  at::Tensor received = at::empty({size() * rows, own}, columns.options());
  comm_->all_to_all(received, sent, label);
  return places_.defined() ? received.index_select(0, places_) : received;
}

at::Tensor RowExchange::gather_columns(const at::Tensor& rows, const std::vector<int64_t>& blocks,
                                       const CollectiveLabel& label) const {
  const int64_t count = rows.size(0) / size(), own = rows.size(1);
  at::Tensor sent = rows;
  if (places_.defined()) {
    sent = at::empty_like(rows);
    sent.index_copy_(0, places_, rows);
  }
  const at::Tensor received = at::empty({size(), count, own}, rows.options());
  comm_->all_to_all(received, sent.contiguous(), label);
  at::Tensor columns = at::empty({count, own * size()}, rows.options());
  for_each_block(blocks, size(), [&](int64_t first, int64_t width, int64_t own_first, int64_t own_width) {
    columns.narrow(1, first, width)
        .view({count, size(), own_width})
        .copy_(received.narrow(2, own_first, own_width).transpose(0, 1));
  });
  return columns;
}

}  // namespace troupe
