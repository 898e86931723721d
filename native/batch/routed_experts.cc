// Choices of experts between the tokens of a batch and the rows of its micro-batches.
#include "batch/routed_experts.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "base/parallel.h"
#include "comm/communicator.h"

namespace troupe {

namespace {

constexpr int64_t kByteExperts = 256;

template <typename Choice>
void check_choices(const Choice* choices, const BatchLayout& layout, const RoutingShape& shape) {
  for (int64_t i = 0; i < layout.size(); ++i) {
    if (layout.response_length(i) == 0) continue;  // nothing is computed
    for (int64_t t = 0; t + 1 < layout.lengths[i]; ++t) {
      const Choice* row = choices + (layout.seq_offsets[i] + t) * shape.width();
      for (int64_t c = 0; c < shape.width(); ++c) {
        const int64_t expert = row[c], first = c / shape.top_k * shape.top_k;
        const bool fits =
            expert >= 0 && expert < shape.experts && std::find(row + first, row + c, row[c]) == row + c;
        require(fits, ErrorCode::kInvalidArgument, "[batch] routed experts of sequence ", i, ", position ", t,
                ", layer ", c / shape.top_k, " of ", shape.layers, " with experts: expected ", shape.top_k,
                " different experts below ", shape.experts, ", got ", expert, " as number ", c - first + 1);
      }
    }
  }
}

}  // namespace

at::ScalarType RoutingShape::dtype() const {
  return experts > kByteExperts ? at::kShort : at::kByte;
}

int64_t RoutingShape::row_bytes() const {
  return width() * static_cast<int64_t>(c10::elementSize(dtype()));
}

void check_routed_experts(const TokenBatch& batch, const BatchLayout& layout, const RoutingShape& shape) {
  const at::Tensor& choices = batch.routed_experts;
  if (!choices.defined()) return;
  require(shape.layers > 0, ErrorCode::kInvalidArgument,
          "[batch] expected no routed experts for a model without experts");
  require(choices.numel() == batch.tokens.numel() * shape.row_bytes(), ErrorCode::kInvalidArgument,
          "[batch] expected routed experts of ", batch.tokens.numel(), " tokens x ", shape.layers,
          " layers with experts x ", shape.top_k, " x ", c10::elementSize(shape.dtype()), " bytes, got ",
          choices.numel(), " bytes");
  if (shape.dtype() == at::kByte) {
    check_choices(choices.const_data_ptr<uint8_t>(), layout, shape);
  } else {
    check_choices(static_cast<const int16_t*>(choices.const_data_ptr()), layout, shape);
  }
}

at::Tensor routed_rows(const TokenBatch& batch, const PackedTokens& packed) {
  const at::Tensor& choices = batch.routed_experts;
  if (!choices.defined()) return {};
  const int64_t width = choices.numel() / batch.tokens.numel(), rows = packed.tokens.size(0);
  const at::Tensor by_row = at::empty({rows, width}, choices.options());
  const auto bytes = static_cast<size_t>(width);
  const auto* source = static_cast<const char*>(choices.const_data_ptr());
  auto* target = static_cast<char*>(by_row.mutable_data_ptr());
  const auto copy = [&](int64_t to, const char* from, int64_t count) {
    std::memcpy(target + static_cast<size_t>(to) * bytes, from, static_cast<size_t>(count) * bytes);
  };
  for (const RowSource& part : packed.sources)
    copy(part.row, source + static_cast<size_t>(part.token) * bytes, part.count);
  // Experts that are not the same twice, as those of every row.
  for (int64_t row = packed.real_rows; row < rows; ++row) copy(row, target, 1);
  return by_row;
}

RoutingRecord::RoutingRecord(int64_t tokens, const RoutingShape& shape)
    : shape_(shape),
      tokens_(tokens),
      bytes_(at::zeros({round_up(tokens * shape.row_bytes(), static_cast<int64_t>(sizeof(int32_t)))},
                       at::kByte)) {}

at::Tensor RoutingRecord::rows(const PackedTokens& packed, at::Device device) const {
  return at::zeros({packed.tokens.size(0), shape_.width()},
                   at::TensorOptions().dtype(shape_.dtype()).device(device));
}

void RoutingRecord::keep(const PackedTokens& packed, const at::Tensor& rows) {
  at::Tensor all = rows.cpu();
  if (packed.rows.defined()) {
    all = at::zeros({packed.whole_rows, shape_.width()}, all.options());
    all.index_copy_(0, packed.rows, rows.cpu());
  }
  const auto bytes = static_cast<size_t>(shape_.row_bytes());
  const auto* source = static_cast<const char*>(all.const_data_ptr());
  auto* target = static_cast<char*>(bytes_.mutable_data_ptr());
  // A pass has no other layers than its own: what other ones have kept stays.
  for (const RowSource& part : packed.sources) {
    char* to = target + static_cast<size_t>(part.token) * bytes;
    const char* from = source + static_cast<size_t>(part.row) * bytes;
    for (size_t i = 0; i < static_cast<size_t>(part.count) * bytes; ++i) to[i] |= from[i];
  }
}

void RoutingRecord::sum(Communicator& ranks) {
  if (ranks.size() > 1 && bytes_.numel() > 0)
    ranks.all_reduce(bytes_.view(at::kInt), ReduceOp::kSum, {"forward", "routed experts"});
}

at::Tensor RoutingRecord::choices() const {
  return bytes_.narrow(0, 0, tokens_ * shape_.row_bytes());
}

}  // namespace troupe
