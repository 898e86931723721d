// Gated and plain activations on a GPU.
#include "kernels/cuda/device.cuh"
#include "kernels/cuda/tables.h"

// SwiGLU and its relatives: act(gate) * up and the gradient by both in one pass over memory, where LibTorch's
// operations make several with temporaries. Formulas: cpu/activation.kernel.cc.
namespace troupe::kernels::cuda {

namespace {

constexpr unsigned kThreads = 256;
constexpr int64_t kMaxBlocks = 1 << 16;

struct Slope {
  float value, slope;
};

template <ActivationId kKind>
__device__ Slope act(float x) {
  if constexpr (kKind == kSiluId) {
    const float s = 1.0f / (1.0f + expf(-x));
    return {x * s, s * (1.0f + x * (1.0f - s))};
  } else if constexpr (kKind == kGeluId) {
    const float cdf = 0.5f * (1.0f + erff(x * 0.7071067811865476f));
    return {x * cdf, cdf + x * 0.3989422804014327f * expf(-0.5f * x * x)};
  } else if constexpr (kKind == kGeluTanhId) {
    constexpr float kInner = 0.7978845608028654f;  // sqrt(2 / pi)
    const float t = tanhf(kInner * (x + 0.044715f * x * x * x));
    return {0.5f * x * (1.0f + t),
            0.5f * (1.0f + t) + 0.5f * x * (1.0f - t * t) * kInner * (1.0f + 3 * 0.044715f * x * x)};
  } else if constexpr (kKind == kQuickGeluId) {
    const float s = 1.0f / (1.0f + expf(-kQuickGeluSlope * x));
    return {x * s, s * (1.0f + kQuickGeluSlope * x * (1.0f - s))};
  } else if constexpr (kKind == kSquaredReluId) {
    const float y = x < 0.0f ? 0.0f : x;
    return {y * y, 2.0f * y};
  } else if constexpr (kKind == kSigmoidId) {
    const float s = 1.0f / (1.0f + expf(-x));
    return {s, s * (1.0f - s)};
  } else {
    // A NaN stays one.
    return {x < 0.0f ? 0.0f : x, x > 0.0f ? 1.0f : 0.0f};
  }
}

// Runs body(row, first column) for every pack.
template <typename Body>
__device__ void for_each_pack(int64_t rows, int64_t cols, const Body& body) {
  const int64_t packs = (cols + kPack - 1) / kPack;
  const int64_t step = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < rows * packs; i += step) {
    body(i / packs, i % packs * kPack);
  }
}

// The clamped SwiGLU of pairs: x sigmoid(1.702 x) up to the limit, and the factor beside it.
__device__ Slope clamped_gate(float x) {
  const float g = x > kSwigluLimit ? kSwigluLimit : x;
  const float s = 1.0f / (1.0f + expf(-kSwigluSlope * g));
  return {g * s, x > kSwigluLimit ? 0.0f : s * (1.0f + kSwigluSlope * g * (1.0f - s))};
}
__device__ Slope clamped_up(float x) {
  const float below = x > kSwigluLimit ? kSwigluLimit : x;
  const float within = below < -kSwigluLimit ? -kSwigluLimit : below;
  return {within + 1.0f, x > kSwigluLimit || x < -kSwigluLimit ? 0.0f : 1.0f};
}

// Runs body(row, column) for every column of the output.
template <typename Body>
__device__ void for_each_pair(int64_t rows, int64_t cols, const Body& body) {
  const int64_t step = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < rows * cols; i += step)
    body(i / cols, i % cols);
}

template <typename T>
__global__ void forward_pairs_kernel(ActivationForward a) {
  for_each_pair(a.rows, a.cols, [&](int64_t r, int64_t j) {
    const T* x = row_of<T>(a.x, r) + 2 * j;
    store(row_of<T>(a.out, r) + j, clamped_gate(to_float(x[0])).value * clamped_up(to_float(x[1])).value);
  });
}

// dx may be x: a thread reads what it overwrites first.
template <typename T>
__global__ void backward_pairs_kernel(ActivationBackward a) {
  for_each_pair(a.rows, a.cols, [&](int64_t r, int64_t j) {
    const T* x = row_of<T>(a.x, r) + 2 * j;
    T* dx = row_of<T>(a.dx, r) + 2 * j;
    const float grad = to_float(row_of<T>(a.dout, r)[j]);
    const Slope gate = clamped_gate(to_float(x[0])), up = clamped_up(to_float(x[1]));
    store(dx, grad * up.value * gate.slope);
    store(dx + 1, grad * gate.value * up.slope);
    if (a.out.data != nullptr) store(row_of<T>(a.out, r) + j, gate.value * up.value);
  });
}

template <typename T, ActivationId kKind>
__global__ void forward_kernel(ActivationForward a, bool aligned) {
  for_each_pack(a.rows, a.cols, [&](int64_t r, int64_t j) {
    const int64_t left = a.cols - j;
    const T* x = row_of<T>(a.x, r) + j;
    Pack gate = load_pack(x, left, aligned);
    for (int k = 0; k < kPack; ++k) gate.v[k] = act<kKind>(gate.v[k]).value;
    if (a.gated) {
      const Pack up = load_pack(x + a.cols, left, aligned);
      for (int k = 0; k < kPack; ++k) gate.v[k] *= up.v[k];
    }
    store_pack(row_of<T>(a.out, r) + j, gate, left, aligned);
  });
}

// dx may be x: a thread reads what it overwrites first.
template <typename T, ActivationId kKind>
__global__ void backward_kernel(ActivationBackward a, bool aligned) {
  for_each_pack(a.rows, a.cols, [&](int64_t r, int64_t j) {
    const int64_t left = a.cols - j;
    const T* x = row_of<T>(a.x, r) + j;
    T* dx = row_of<T>(a.dx, r) + j;
    const Pack grad = load_pack(row_of<T>(a.dout, r) + j, left, aligned);
    const Pack gate = load_pack(x, left, aligned);
    Pack up, by_gate, by_up, out;
    if (a.gated) up = load_pack(x + a.cols, left, aligned);
    for (int k = 0; k < kPack; ++k) {
      const Slope s = act<kKind>(gate.v[k]);
      const float factor = a.gated ? up.v[k] : 1.0f;
      by_gate.v[k] = grad.v[k] * factor * s.slope;
      by_up.v[k] = grad.v[k] * s.value;
      out.v[k] = s.value * factor;
    }
    store_pack(dx, by_gate, left, aligned);
    if (a.gated) store_pack(dx + a.cols, by_up, left, aligned);
    if (a.out.data != nullptr) store_pack(row_of<T>(a.out, r) + j, out, left, aligned);
  });
}

unsigned blocks_for(int64_t rows, int64_t cols) {
  return static_cast<unsigned>(std::min(kMaxBlocks, ceil_div(rows * ceil_div(cols, kPack), kThreads)));
}

// Calls body with the kind as a constant.
template <typename Body>
void with_kind(ActivationId kind, const Body& body) {
  switch (kind) {
    case kSiluId: return body(std::integral_constant<ActivationId, kSiluId>());
    case kGeluId: return body(std::integral_constant<ActivationId, kGeluId>());
    case kGeluTanhId: return body(std::integral_constant<ActivationId, kGeluTanhId>());
    case kQuickGeluId: return body(std::integral_constant<ActivationId, kQuickGeluId>());
    case kReluId: return body(std::integral_constant<ActivationId, kReluId>());
    case kSquaredReluId: return body(std::integral_constant<ActivationId, kSquaredReluId>());
    case kSigmoidId: return body(std::integral_constant<ActivationId, kSigmoidId>());
    case kClampedSwigluId: return;  // has kernels of its own
  }
}

template <typename T>
bool second_half_aligned(bool gated, int64_t cols) {
  return !gated || cols * static_cast<int64_t>(sizeof(T)) % 16 == 0;
}

template <typename T>
void forward(const ActivationForward& a) {
  if (a.rows == 0 || a.cols == 0) return;
  const bool aligned = aligned_rows<T>(a.x.data, a.x.stride) && aligned_rows<T>(a.out.data, a.out.stride) &&
                       second_half_aligned<T>(a.gated, a.cols);
  if (a.kind == kClampedSwigluId)
    launch_kernel(forward_pairs_kernel<T>, blocks_for(a.rows, a.cols), kThreads, a);
  with_kind(a.kind, [&](auto kind) {
    launch_kernel(forward_kernel<T, kind>, blocks_for(a.rows, a.cols), kThreads, a, aligned);
  });
  check_launch("activation_forward");
}

template <typename T>
void backward(const ActivationBackward& a) {
  if (a.rows == 0 || a.cols == 0) return;
  const bool aligned = aligned_rows<T>(a.x.data, a.x.stride) && aligned_rows<T>(a.dx.data, a.dx.stride) &&
                       aligned_rows<T>(a.dout.data, a.dout.stride) &&
                       aligned_rows<T>(a.out.data, a.out.stride) && second_half_aligned<T>(a.gated, a.cols);
  if (a.kind == kClampedSwigluId)
    launch_kernel(backward_pairs_kernel<T>, blocks_for(a.rows, a.cols), kThreads, a);
  with_kind(a.kind, [&](auto kind) {
    launch_kernel(backward_kernel<T, kind>, blocks_for(a.rows, a.cols), kThreads, a, aligned);
  });
  check_launch("activation_backward");
}

}  // namespace

const ActivationKernels activation_table = {{forward<float>, forward<BFloat16>},
                                            {backward<float>, backward<BFloat16>}};

}  // namespace troupe::kernels::cuda
