// Row operations: the choice of kernel, and checks of arguments.
#include "kernels/ops.h"

#include <ATen/ATen.h>

#include "base/error.h"
#include "base/simulated.h"
#include "kernels/cpu_dispatch.h"
#include "kernels/device_ops.h"
#include "kernels/reference.h"
#include "kernels/split_norm.h"

// Unpacks tensors into the arguments of the kernels of their device; a device without any gets the reference.
namespace troupe::ops {

namespace {

using kernels::ConstRows;
using kernels::Dtype;
using kernels::RowKernels;
using kernels::Rows;

// An operation and where its arrays must be: for the checks.
struct Op {
  const char* name;
  at::Device device;
};

// Null where there is only the reference.
const RowKernels* kernels_for(const at::Tensor& x) {
  if (x.is_cpu()) return &kernels::row_kernels();
  const kernels::DeviceOps* device = kernels::device_ops_for(x);
  return device != nullptr ? &device->rows : nullptr;
}

Dtype dtype_of(const Op& op, const at::Tensor& x) {
  if (x.scalar_type() == at::kFloat) return kernels::kFloat32;
  if (x.scalar_type() == at::kBFloat16) return kernels::kBFloat16;
  fail(ErrorCode::kInternal, "[ops] ", op.name, " expected float32 or bfloat16 but got ", x.scalar_type());
}

// A [rows, cols] array whose columns lie side by side.
void check_rows(const Op& op, const char* name, const at::Tensor& x, at::ScalarType type, int64_t rows,
                int64_t cols) {
  const bool ok = x.defined() && x.dim() == 2 && x.size(0) == rows && x.size(1) == cols &&
                  (x.stride(1) == 1 || cols <= 1) && x.scalar_type() == type && x.device() == op.device;
  if (ok) return;
  if (!x.defined()) fail(ErrorCode::kInternal, "[ops] ", op.name, ": ", name, " is missing");
  fail(ErrorCode::kInternal, "[ops] ", op.name, " expected ", name, " [", rows, ", ", cols, "] ", type,
       " with adjacent columns but got ", x.sizes(), " ", x.scalar_type(), " with strides ", x.strides());
}

ConstRows const_rows(const Op& op, const char* name, const at::Tensor& x, at::ScalarType type, int64_t rows,
                     int64_t cols) {
  check_rows(op, name, x, type, rows, cols);
  return {x.const_data_ptr(), x.stride(0)};
}

Rows mutable_rows(const Op& op, const char* name, const at::Tensor& x, at::ScalarType type, int64_t rows,
                  int64_t cols) {
  check_rows(op, name, x, type, rows, cols);
  return {x.mutable_data_ptr(), x.stride(0)};
}

// A contiguous array of `count` elements; null when undefined.
void* vector(const Op& op, const char* name, const at::Tensor& x, at::ScalarType type, int64_t count) {
  if (!x.defined()) return nullptr;
  require(x.numel() == count && x.is_contiguous() && x.scalar_type() == type && x.device() == op.device,
          ErrorCode::kInternal, "[ops] ", op.name, " expected ", name, " contiguous with ", count, " ", type,
          " but got ", x.sizes(), " ", x.scalar_type());
  return x.mutable_data_ptr();
}

float* floats(const Op& op, const char* name, const at::Tensor& x, int64_t count) {
  return static_cast<float*>(vector(op, name, x, at::kFloat, count));
}

void* needed(const Op& op, const char* name, void* pointer) {
  require(pointer != nullptr, ErrorCode::kInternal, "[ops] ", op.name, ": ", name, " is missing");
  return pointer;
}

kernels::NormArgs norm_args(const NormSpec& spec, const at::Tensor& x) {
  return {x.size(0), x.size(1), static_cast<float>(spec.eps), spec.unit_offset ? 1.0f : 0.0f,
          spec.kind == NormKind::kLayer};
}

kernels::RotaryArgs rotary_args(const Op& op, const RotarySpec& spec, const at::Tensor& qkv,
                                const at::Tensor& positions, const at::Tensor& cos, const at::Tensor& sin,
                                const at::Tensor& q_weight, const at::Tensor& k_weight,
                                const at::Tensor& rstd) {
  kernels::RotaryArgs args{};
  args.rows = qkv.size(0);
  args.q_heads = spec.num_heads;
  args.k_heads = spec.num_kv_heads;
  args.head_dim = spec.head_dim;
  args.rotary_dim = spec.rotary_dim;
  args.qk_norm = spec.qk_norm;
  args.eps = static_cast<float>(spec.norm_eps);
  args.weight_offset = spec.norm_unit_offset ? 1.0f : 0.0f;
  if (spec.rotary_dim > 0) {
    require(spec.rotary_dim % 2 == 0 && spec.rotary_dim <= spec.head_dim, ErrorCode::kInternal, "[ops] ",
            op.name, " expected an even rotary_dim of at most head_dim ", spec.head_dim, " but got ",
            spec.rotary_dim);
    const int64_t table = cos.size(0) * (spec.rotary_dim / 2);
    args.positions = static_cast<const int32_t*>(
        needed(op, "positions", vector(op, "positions", positions, at::kInt, args.rows)));
    args.cos = floats(op, "cos", cos, table);
    args.sin = floats(op, "sin", sin, table);
  }
  if (spec.qk_norm) {
    require(spec.head_dim <= kernels::kMaxHeadDim, ErrorCode::kInvalidModel, "[ops] ", op.name,
            " with q/k norm supports head_dim up to ", kernels::kMaxHeadDim, " but got ", spec.head_dim);
    const at::ScalarType type = qkv.scalar_type();
    args.q_weight = needed(op, "q_weight", vector(op, "q_weight", q_weight, type, spec.head_dim));
    args.k_weight = needed(op, "k_weight", vector(op, "k_weight", k_weight, type, spec.head_dim));
    if (rstd.defined()) {
      check_rows(op, "qk_rstd", rstd, at::kFloat, args.rows, spec.num_heads + spec.num_kv_heads);
      args.rstd_stride = rstd.stride(0);
    }
  }
  return args;
}

kernels::ActivationId activation_id(Activation kind) {
  switch (kind) {
    case Activation::kSilu: return kernels::kSiluId;
    case Activation::kGelu: return kernels::kGeluId;
    case Activation::kGeluTanh: return kernels::kGeluTanhId;
    case Activation::kQuickGelu: return kernels::kQuickGeluId;
    case Activation::kRelu: return kernels::kReluId;
    case Activation::kSquaredRelu: return kernels::kSquaredReluId;
    case Activation::kSigmoid: return kernels::kSigmoidId;
    case Activation::kClampedSwiglu: return kernels::kClampedSwigluId;
    case Activation::kXielu: break;
  }
  fail(ErrorCode::kInternal, "[ops] unknown activation ", static_cast<int>(kind));
}

}  // namespace

void norm_forward(const NormSpec& spec, const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                  const at::Tensor& y, const at::Tensor& rstd, const at::Tensor& mean) {
  if (simulated(x)) return;
  const RowKernels* table = kernels_for(x);
  if (table == nullptr) return reference::norm_forward(spec, x, weight, bias, y, rstd, mean);
  const Op op{"norm_forward", x.device()};
  const Dtype dtype = dtype_of(op, x);
  const at::ScalarType type = x.scalar_type();
  const kernels::NormArgs norm = norm_args(spec, x);
  kernels::NormForward args{};
  args.norm = norm;
  args.x = const_rows(op, "x", x, type, norm.rows, norm.cols);
  args.weight = needed(op, "weight", vector(op, "weight", weight, type, norm.cols));
  args.bias = vector(op, "bias", bias, type, norm.cols);
  args.y = mutable_rows(op, "y", y, type, norm.rows, norm.cols);
  args.rstd = floats(op, "rstd", rstd, norm.rows);
  args.mean = floats(op, "mean", mean, norm.rows);
  table->norm.forward[dtype](args);
}

void norm_backward(const NormSpec& spec, const at::Tensor& dy, const at::Tensor& x, const at::Tensor& weight,
                   const at::Tensor& rstd, const at::Tensor& mean, const at::Tensor& dx, bool accumulate,
                   const at::Tensor& dweight, const at::Tensor& dbias) {
  if (simulated(x)) return;
  const RowKernels* table = kernels_for(x);
  if (table == nullptr) {
    return reference::norm_backward(spec, dy, x, weight, rstd, mean, dx, accumulate, dweight, dbias);
  }
  const Op op{"norm_backward", x.device()};
  const Dtype dtype = dtype_of(op, x);
  const at::ScalarType type = x.scalar_type();
  const kernels::NormArgs norm = norm_args(spec, x);
  kernels::NormBackward args{};
  args.norm = norm;
  args.dy = const_rows(op, "dy", dy, type, norm.rows, norm.cols);
  args.x = const_rows(op, "x", x, type, norm.rows, norm.cols);
  args.weight = needed(op, "weight", vector(op, "weight", weight, type, norm.cols));
  args.rstd = static_cast<float*>(needed(op, "rstd", floats(op, "rstd", rstd, norm.rows)));
  args.mean = floats(op, "mean", mean, norm.rows);
  if (norm.layer_norm) needed(op, "mean", const_cast<float*>(args.mean));
  args.dx = mutable_rows(op, "dx", dx, type, norm.rows, norm.cols);
  args.accumulate = accumulate;
  args.dweight = floats(op, "dweight", dweight, norm.cols);
  args.dbias = floats(op, "dbias", dbias, norm.cols);
  table->norm.backward[dtype](args);
}

void qk_norm_rotary_forward(const RotarySpec& spec, const at::Tensor& qkv, const at::Tensor& positions,
                            const at::Tensor& cos, const at::Tensor& sin, const at::Tensor& q_weight,
                            const at::Tensor& k_weight, const at::Tensor& qk_rstd) {
  if (simulated(qkv)) return;
  const RowKernels* table = kernels_for(qkv);
  if (table == nullptr) {
    return reference::qk_norm_rotary_forward(spec, qkv, positions, cos, sin, q_weight, k_weight, qk_rstd);
  }
  if (spec.rotary_dim == 0 && !spec.qk_norm) return;
  const Op op{"qk_norm_rotary_forward", qkv.device()};
  kernels::RotaryForward args{};
  args.rotary = rotary_args(op, spec, qkv, positions, cos, sin, q_weight, k_weight, qk_rstd);
  const int64_t width = (spec.num_heads + 2 * spec.num_kv_heads) * spec.head_dim;
  args.qkv = mutable_rows(op, "qkv", qkv, qkv.scalar_type(), qkv.size(0), width);
  if (spec.qk_norm && qk_rstd.defined()) args.rstd = qk_rstd.mutable_data_ptr<float>();
  table->rotary.forward[dtype_of(op, qkv)](args);
}

void qk_norm_rotary_backward(const RotarySpec& spec, const at::Tensor& dqkv, const at::Tensor& qkv_pre,
                             const at::Tensor& positions, const at::Tensor& cos, const at::Tensor& sin,
                             const at::Tensor& q_weight, const at::Tensor& k_weight,
                             const at::Tensor& qk_rstd, const at::Tensor& dq_weight,
                             const at::Tensor& dk_weight) {
  if (simulated(dqkv)) return;
  const RowKernels* table = kernels_for(dqkv);
  if (table == nullptr) {
    return reference::qk_norm_rotary_backward(spec, dqkv, qkv_pre, positions, cos, sin, q_weight, k_weight,
                                              qk_rstd, dq_weight, dk_weight);
  }
  if (spec.rotary_dim == 0 && !spec.qk_norm) return;
  const Op op{"qk_norm_rotary_backward", dqkv.device()};
  kernels::RotaryBackward args{};
  args.rotary = rotary_args(op, spec, dqkv, positions, cos, sin, q_weight, k_weight, qk_rstd);
  const int64_t width = (spec.num_heads + 2 * spec.num_kv_heads) * spec.head_dim;
  const at::ScalarType type = dqkv.scalar_type();
  args.dqkv = mutable_rows(op, "dqkv", dqkv, type, dqkv.size(0), width);
  if (spec.qk_norm) {
    args.qkv_pre = const_rows(op, "qkv_pre", qkv_pre, type, dqkv.size(0), width);
    require(qk_rstd.defined(), ErrorCode::kInternal, "[ops] ", op.name, ": qk_rstd is missing");
    args.rstd = qk_rstd.const_data_ptr<float>();
    args.dq_weight = floats(op, "dq_weight", dq_weight, spec.head_dim);
    args.dk_weight = floats(op, "dk_weight", dk_weight, spec.head_dim);
  }
  table->rotary.backward[dtype_of(op, dqkv)](args);
}

void activation_forward(Activation kind, bool gated, const at::Tensor& x, const at::Tensor& out) {
  if (simulated(x)) return;
  const RowKernels* table = kernels_for(x);
  if (table == nullptr) return reference::activation_forward(kind, gated, x, out);
  const Op op{"activation_forward", x.device()};
  const Dtype dtype = dtype_of(op, x);
  kernels::ActivationForward args{};
  args.kind = activation_id(kind);
  args.gated = gated;
  args.rows = out.size(0);
  args.cols = out.size(1);
  args.x = const_rows(op, "x", x, x.scalar_type(), args.rows, gated ? 2 * args.cols : args.cols);
  args.out = mutable_rows(op, "out", out, x.scalar_type(), args.rows, args.cols);
  table->activation.forward[dtype](args);
}

void activation_backward(Activation kind, bool gated, const at::Tensor& dout, const at::Tensor& x,
                         const at::Tensor& dx, const at::Tensor& out) {
  if (simulated(x)) return;
  const RowKernels* table = kernels_for(x);
  if (table == nullptr) return reference::activation_backward(kind, gated, dout, x, dx, out);
  const Op op{"activation_backward", x.device()};
  const Dtype dtype = dtype_of(op, x);
  const at::ScalarType type = x.scalar_type();
  kernels::ActivationBackward args{};
  args.kind = activation_id(kind);
  args.gated = gated;
  args.rows = dout.size(0);
  args.cols = dout.size(1);
  const int64_t width = gated ? 2 * args.cols : args.cols;
  args.dout = const_rows(op, "dout", dout, type, args.rows, args.cols);
  args.x = const_rows(op, "x", x, type, args.rows, width);
  args.dx = mutable_rows(op, "dx", dx, type, args.rows, width);
  if (out.defined()) args.out = mutable_rows(op, "out", out, type, args.rows, args.cols);
  table->activation.backward[dtype](args);
}

void add_rows(const at::Tensor& target, const at::Tensor& index, const at::Tensor& rows) {
  at::Tensor out = target;
  if (out.is_cuda()) {
    // index_add_ adds with atomics there, in any order; this sorts by index, and equal ones stay in order.
    out.index_put_({index.to(at::kLong)}, rows, /*accumulate=*/true);
  } else if (index.numel() > 0) {  // on meta tensors index_add_ looks at a first row
    out.index_add_(0, index, rows);
  }
}

namespace {

// columns: of all ranks; squares: undefined where nothing is scaled by them.
kernels::SplitNormArgs split_norm_args(const Op& op, const NormSpec& spec, const at::Tensor& x,
                                       const at::Tensor& weight, const at::Tensor& squares, int64_t columns) {
  kernels::SplitNormArgs args{};
  args.rows = x.size(0);
  args.cols = x.size(1);
  args.count = static_cast<float>(columns);
  args.eps = static_cast<float>(spec.eps);
  args.weight_offset = spec.unit_offset ? 1.0f : 0.0f;
  args.weight = needed(op, "weight", vector(op, "weight", weight, x.scalar_type(), args.cols));
  args.squares = floats(op, "squares", squares, args.rows);
  return args;
}

}  // namespace

void split_norm_squares(const at::Tensor& x, const at::Tensor& sums) {
  if (simulated(x)) return;
  const RowKernels* table = kernels_for(x);
  if (table == nullptr) return reference::split_norm_squares(x, sums);
  const Op op{"split_norm_squares", x.device()};
  kernels::SplitNormSums args{};
  args.norm.rows = x.size(0);
  args.norm.cols = x.size(1);
  args.x = const_rows(op, "x", x, x.scalar_type(), args.norm.rows, args.norm.cols);
  args.sums = static_cast<float*>(needed(op, "sums", floats(op, "sums", sums, args.norm.rows)));
  table->split_norm.sums[dtype_of(op, x)](args);
}

void split_norm_forward(const NormSpec& spec, const at::Tensor& x, const at::Tensor& weight,
                        const at::Tensor& squares, int64_t count, const at::Tensor& y) {
  if (simulated(x)) return;
  const RowKernels* table = kernels_for(x);
  if (table == nullptr) return reference::split_norm_forward(spec, x, weight, squares, count, y);
  const Op op{"split_norm_forward", x.device()};
  const at::ScalarType type = x.scalar_type();
  kernels::SplitNormForward args{};
  args.norm = split_norm_args(op, spec, x, weight, squares, count);
  args.x = const_rows(op, "x", x, type, args.norm.rows, args.norm.cols);
  args.y = mutable_rows(op, "y", y, type, args.norm.rows, args.norm.cols);
  table->split_norm.forward[dtype_of(op, x)](args);
}

void split_norm_products(const NormSpec& spec, const at::Tensor& dy, const at::Tensor& x,
                         const at::Tensor& weight, const at::Tensor& sums) {
  if (simulated(x)) return;
  const RowKernels* table = kernels_for(x);
  if (table == nullptr) return reference::split_norm_products(spec, dy, x, weight, sums);
  const Op op{"split_norm_products", x.device()};
  const at::ScalarType type = x.scalar_type();
  kernels::SplitNormSums args{};
  args.norm = split_norm_args(op, spec, x, weight, {}, x.size(1));
  args.dy = const_rows(op, "dy", dy, type, args.norm.rows, args.norm.cols);
  args.x = const_rows(op, "x", x, type, args.norm.rows, args.norm.cols);
  args.sums = static_cast<float*>(needed(op, "sums", floats(op, "sums", sums, args.norm.rows)));
  table->split_norm.sums[dtype_of(op, x)](args);
}

void split_norm_backward(const NormSpec& spec, const at::Tensor& dy, const at::Tensor& x,
                         const at::Tensor& weight, const at::Tensor& squares, const at::Tensor& products,
                         int64_t count, const at::Tensor& dx, const at::Tensor& dweight) {
  if (simulated(x)) return;
  const RowKernels* table = kernels_for(x);
  if (table == nullptr)
    return reference::split_norm_backward(spec, dy, x, weight, squares, products, count, dx, dweight);
  const Op op{"split_norm_backward", x.device()};
  const at::ScalarType type = x.scalar_type();
  kernels::SplitNormBackward args{};
  args.norm = split_norm_args(op, spec, x, weight, squares, count);
  args.dy = const_rows(op, "dy", dy, type, args.norm.rows, args.norm.cols);
  args.x = const_rows(op, "x", x, type, args.norm.rows, args.norm.cols);
  args.products = floats(op, "products", products, args.norm.rows);
  args.dx = mutable_rows(op, "dx", dx, type, args.norm.rows, args.norm.cols);
  args.dweight = floats(op, "dweight", dweight, args.norm.cols);
  table->split_norm.backward[dtype_of(op, x)](args);
}

}  // namespace troupe::ops
