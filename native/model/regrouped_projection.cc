// A matrix and the moves behind it, with the backward pass.
#include "model/regrouped_projection.h"

#include <ATen/ATen.h>

#include <utility>

namespace troupe {

RegroupedProjection::RegroupedProjection(const ParameterStore& store, const std::string& name,
                                         std::vector<ColumnMove> moves)
    : matrix_(store, name), moves_(std::move(moves)) {
  int64_t end = 0;
  for (ColumnMove& move : moves_) {
    if (move.to < 0) {
      move.to = end;
      move.to_step = move.count;
    }
    end += move.size();
  }
}

template <typename Body>
void RegroupedProjection::for_each_move(const at::Tensor& outputs, const at::Tensor& given,
                                        Body&& body) const {
  const auto pieces = [](const at::Tensor& t, const ColumnMove& move, int64_t first, int64_t step,
                         int64_t stride) {
    return t.as_strided({t.size(0), move.times, move.count}, {t.stride(0), step, stride},
                        t.storage_offset() + first);
  };
  for (const ColumnMove& move : moves_)
    body(pieces(outputs, move, move.from, move.step, move.stride),
         pieces(given, move, move.to, move.to_step, 1));
}

void RegroupedProjection::forward(const at::Tensor& x, const at::Tensor& qkv, const Packed& packed,
                                  const QkvSaved& saved) const {
  const at::Tensor outputs = at::empty({x.size(0), matrix_.out_features()}, x.options());
  matrix_.forward(x, outputs, packed.empty() ? Linear::Packed() : packed[0]);
  for_each_move(outputs, qkv, [](const at::Tensor& from, const at::Tensor& to) { to.copy_(from); });
}

class RegroupedProjection::Pass final : public Backward {
 public:
  Pass(const RegroupedProjection& projection, int64_t rows)
      : p_(projection), packed_(p_.matrix_.pack_backward()), rows_(rows) {}

  void tile(int64_t begin, const at::Tensor& dqkv, const at::Tensor& dx) override {
    const at::Tensor d_outputs = at::empty({dqkv.size(0), p_.matrix_.out_features()}, dqkv.options());
    back(d_outputs, dqkv);
    p_.matrix_.backward_input(d_outputs, dx, packed_);
  }
  void finish(const at::Tensor& dqkv, const at::Tensor& x) override {
    const at::Tensor d_outputs = at::empty({rows_, p_.matrix_.out_features()}, dqkv.options());
    back(d_outputs, dqkv);
    p_.matrix_.accumulate_grad(d_outputs, x);
  }

 private:
  void back(const at::Tensor& d_outputs, const at::Tensor& dqkv) const {
    p_.for_each_move(d_outputs, dqkv, [](const at::Tensor& to, const at::Tensor& from) { to.copy_(from); });
  }

  const RegroupedProjection& p_;
  Linear::Packed packed_;
  int64_t rows_;
};

std::unique_ptr<QkvProjection::Backward> RegroupedProjection::backward(const QkvSaved& saved, int64_t rows,
                                                                       int64_t row_tile) const {
  return std::make_unique<Pass>(*this, rows);
}

}  // namespace troupe
