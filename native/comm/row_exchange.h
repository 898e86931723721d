// Rows of all heads for heads of all rows, between ranks that share rows.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <utility>
#include <vector>

#include "comm/communicator.h"

namespace troupe {

// S ranks have T / S rows each, with all columns; what looks across rows, head by head, takes all rows of
// some of the columns (Jacobs et al. 2023, arXiv:2309.14509). Columns fall into blocks, of each of which a
// rank has as many as any other, those of the ranks in order: "blocks" are their widths over all ranks.
class RowExchange {
 public:
  // comm outlives this. places [T] int64: where each row lies in the rows of all ranks side by side;
  // undefined: there.
  explicit RowExchange(Communicator& comm, at::Tensor places = {})
      : comm_(&comm), places_(std::move(places)) {}

  int64_t size() const { return comm_->size(); }
  int64_t rank() const { return comm_->rank(); }

  // [T/S, sum of blocks] -> [T, sum of blocks / S]
  at::Tensor gather_rows(const at::Tensor& columns, const std::vector<int64_t>& blocks,
                         const CollectiveLabel& label) const;
  // And back.
  at::Tensor gather_columns(const at::Tensor& rows, const std::vector<int64_t>& blocks,
                            const CollectiveLabel& label) const;

 private:
  Communicator* comm_;
  at::Tensor places_;
};

}  // namespace troupe
