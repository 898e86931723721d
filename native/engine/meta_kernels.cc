// Kernels for meta tensors, registered with LibTorch's dispatcher.
#include "engine/meta_kernels.h"

#include <ATen/ATen.h>
#include <ATen/ExpandUtils.h>
#include <torch/library.h>

namespace troupe {

namespace {

at::Tensor index_select(const at::Tensor& self, int64_t dim, const at::Tensor& index) {
  std::vector<int64_t> shape = self.sizes().vec();
  if (!shape.empty()) shape[static_cast<size_t>(at::maybe_wrap_dim(dim, self.dim()))] = index.numel();
  return at::empty(shape, self.options());
}

at::Tensor& index_select_out(const at::Tensor& self, int64_t dim, const at::Tensor& index, at::Tensor& out) {
  std::vector<int64_t> shape = self.sizes().vec();
  shape[static_cast<size_t>(at::maybe_wrap_dim(dim, self.dim()))] = index.numel();
  TORCH_CHECK(out.sizes() == at::IntArrayRef(shape), "index_select: expected ", shape, ", got ", out.sizes());
  return out;
}

// A copy to the host gives zeros. Large targets are not written: nobody reads them, and pages that nobody
// touched take no memory.
at::Tensor& copy_(at::Tensor& self, const at::Tensor& source, bool) {
  constexpr int64_t kLooked = int64_t{1} << 20;
  TORCH_CHECK(at::is_expandable_to(source.sizes(), self.sizes()), "copy_: expected ", self.sizes(), ", got ",
              source.sizes());
  if (self.is_cpu() && self.numel() <= kLooked) self.zero_();
  return self;
}

at::Scalar local_scalar_dense(const at::Tensor& self) {
  if (self.scalar_type() == at::kBool) return true;
  return at::isFloatingType(self.scalar_type()) ? at::Scalar(0.0) : at::Scalar(int64_t{0});
}

at::Tensor& abs_out(const at::Tensor& self, at::Tensor& out) {
  out.resize_(self.sizes());
  return out;
}

at::Tensor& logical_not_out(const at::Tensor& self, at::Tensor& out) {
  out.resize_(self.sizes());
  return out;
}

at::Tensor& logical_and_out(const at::Tensor& self, const at::Tensor& other, at::Tensor& out) {
  out.resize_(at::infer_size(self.sizes(), other.sizes()));
  return out;
}

// These allocate their results themselves, without the out variants above: resize_() of a meta tensor asks no
// allocator, so its bytes would not be counted.
at::Tensor abs(const at::Tensor& self) {
  return at::empty_like(self);
}

at::Tensor logical_not(const at::Tensor& self) {
  return at::empty(self.sizes(), self.options().dtype(at::kBool));
}

at::Tensor both(const at::Tensor& self, const at::Tensor& other) {
  return at::empty(at::infer_size(self.sizes(), other.sizes()), self.options().dtype(at::kBool));
}

at::Tensor where(const at::Tensor& condition, const at::Tensor& self, const at::Tensor& other) {
  const auto shape = at::infer_size(condition.sizes(), at::infer_size(self.sizes(), other.sizes()));
  return at::empty(shape, at::device(at::kMeta).dtype(at::result_type(self, other)));
}

at::Tensor max(const at::Tensor& self) {
  return at::empty({}, self.options());
}

}  // namespace

void install_meta_kernels() {
  static const torch::Library library = [] {
    torch::Library lib(torch::Library::IMPL, "aten", c10::DispatchKey::Meta, __FILE__, __LINE__);
    lib.impl("index_select", TORCH_FN(index_select));
    lib.impl("index_select.out", TORCH_FN(index_select_out));
    lib.impl("abs", TORCH_FN(abs));
    lib.impl("logical_not", TORCH_FN(logical_not));
    lib.impl("logical_and", TORCH_FN(both));
    lib.impl("logical_or", TORCH_FN(both));
    lib.impl("abs.out", TORCH_FN(abs_out));
    lib.impl("logical_not.out", TORCH_FN(logical_not_out));
    lib.impl("logical_and.out", TORCH_FN(logical_and_out));
    lib.impl("where.self", TORCH_FN(where));
    lib.impl("max", TORCH_FN(max));
    lib.impl("copy_", TORCH_FN(copy_));
    lib.impl("_local_scalar_dense", TORCH_FN(local_scalar_dense));
    return lib;
  }();
}

}  // namespace troupe
