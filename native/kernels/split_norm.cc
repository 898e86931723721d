// The norm over columns of which some are elsewhere: the choice of kernel.
#include "kernels/split_norm.h"

#include <ATen/ATen.h>

#include "base/error.h"
#include "base/simulated.h"
#include "kernels/cpu_dispatch.h"
#include "kernels/device_ops.h"
#include "kernels/reference.h"

namespace troupe::ops {

namespace {

// Null where there is only the reference.
const kernels::SplitNormKernels* kernels_for(const at::Tensor& x) {
  if (x.is_cpu()) return &kernels::row_kernels().split_norm;
  const kernels::DeviceOps* device = kernels::device_ops_for(x);
  return device != nullptr ? &device->rows.split_norm : nullptr;
}

kernels::Dtype dtype_of(const at::Tensor& x) {
  return x.scalar_type() == at::kBFloat16 ? kernels::kBFloat16 : kernels::kFloat32;
}

void check(const char* name, const at::Tensor& rows, const at::Tensor& like) {
  require(rows.dim() == 2 && rows.sizes() == like.sizes() && rows.stride(1) == 1 &&
              rows.scalar_type() == like.scalar_type(),
          ErrorCode::kInternal, "[ops] split norm expected ", name, " ", like.sizes(), " ",
          like.scalar_type(), " with adjacent columns but got ", rows.sizes(), " ", rows.scalar_type(),
          " with strides ", rows.strides());
}

kernels::ConstRows const_rows(const char* name, const at::Tensor& rows, const at::Tensor& like) {
  check(name, rows, like);
  return {rows.const_data_ptr(), rows.stride(0)};
}

kernels::Rows mutable_rows(const char* name, const at::Tensor& rows, const at::Tensor& like) {
  check(name, rows, like);
  return {rows.mutable_data_ptr(), rows.stride(0)};
}

// Contiguous.
template <typename T>
T* vector(const char* name, const at::Tensor& values, int64_t count) {
  require(values.numel() == count && values.is_contiguous(), ErrorCode::kInternal,
          "[ops] split norm expected ", name, " contiguous with ", count, " numbers but got ",
          values.sizes());
  return static_cast<T*>(values.mutable_data_ptr());
}

kernels::SplitNormArgs arguments(const NormSpec& spec, const at::Tensor& x, const at::Tensor& weight,
                                 const at::Tensor& squares, int64_t count) {
  kernels::SplitNormArgs args{x.size(0),
                              x.size(1),
                              static_cast<float>(count),
                              static_cast<float>(spec.eps),
                              spec.unit_offset ? 1.0f : 0.0f,
                              vector<void>("weight", weight, x.size(1)),
                              nullptr};
  if (squares.defined()) args.squares = vector<float>("squares", squares, x.size(0));
  return args;
}

}  // namespace

void split_norm_squares(const at::Tensor& x, const at::Tensor& sums) {
  if (simulated(x)) return;
  const kernels::SplitNormKernels* table = kernels_for(x);
  if (table == nullptr) return reference::split_norm_squares(x, sums);
  kernels::SplitNormSums args{};
  args.norm.rows = x.size(0);
  args.norm.cols = x.size(1);
  args.x = const_rows("x", x, x);
  args.sums = vector<float>("sums", sums, x.size(0));
  table->sums[dtype_of(x)](args);
}

void split_norm_forward(const NormSpec& spec, const at::Tensor& x, const at::Tensor& weight,
                        const at::Tensor& squares, int64_t count, const at::Tensor& y) {
  if (simulated(x)) return;
  const kernels::SplitNormKernels* table = kernels_for(x);
  if (table == nullptr) return reference::split_norm_forward(spec, x, weight, squares, count, y);
  table->forward[dtype_of(x)](
      {arguments(spec, x, weight, squares, count), const_rows("x", x, x), mutable_rows("y", y, x)});
}

void split_norm_products(const NormSpec& spec, const at::Tensor& dy, const at::Tensor& x,
                         const at::Tensor& weight, const at::Tensor& sums) {
  if (simulated(x)) return;
  const kernels::SplitNormKernels* table = kernels_for(x);
  if (table == nullptr) return reference::split_norm_products(spec, dy, x, weight, sums);
  table->sums[dtype_of(x)]({arguments(spec, x, weight, {}, x.size(1)), const_rows("dy", dy, x),
                            const_rows("x", x, x), vector<float>("sums", sums, x.size(0))});
}

void split_norm_backward(const NormSpec& spec, const at::Tensor& dy, const at::Tensor& x,
                         const at::Tensor& weight, const at::Tensor& squares, const at::Tensor& products,
                         int64_t count, const at::Tensor& dx, const at::Tensor& dweight) {
  if (simulated(x)) return;
  const kernels::SplitNormKernels* table = kernels_for(x);
  if (table == nullptr)
    return reference::split_norm_backward(spec, dy, x, weight, squares, products, count, dx, dweight);
  table->backward[dtype_of(x)]({arguments(spec, x, weight, squares, count), const_rows("dy", dy, x),
                                const_rows("x", x, x), vector<float>("products", products, x.size(0)),
                                mutable_rows("dx", dx, x),
                                dweight.defined() ? vector<float>("dweight", dweight, x.size(1)) : nullptr});
}

}  // namespace troupe::ops
