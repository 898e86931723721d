// Depthwise causal convolution, with a silu behind it or without, forward and backward.
#include "kernels/cpu/gated_delta_kernels.h"
#include "kernels/cpu/vector_math.h"

namespace troupe::kernels::TROUPE_ISA {

namespace {

static_assert(kConvWidth == 4, "the sums below have four terms and a bias");

template <typename T>
TROUPE_INLINE float sum_at(const T* const* taps, const float* weight, int64_t cols, int64_t c) {
  float sum = weight[c] * load(taps[0] + c);
  sum += weight[cols + c] * load(taps[1] + c);
  sum += weight[2 * cols + c] * load(taps[2] + c);
  sum += weight[3 * cols + c] * load(taps[3] + c);
  return sum + weight[4 * cols + c];
}

template <typename T, bool kSilu>
void forward_rows(const ConvForward& a) {
  for (int64_t r = 0; r < a.rows; ++r) {
    const T* const taps[kConvWidth] = {
        static_cast<const T*>(a.taps[r * kConvWidth]), static_cast<const T*>(a.taps[r * kConvWidth + 1]),
        static_cast<const T*>(a.taps[r * kConvWidth + 2]), static_cast<const T*>(a.taps[r * kConvWidth + 3])};
    T* out = static_cast<T*>(a.out.data) + r * a.out.stride;
#pragma omp simd
    for (int64_t c = 0; c < a.cols; ++c) {
      const float sum = sum_at(taps, a.weight, a.cols, c);
      store(out + c, kSilu ? sum * vector_sigmoid(sum) : sum);
    }
  }
}

template <typename T>
void forward(const ConvForward& a) {
  a.silu ? forward_rows<T, true>(a) : forward_rows<T, false>(a);
}

template <bool kSilu>
TROUPE_INLINE float sum_gradient(float sum, float dout) {
  if constexpr (!kSilu) return dout;
  const float s = vector_sigmoid(sum);
  return dout * s * (1.0f + sum * (1.0f - s));
}

template <typename T, bool kSilu>
void backward_rows(const ConvBackward& a) {
  const int64_t cols = a.cols;
  float* dweight = a.dweight;
  for (int64_t r = 0; r < a.rows; ++r) {
    const T* const taps[kConvWidth] = {
        static_cast<const T*>(a.taps[r * kConvWidth]), static_cast<const T*>(a.taps[r * kConvWidth + 1]),
        static_cast<const T*>(a.taps[r * kConvWidth + 2]), static_cast<const T*>(a.taps[r * kConvWidth + 3])};
    const float* dout = a.dout + r * a.dout_stride;
    float* dsum = a.dsum + r * cols;
#pragma omp simd
    for (int64_t c = 0; c < cols; ++c) {
      const float gradient = sum_gradient<kSilu>(sum_at(taps, a.weight, cols, c), dout[c]);
      dsum[c] = gradient;
      dweight[c] += gradient * load(taps[0] + c);
      dweight[cols + c] += gradient * load(taps[1] + c);
      dweight[2 * cols + c] += gradient * load(taps[2] + c);
      dweight[3 * cols + c] += gradient * load(taps[3] + c);
      dweight[4 * cols + c] += gradient;
    }
  }
}

template <typename T>
void backward(const ConvBackward& a) {
  a.silu ? backward_rows<T, true>(a) : backward_rows<T, false>(a);
}

template <typename T>
void backward_input(const ConvInput& a) {
  constexpr int64_t kBlock = 256;  // columns whose sums stay in the first-level cache
  alignas(64) float sums[kBlock];
  for (int64_t first = 0; first < a.cols; first += kBlock) {
    const int64_t there = a.cols - first < kBlock ? a.cols - first : kBlock;
    for (int64_t c = 0; c < there; ++c) sums[c] = 0;
    for (int64_t i = 0; i < a.count; ++i) {
      const float* dsum = a.dsum[i] + first;
      const float* weight = a.weight + a.tap[i] * a.cols + first;
#pragma omp simd
      for (int64_t c = 0; c < there; ++c) sums[c] += weight[c] * dsum[c];
    }
    T* dx = static_cast<T*>(a.dx) + first;
#pragma omp simd
    for (int64_t c = 0; c < there; ++c) store(dx + c, sums[c]);
  }
}

}  // namespace

extern const ConvKernels conv_table;
const ConvKernels conv_table = {{forward<float>, forward<BFloat16>},
                                {backward<float>, backward<BFloat16>},
                                {backward_input<float>, backward_input<BFloat16>}};

}  // namespace troupe::kernels::TROUPE_ISA
