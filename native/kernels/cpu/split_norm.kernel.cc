// RMSNorm over columns of which some are elsewhere, forward and backward.
#include "kernels/cpu/row_access.h"

namespace troupe::kernels::TROUPE_ISA {

namespace {

TROUPE_INLINE float rstd_of(const SplitNormArgs& a, int64_t r) {
  return 1.0f / __builtin_sqrtf(a.squares[r] / a.count + a.eps);
}

template <typename T>
void sums(const SplitNormSums& s) {
  const SplitNormArgs& a = s.norm;
  const T* weight = static_cast<const T*>(a.weight);
  for (int64_t r = 0; r < a.rows; ++r) {
    const T* x = row_of<T>(s.x, r);
    if (s.dy.data == nullptr) {
      s.sums[r] = sum_of(a.cols, [&](int64_t j) { return load(x + j) * load(x + j); });
    } else {
      const T* dy = row_of<T>(s.dy, r);
      s.sums[r] = sum_of(a.cols, [&](int64_t j) {
        return load(dy + j) * (load(weight + j) + a.weight_offset) * load(x + j);
      });
    }
  }
}

template <typename T>
void forward(const SplitNormForward& f) {
  const SplitNormArgs& a = f.norm;
  const T* weight = static_cast<const T*>(a.weight);
  for (int64_t r = 0; r < a.rows; ++r) {
    const T* x = row_of<T>(f.x, r);
    T* y = row_of<T>(f.y, r);
    const float rstd = rstd_of(a, r);
#pragma omp simd
    for (int64_t j = 0; j < a.cols; ++j)
      store(y + j, load(x + j) * rstd * (load(weight + j) + a.weight_offset));
  }
}

template <typename T>
void backward(const SplitNormBackward& b) {
  const SplitNormArgs& a = b.norm;
  const T* weight = static_cast<const T*>(a.weight);
  float* dweight = b.dweight;
  for (int64_t r = 0; r < a.rows; ++r) {
    const T* dy = row_of<T>(b.dy, r);
    const T* x = row_of<T>(b.x, r);
    T* dx = row_of<T>(b.dx, r);
    const float rstd = rstd_of(a, r);
    const float projection = b.products[r] * rstd / a.count;
    if (dweight != nullptr) {
#pragma omp simd
      for (int64_t j = 0; j < a.cols; ++j) dweight[j] += load(dy + j) * (load(x + j) * rstd);
    }
#pragma omp simd
    for (int64_t j = 0; j < a.cols; ++j) {
      const float gradient = load(dy + j) * (load(weight + j) + a.weight_offset);
      store(dx + j, rstd * (gradient - load(x + j) * rstd * projection));
    }
  }
}

}  // namespace

extern const SplitNormKernels split_norm_table;
const SplitNormKernels split_norm_table = {{sums<float>, sums<BFloat16>},
                                           {forward<float>, forward<BFloat16>},
                                           {backward<float>, backward<BFloat16>}};

}  // namespace troupe::kernels::TROUPE_ISA
