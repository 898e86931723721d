// Products by group: the choice of kernel, and what stands in for one.
#include "kernels/grouped_gemm.h"

#include <ATen/ATen.h>

#include <limits>

#include "base/error.h"
#include "base/simulated.h"
#include "kernels/device_ops.h"

namespace troupe::ops {

namespace {

void check(const char* what, const at::Tensor& rows, const at::Tensor& starts, int64_t groups) {
  require(rows.dim() == 2 && starts.dim() == 1 && starts.size(0) == groups + 1 &&
              starts.scalar_type() == at::kInt && starts.device() == rows.device(),
          ErrorCode::kInternal, "[gemm] ", what, ": expected rows of ", groups, " groups with ", groups + 1,
          " int32 starts beside them, got rows ", rows.sizes(), " on ", rows.device(), " and starts ",
          starts.sizes(), " ", starts.scalar_type(), " on ", starts.device());
}

// [S, 1] of 0 and 1: which rows are of a group.
at::Tensor rows_of_group(const at::Tensor& rows, const at::Tensor& starts, int64_t group) {
  const at::Tensor index = at::arange(rows.size(0), starts.options());
  return at::logical_and(index.ge(starts.select(0, group)), index.lt(starts.select(0, group + 1)))
      .unsqueeze(1);
}

}  // namespace

at::Tensor grouped_gemm(const at::Tensor& x, const at::Tensor& weights, const at::Tensor& starts) {
  check("grouped_gemm", x, starts, weights.size(0));
  require(weights.dim() == 3 && weights.size(1) == x.size(1) && weights.scalar_type() == x.scalar_type(),
          ErrorCode::kInternal, "[gemm] cannot multiply ", x.sizes(), " ", x.scalar_type(), " by groups of ",
          weights.sizes(), " ", weights.scalar_type());
  if (simulated(x)) return at::empty({x.size(0), weights.size(2)}, x.options());
  if (const auto* device = kernels::device_ops_for(x)) return device->grouped_gemm(x, weights, starts);
  return grouped_gemm_reference(x, weights, starts);
}

void grouped_gemm_transposed(const at::Tensor& a, const at::Tensor& b, const at::Tensor& starts,
                             const at::Tensor& out) {
  check("grouped_gemm_transposed", a, starts, out.size(0));
  require(a.size(0) == b.size(0) && out.size(1) == a.size(1) && out.size(2) == b.size(1) &&
              a.scalar_type() == b.scalar_type() && out.scalar_type() == at::kFloat,
          ErrorCode::kInternal, "[gemm] cannot multiply the transposed ", a.sizes(), " ", a.scalar_type(),
          " by ", b.sizes(), " ", b.scalar_type(), " into ", out.sizes(), " ", out.scalar_type());
  if (simulated(a)) return;
  if (const auto* device = kernels::device_ops_for(a))
    return device->grouped_gemm_transposed(a, b, starts, out);
  grouped_gemm_transposed_reference(a, b, starts, out);
}

at::Tensor stacked(const std::vector<at::Tensor>& matrices) {
  if (matrices.empty() || !matrices[0].defined()) return {};
  const at::Tensor& first = matrices[0];
  const auto count = static_cast<int64_t>(matrices.size());
  const int64_t distance = count > 1 ? matrices[1].storage_offset() - first.storage_offset() : first.numel();
  for (int64_t i = 0; i < count; ++i) {
    const at::Tensor& matrix = matrices[static_cast<size_t>(i)];
    if (!matrix.is_alias_of(first) || matrix.sizes() != first.sizes() ||
        matrix.strides() != first.strides() ||
        matrix.storage_offset() != first.storage_offset() + i * distance)
      return {};
  }
  std::vector<int64_t> sizes{count}, strides{distance};
  sizes.insert(sizes.end(), first.sizes().begin(), first.sizes().end());
  strides.insert(strides.end(), first.strides().begin(), first.strides().end());
  return first.as_strided(sizes, strides);
}

at::Tensor grouped_gemm_reference(const at::Tensor& x, const at::Tensor& weights, const at::Tensor& starts) {
  // NaN where a row is of no group: nobody may read it.
  at::Tensor y =
      at::full({x.size(0), weights.size(2)}, std::numeric_limits<double>::quiet_NaN(), x.options());
  for (int64_t group = 0; group < weights.size(0); ++group)
    y = at::where(rows_of_group(x, starts, group), at::mm(x, weights.select(0, group)), y);
  return y;
}

void grouped_gemm_transposed_reference(const at::Tensor& a, const at::Tensor& b, const at::Tensor& starts,
                                       const at::Tensor& out) {
  for (int64_t group = 0; group < out.size(0); ++group) {
    const at::Tensor own = rows_of_group(a, starts, group);
    const at::Tensor zero = at::zeros({}, a.options());
    out.select(0, group).add_(
        at::mm(at::where(own, a, zero).t().to(at::kFloat), at::where(own, b, zero).to(at::kFloat)));
  }
}

}  // namespace troupe::ops
