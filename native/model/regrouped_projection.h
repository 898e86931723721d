// A projection whose matrix has its outputs in another order than what takes them.
#pragma once

#include "model/qkv_projection.h"

namespace troupe {

// Of the outputs of the matrix: `count` columns from `from` on, each `stride` behind the one before, and
// again every `step` columns, `times` times. They go to `to`, and again every `to_step` columns; by default
// side by side to where the moves before have ended.
struct ColumnMove {
  int64_t from = 0, times = 1, step = 0, count = 0, stride = 1;
  int64_t to = -1, to_step = 0;
  int64_t size() const { return times * count; }
};

// One matrix, whose outputs are moved: by head of a checkpoint a query and its gate, or all that a key head
// of the gated delta rule has, or numbers that turn together side by side. The moves take every output once.
class RegroupedProjection final : public QkvProjection {
 public:
  // Weight and bias under `name`.
  RegroupedProjection(const ParameterStore& store, const std::string& name, std::vector<ColumnMove> moves);

  void enable_adapters(bool enabled) override { matrix_.adapters_enabled = enabled; }
  void forward(const at::Tensor& x, const at::Tensor& qkv, const Packed& packed,
               const QkvSaved& saved) const override;
  std::unique_ptr<Backward> backward(const QkvSaved& saved, int64_t rows, int64_t row_tile) const override;

 protected:
  std::vector<const Linear*> matrices() const override { return {&matrix_}; }

 private:
  class Pass;

  // body(columns of the matrix's outputs, columns of what it gives), both [n, times, count].
  template <typename Body>
  void for_each_move(const at::Tensor& outputs, const at::Tensor& given, Body&& body) const;

  Linear matrix_;
  std::vector<ColumnMove> moves_;
};

}  // namespace troupe
