// Maxima and sums of blocks of logits.
#include "kernels/cpu/logit_blocks_kernels.h"
#include "kernels/cpu/vector_math.h"

namespace troupe::kernels::TROUPE_ISA {

namespace {

// Sums and maxima run in lanes of their own over a block, so that their order is fixed by the source
// and not by how the compiler vectorises a reduction.
constexpr int kBlock = static_cast<int>(kLogitBlock);
constexpr int kLanes = 16;

// Short blocks are filled up with -infinity, of weight 0.
inline const float* whole_block(const float* x, int64_t n, int64_t begin, float* copy) {
  if (begin + kBlock <= n) return x + begin;
  for (int j = 0; j < kBlock; ++j) copy[j] = begin + j < n ? x[begin + j] : -__builtin_inff();
  return copy;
}

float block_max(const float* logits, int64_t n, float* maxima) {
  float tail[kBlock];
  float top = -__builtin_inff();
  int bad[kLanes] = {};
  for (int64_t begin = 0; begin < n; begin += kBlock) {
    const float* block = whole_block(logits, n, begin, tail);
    float lane[kLanes];
    for (int j = 0; j < kLanes; ++j) lane[j] = -__builtin_inff();
    for (int i = 0; i < kBlock; i += kLanes) {
#pragma omp simd
      for (int j = 0; j < kLanes; ++j) {
        lane[j] = block[i + j] > lane[j] ? block[i + j] : lane[j];
        bad[j] |= block[i + j] < __builtin_inff() ? 0 : 1;
      }
    }
    for (int half = kLanes / 2; half > 0; half /= 2) {
      for (int j = 0; j < half; ++j) lane[j] = lane[j + half] > lane[j] ? lane[j + half] : lane[j];
    }
    maxima[begin / kBlock] = lane[0];
    top = lane[0] > top ? lane[0] : top;
  }
  int any = 0;
  for (int j = 0; j < kLanes; ++j) any |= bad[j];
  return any ? __builtin_nanf("") : top;
}

double block_sums(const float* logits, int64_t n, float max, float inv_temperature, double* sums) {
  float tail[kBlock];
  double total = 0;
  for (int64_t begin = 0; begin < n; begin += kBlock) {
    const float* block = whole_block(logits, n, begin, tail);
    double lane[kLanes] = {};
    for (int i = 0; i < kBlock; i += kLanes) {
#pragma omp simd
      for (int j = 0; j < kLanes; ++j) {
        lane[j] += static_cast<double>(vector_exp((block[i + j] - max) * inv_temperature));
      }
    }
    for (int half = kLanes / 2; half > 0; half /= 2) {
      for (int j = 0; j < half; ++j) lane[j] += lane[j + half];
    }
    sums[begin / kBlock] = lane[0];
    total += lane[0];
  }
  return total;
}

void weights(const float* x, int64_t n, float max, float inv_temperature, float* out) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) out[i] = vector_exp((x[i] - max) * inv_temperature);
}

}  // namespace

extern const LogitBlockKernels logit_block_table;
const LogitBlockKernels logit_block_table = {block_max, block_sums, weights};

}  // namespace troupe::kernels::TROUPE_ISA
