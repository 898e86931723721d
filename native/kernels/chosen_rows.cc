// Rows that an index picks: the choice of kernel, and LibTorch's operations where there is none.
#include "kernels/chosen_rows.h"

#include <ATen/ATen.h>

#include "base/error.h"
#include "base/simulated.h"
#include "kernels/cpu/chosen_rows_kernels.h"
#include "kernels/cpu/isa.h"

TROUPE_DECLARE_TABLES(ChosenRowKernels, chosen_row_table)

namespace troupe::ops {

namespace {

using kernels::ConstRows;
using kernels::Rows;

const kernels::ChosenRowKernels& chosen_row_kernels() {
  using namespace kernels;
  return TROUPE_PICK_TABLE(chosen_row_table);
}

int dtype_of(const at::Tensor& rows) {
  return rows.scalar_type() == at::kBFloat16 ? kernels::kBFloat16 : kernels::kFloat32;
}

ConstRows read(const at::Tensor& rows) {
  return {rows.const_data_ptr(), rows.stride(0)};
}
Rows written(const at::Tensor& rows) {
  return {rows.mutable_data_ptr(), rows.stride(0)};
}
const float* floats(const at::Tensor& optional) {
  return optional.defined() ? optional.const_data_ptr<float>() : nullptr;
}

void check(const char* what, const at::Tensor& source, const at::Tensor& target, int64_t rows) {
  require(source.dim() == 2 && target.dim() == 2 && source.size(1) == target.size(1) &&
              target.size(0) == rows && source.scalar_type() == target.scalar_type() &&
              (source.scalar_type() == at::kFloat || source.scalar_type() == at::kBFloat16) &&
              (source.size(1) == 1 || (source.stride(1) == 1 && target.stride(1) == 1)),
          ErrorCode::kInternal, "[rows] ", what, ": expected ", rows,
          " rows of one width in float32 or bfloat16 with unit column strides, got ", source.sizes(), " ",
          source.scalar_type(), " and ", target.sizes(), " ", target.scalar_type());
}

void check_beside(const char* what, const at::Tensor& tensor, at::ScalarType type, at::IntArrayRef sizes) {
  require(!tensor.defined() ||
              (tensor.scalar_type() == type && tensor.sizes() == sizes && tensor.is_contiguous()),
          ErrorCode::kInternal, "[rows] expected ", what, " of ", sizes, " ", type, ", contiguous, got ",
          tensor.sizes(), " ", tensor.scalar_type());
}

at::Tensor scaled(const at::Tensor& rows, const at::Tensor& scale) {
  return rows.to(at::kFloat) * scale.unsqueeze(1);
}

}  // namespace

void gather_rows(const at::Tensor& source, const at::Tensor& index, const at::Tensor& scale,
                 const at::Tensor& target) {
  check("gather_rows", source, target, index.size(0));
  check_beside("an index", index, at::kLong, {index.numel()});
  check_beside("a scale", scale, at::kFloat, index.sizes());
  if (simulated(source)) return;
  if (source.is_cpu()) {
    return chosen_row_kernels().gather[dtype_of(source)](read(source), index.const_data_ptr<int64_t>(),
                                                         floats(scale), index.size(0), source.size(1),
                                                         written(target));
  }
  const at::Tensor picked = source.index_select(0, index);
  target.copy_(scale.defined() ? scaled(picked, scale) : picked);
}

void scale_rows(const at::Tensor& source, const at::Tensor& scale, const at::Tensor& target) {
  check("scale_rows", source, target, source.size(0));
  check_beside("a scale", scale, at::kFloat, {source.size(0)});
  if (simulated(source)) return;
  if (source.is_cpu()) {
    return chosen_row_kernels().gather[dtype_of(source)](read(source), nullptr, floats(scale), source.size(0),
                                                         source.size(1), written(target));
  }
  target.copy_(scaled(source, scale));
}

void sum_rows(const at::Tensor& source, const at::Tensor& index, const at::Tensor& weights,
              const at::Tensor& target) {
  check("sum_rows", source, target, index.size(0));
  check_beside("an index", index, at::kLong, {index.size(0), index.size(1)});
  check_beside("weights", weights, at::kFloat, index.sizes());
  if (simulated(source)) return;
  if (source.is_cpu()) {
    return chosen_row_kernels().sum[dtype_of(source)](read(source), index.const_data_ptr<int64_t>(),
                                                      floats(weights), index.size(1), index.size(0),
                                                      source.size(1), written(target));
  }
  const at::Tensor sum = at::zeros(target.sizes(), target.options().dtype(at::kFloat));
  for (int64_t choice = 0; choice < index.size(1); ++choice) {
    const at::Tensor picked = source.index_select(0, index.select(1, choice)).to(at::kFloat);
    if (weights.defined()) {
      sum.addcmul_(picked, weights.narrow(1, choice, 1));
    } else {
      sum.add_(picked);
    }
  }
  target.copy_(sum);
}

void dot_rows(const at::Tensor& a, const at::Tensor& b, const at::Tensor& out) {
  check("dot_rows", a, b, a.size(0));
  check_beside("sums", out, at::kFloat, {a.size(0)});
  if (simulated(a)) return;
  if (a.is_cpu()) {
    return chosen_row_kernels().dot[dtype_of(a)](read(a), read(b), a.size(0), a.size(1),
                                                 out.mutable_data_ptr<float>());
  }
  at::Tensor sums = out;
  at::sum_out(sums, a.to(at::kFloat) * b, at::IntArrayRef{1});
}

}  // namespace troupe::ops
