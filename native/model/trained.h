// A parameter, or some rows of one, and where its gradient is summed.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>

namespace troupe {

struct Trained {
  at::Tensor value, grad;  // grad: undefined where it is not trained

  void add(const at::Tensor& gradient) const {
    if (grad.defined()) at::Tensor(grad).add_(gradient);
  }
  // `count` rows from `first` on; of none, none.
  Trained rows(int64_t first, int64_t count) const {
    const auto of = [&](const at::Tensor& t) { return t.defined() ? t.narrow(0, first, count) : t; };
    return {of(value), of(grad)};
  }
};

}  // namespace troupe
