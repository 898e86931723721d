// Rows picked by index: gathered with a scale, added up, multiplied with each other.
#include "kernels/cpu/chosen_rows_kernels.h"
#include "kernels/cpu/vector_math.h"

namespace troupe::kernels::TROUPE_ISA {

namespace {

constexpr int64_t kBlock = 256;  // columns whose sums stay in the first-level cache
constexpr int64_t kSums = 16;    // of a dot product, side by side

template <typename T>
const T* row_of(ConstRows rows, int64_t row) {
  return static_cast<const T*>(rows.data) + row * rows.stride;
}

template <typename T>
void gather(ConstRows source, const int64_t* index, const float* scale, int64_t rows, int64_t cols,
            Rows target) {
  for (int64_t r = 0; r < rows; ++r) {
    const T* from = row_of<T>(source, index != nullptr ? index[r] : r);
    T* to = static_cast<T*>(target.data) + r * target.stride;
    if (scale == nullptr) {
      __builtin_memcpy(to, from, static_cast<uint64_t>(cols) * sizeof(T));
      continue;
    }
    const float by = scale[r];
#pragma omp simd
    for (int64_t c = 0; c < cols; ++c) store(to + c, by * load(from + c));
  }
}

template <typename T>
void sum(ConstRows source, const int64_t* index, const float* weights, int64_t count, int64_t rows,
         int64_t cols, Rows target) {
  alignas(64) float sums[kBlock];
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t first = 0; first < cols; first += kBlock) {
      const int64_t there = cols - first < kBlock ? cols - first : kBlock;
      for (int64_t i = 0; i < count; ++i) {
        const T* from = row_of<T>(source, index[r * count + i]) + first;
        const float by = weights != nullptr ? weights[r * count + i] : 1.0f;
        if (i == 0) {
#pragma omp simd
          for (int64_t c = 0; c < there; ++c) sums[c] = by * load(from + c);
        } else {
#pragma omp simd
          for (int64_t c = 0; c < there; ++c) sums[c] += by * load(from + c);
        }
      }
      T* to = static_cast<T*>(target.data) + r * target.stride + first;
#pragma omp simd
      for (int64_t c = 0; c < there; ++c) store(to + c, sums[c]);
    }
  }
}

template <typename T>
void dot(ConstRows a, ConstRows b, int64_t rows, int64_t cols, float* out) {
  for (int64_t r = 0; r < rows; ++r) {
    const T* left = row_of<T>(a, r);
    const T* right = row_of<T>(b, r);
    float sums[kSums] = {};
    int64_t c = 0;
    for (; c + kSums <= cols; c += kSums) {
#pragma omp simd
      for (int64_t i = 0; i < kSums; ++i) sums[i] += load(left + c + i) * load(right + c + i);
    }
    for (int64_t i = 0; c + i < cols; ++i) sums[i] += load(left + c + i) * load(right + c + i);
    for (int64_t half = kSums / 2; half > 0; half /= 2) {
      for (int64_t i = 0; i < half; ++i) sums[i] += sums[i + half];
    }
    out[r] = sums[0];
  }
}

}  // namespace

extern const ChosenRowKernels chosen_row_table;
const ChosenRowKernels chosen_row_table = {
    {gather<float>, gather<BFloat16>}, {sum<float>, sum<BFloat16>}, {dot<float>, dot<BFloat16>}};

}  // namespace troupe::kernels::TROUPE_ISA
