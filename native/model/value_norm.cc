// Copies of the values' columns through the norm of rows.
#include "model/value_norm.h"

#include <ATen/ATen.h>

namespace troupe {

ValueNorm::ValueNorm(double eps, int64_t first, int64_t heads, int64_t dim, const at::TensorOptions& options)
    : spec_{NormKind::kRms, eps}, first_(first), heads_(heads), dim_(dim), ones_(at::ones({dim}, options)) {}

at::Tensor ValueNorm::make_rstd(int64_t rows) const {
  return at::empty({rows, heads_}, ones_.options().dtype(at::kFloat));
}

at::Tensor ValueNorm::heads_of(const at::Tensor& qkv) const {
  // Of one row contiguous() would be the columns themselves.
  return qkv.narrow(1, first_, heads_ * dim_).clone(at::MemoryFormat::Contiguous).view({-1, dim_});
}

void ValueNorm::store(const at::Tensor& heads, const at::Tensor& qkv) const {
  qkv.narrow(1, first_, heads_ * dim_).copy_(heads.view({-1, heads_ * dim_}));
}

void ValueNorm::forward(const at::Tensor& qkv, const at::Tensor& rstd) const {
  const at::Tensor values = heads_of(qkv);
  ops::norm_forward(spec_, values, ones_, {}, values, rstd.defined() ? rstd.view({-1}) : rstd, {});
  store(values, qkv);
}

void ValueNorm::backward(const at::Tensor& dqkv, const at::Tensor& qkv_pre, const at::Tensor& rstd) const {
  const at::Tensor gradient = heads_of(dqkv);
  ops::norm_backward(spec_, gradient, heads_of(qkv_pre), ones_, rstd.view({-1}), {}, gradient,
                     /*accumulate=*/false, {}, {});
  store(gradient, dqkv);
}

}  // namespace troupe
