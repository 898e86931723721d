// RMSNorm and LayerNorm, forward and backward.
#include "kernels/cpu/row_access.h"

// RMSNorm and LayerNorm over rows. RMSNorm is the case mean = 0.
namespace troupe::kernels::TROUPE_ISA {

namespace {

template <typename T>
void forward(const NormForward& a) {
  const int64_t cols = a.norm.cols;
  const float count = static_cast<float>(cols);
  const float offset = a.norm.weight_offset;
  const T* weight = static_cast<const T*>(a.weight);
  const T* bias = static_cast<const T*>(a.bias);
  for (int64_t r = 0; r < a.norm.rows; ++r) {
    const T* x = row_of<T>(a.x, r);
    T* y = row_of<T>(a.y, r);
    const float mean =
        a.norm.layer_norm ? sum_of(cols, [&](int64_t j) { return load(x + j); }) / count : 0.0f;
    const float squares = sum_of(cols, [&](int64_t j) {
      const float centered = load(x + j) - mean;
      return centered * centered;
    });
    const float rstd = 1.0f / __builtin_sqrtf(squares / count + a.norm.eps);
    if (a.rstd != nullptr) a.rstd[r] = rstd;
    if (a.mean != nullptr) a.mean[r] = mean;
    if (bias != nullptr) {
#pragma omp simd
      for (int64_t j = 0; j < cols; ++j) {
        store(y + j, (load(x + j) - mean) * rstd * (load(weight + j) + offset) + load(bias + j));
      }
    } else {
#pragma omp simd
      for (int64_t j = 0; j < cols; ++j) {
        store(y + j, (load(x + j) - mean) * rstd * (load(weight + j) + offset));
      }
    }
  }
}

// With xhat = (x - mean) rstd and g = dy * scale:
//   dx = rstd (g - xhat mean(g xhat) - mean(g)),  the last term for LayerNorm only.
template <typename T, bool kLayer, bool kAccumulate, bool kWeightGrad>
void backward_rows(const NormBackward& a) {
  const int64_t cols = a.norm.cols;
  const float count = static_cast<float>(cols);
  const float offset = a.norm.weight_offset;
  const T* weight = static_cast<const T*>(a.weight);
  float* dweight = a.dweight;
  for (int64_t r = 0; r < a.norm.rows; ++r) {
    const T* dy = row_of<T>(a.dy, r);
    const T* x = row_of<T>(a.x, r);
    T* dx = row_of<T>(a.dx, r);
    const float rstd = a.rstd[r];
    const float mean = kLayer ? a.mean[r] : 0.0f;
    const float projection =
        sum_of(cols,
               [&](int64_t j) { return load(dy + j) * (load(weight + j) + offset) * (load(x + j) - mean); }) *
        rstd / count;
    const float shift =
        kLayer ? sum_of(cols, [&](int64_t j) { return load(dy + j) * (load(weight + j) + offset); }) / count
               : 0.0f;
    if (a.dbias != nullptr) {
      float* dbias = a.dbias;
#pragma omp simd
      for (int64_t j = 0; j < cols; ++j) dbias[j] += load(dy + j);
    }
#pragma omp simd
    for (int64_t j = 0; j < cols; ++j) {
      const float grad = load(dy + j);
      const float normalised = (load(x + j) - mean) * rstd;
      if (kWeightGrad) dweight[j] += grad * normalised;
      const float gradient = rstd * (grad * (load(weight + j) + offset) - normalised * projection - shift);
      store(dx + j, kAccumulate ? load(dx + j) + gradient : gradient);
    }
  }
}

template <typename T, bool kLayer>
void backward_kind(const NormBackward& a) {
  if (a.accumulate) {
    a.dweight != nullptr ? backward_rows<T, kLayer, true, true>(a) : backward_rows<T, kLayer, true, false>(a);
  } else {
    a.dweight != nullptr ? backward_rows<T, kLayer, false, true>(a)
                         : backward_rows<T, kLayer, false, false>(a);
  }
}

template <typename T>
void backward(const NormBackward& a) {
  a.norm.layer_norm ? backward_kind<T, true>(a) : backward_kind<T, false>(a);
}

}  // namespace

extern const NormKernels norm_table;
const NormKernels norm_table = {{forward<float>, forward<BFloat16>}, {backward<float>, backward<BFloat16>}};

}  // namespace troupe::kernels::TROUPE_ISA
