// Which experts the tokens of a batch went to: recorded in one pass, taken in another one.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "batch/packing.h"

namespace troupe {

class Communicator;

// What is kept of a token: the experts chosen for it in every layer that has some, the likeliest first, by
// layer. One byte each, or int16 where there are more experts than it counts.
struct RoutingShape {
  int64_t layers = 0;   // with experts
  int64_t experts = 0;  // of each
  int64_t top_k = 0;

  int64_t width() const { return layers * top_k; }
  at::ScalarType dtype() const;
  int64_t row_bytes() const;
};

// kInvalidArgument naming sequence and position where `batch` has choices that do not fit: [sum L *
// row_bytes()], of every position that is computed (all but the last of a sequence with a response) top_k
// different experts by layer.
void check_routed_experts(const TokenBatch& batch, const BatchLayout& layout, const RoutingShape& shape);

// The choices of a batch for the rows of a micro-batch [T, row_bytes] uint8; undefined where the batch has
// none. The tail goes where its first row goes.
at::Tensor routed_rows(const TokenBatch& batch, const PackedTokens& packed);

// The choices of a whole batch, of which this rank's passes find some: those of its layers for its rows.
class RoutingRecord {
 public:
  RoutingRecord(int64_t tokens, const RoutingShape& shape);

  // For a pass to fill: zeros [T, width].
  at::Tensor rows(const PackedTokens& packed, at::Device device) const;
  // What it has filled in.
  void keep(const PackedTokens& packed, const at::Tensor& rows);
  // The whole, where the ranks of `ranks` have found parts.
  void sum(Communicator& ranks);
  // [sum L * row_bytes] uint8; zeros where nothing was computed.
  at::Tensor choices() const;

 private:
  RoutingShape shape_;
  int64_t tokens_;
  at::Tensor bytes_;  // a multiple of four
};

}  // namespace troupe
