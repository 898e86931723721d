// Passes over rows of logits: statistics, gradients, combination of shards.
#include <cfloat>

#include "kernels/cuda/device.cuh"
#include "kernels/cuda/linear_log_prob.h"

// One pass over a row of logits for the maximum, the sums and the target; one more, backwards, that leaves
// the gradient where the logits were.
namespace troupe::kernels::cuda {

namespace {

constexpr int kThreads = 512;

// softcap(raw) / temperature; `tanh` for the slope.
struct Logit {
  float z, tanh;
};
template <bool kSoftcap>
__device__ Logit transformed(const LogitRows& a, float raw) {
  if constexpr (kSoftcap) {
    const float t = tanhf(raw / a.softcap);
    return {t * a.softcap * a.inv_temperature, t};
  } else {
    return {raw * a.inv_temperature, 0};
  }
}

// Sums over the logits that a thread has met, relative to the largest of them.
struct Sums {
  float top = -FLT_MAX;  // not -inf: differences must not become NaN
  float sum = 0;         // of exp(z - top)
  float weighted = 0;    // of (z - top) exp(z - top)
  float squares = 0;     // of exp(2 (z - top))

  __device__ void rescale(float higher) {
    if (sum != 0.0f) {
      const float shift = top - higher;
      const float factor = __expf(shift);
      // Below the smallest float nothing is left, whatever the shift: -inf * 0 must not become NaN.
      weighted = factor > 0.0f ? factor * (weighted + shift * sum) : 0.0f;
      sum *= factor;
      squares *= factor * factor;
    }
    top = higher;
  }
  __device__ void add(float z) {
    const float shifted = z - top;
    const float e = __expf(shifted);
    sum += e;
    weighted += e > 0.0f ? shifted * e : 0.0f;
    squares += e * e;
  }
};

__device__ void write_outputs(const RowSums& sums, int64_t r, const LogitStats& out) {
  const RowOutputs row = outputs_of(sums);
  out.log_probs[r] = static_cast<float>(row.log_prob);
  out.lse[r] = static_cast<float>(row.lse);
  if (out.entropy != nullptr) out.entropy[r] = static_cast<float>(row.entropy);
  if (out.sum_pi_squared != nullptr) out.sum_pi_squared[r] = static_cast<float>(row.sum_pi_squared);
}

// Into `sums` or, where that is null, into `out`.
template <bool kSoftcap>
__global__ void __launch_bounds__(kThreads) stats_kernel(LogitRows a, LogitStats out, RowSums* sums_out) {
  const int64_t r = blockIdx.x;
  const float* row = a.data + r * a.stride;
  Sums sums;
  for (int64_t j = threadIdx.x * kPack; j < a.vocab; j += kThreads * kPack) {
    const int64_t left = a.vocab - j;
    Pack pack = load_pack(row + j, left, true);
    float top = sums.top;
#pragma unroll
    for (int k = 0; k < kPack; ++k) {
      pack.v[k] = transformed<kSoftcap>(a, pack.v[k]).z;
      if (k < left) top = fmaxf(top, pack.v[k]);
    }
    if (top > sums.top) sums.rescale(top);
#pragma unroll
    for (int k = 0; k < kPack; ++k) {
      if (k < left) sums.add(pack.v[k]);
    }
  }
  const float top = block_reduce(sums.top, [](float x, float y) { return fmaxf(x, y); });
  // In double from here on: it is done once per row, and takes no time that can be measured.
  double factor = 0, shift = 0;
  if (sums.sum != 0.0f) {  // a thread without logits has nothing to add; a NaN must pass
    shift = static_cast<double>(sums.top) - top;
    factor = exp(shift);
  }
  const double sum = block_sum(factor * sums.sum);
  const double weighted =
      block_sum(factor == 0 ? 0.0 : factor * (sums.weighted + shift * static_cast<double>(sums.sum)));
  const double squares = block_sum(factor * factor * sums.squares);
  if (threadIdx.x != 0) return;
  const int64_t column = a.targets[r] - a.first_id;
  const bool here = column >= 0 && column < a.vocab;
  const double target = here ? transformed<kSoftcap>(a, row[column]).z : 0.0;
  const RowSums all{top, sum, weighted, squares, target};
  if (sums_out != nullptr) {
    sums_out[r] = all;
  } else {
    write_outputs(all, r, out);
  }
}

__global__ void combine_kernel(const RowSums* sums, int64_t count, int64_t rows, LogitStats out) {
  const int64_t r = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (r >= rows) return;
  write_outputs(combined(count, [&](int64_t part) { return sums[part * rows + r]; }), r, out);
}

// dz = (g (1[target] - p) - h p (z - lse + H)) / temperature * slope of the softcap.
template <bool kSoftcap, bool kBFloat16>
__global__ void __launch_bounds__(kThreads) gradient_kernel(LogitRows a, LogitGradients by) {
  const int64_t r = blockIdx.x;
  float* row = a.data + r * a.stride;
  const float g = by.grad_log_probs[r];
  const float h = by.grad_entropy != nullptr ? by.grad_entropy[r] : 0.0f;
  const float entropy = by.grad_entropy != nullptr ? by.entropy[r] : 0.0f;
  const float lse = by.lse[r];
  const int64_t target = a.targets[r] - a.first_id;
  // Whole blocks walk together: all threads have read a stretch before its first half is overwritten.
  for (int64_t begin = 0; begin < a.vocab; begin += kThreads * kPack) {
    const int64_t j = begin + threadIdx.x * kPack;
    const int64_t left = a.vocab - j;
    Pack pack;
    if (left > 0) {
      pack = load_pack(row + j, left, true);
#pragma unroll
      for (int k = 0; k < kPack; ++k) {
        const Logit logit = transformed<kSoftcap>(a, pack.v[k]);
        const float log_p = logit.z - lse;
        const float p = __expf(log_p);
        float dz = p == 0.0f ? 0.0f : -p * (g + h * (log_p + entropy));
        if (j + k == target) dz += g;
        pack.v[k] = dz * a.inv_temperature * (1.0f - logit.tanh * logit.tanh);
      }
    }
    if constexpr (kBFloat16) {
      __syncthreads();
      if (left > 0) store_pack(reinterpret_cast<BFloat16*>(row) + j, pack, left, true);
    } else {
      if (left > 0) store_pack(row + j, pack, left, true);
    }
  }
}

void launch_stats(const LogitRows& logits, const LogitStats& out, RowSums* sums) {
  if (logits.rows == 0) return;
  const auto blocks = static_cast<unsigned>(logits.rows);
  if (logits.softcap > 0) {
    launch_kernel(stats_kernel<true>, blocks, kThreads, logits, out, sums);
  } else {
    launch_kernel(stats_kernel<false>, blocks, kThreads, logits, out, sums);
  }
  check_launch("linear_log_prob_forward");
}

}  // namespace

void logit_stats(const LogitRows& logits, const LogitStats& out) {
  launch_stats(logits, out, nullptr);
}

void logit_sums(const LogitRows& logits, RowSums* out) {
  launch_stats(logits, {}, out);
}

void combine_sums(const RowSums* sums, int64_t count, int64_t rows, const LogitStats& out) {
  if (rows == 0) return;
  constexpr int64_t kPerBlock = 128;
  const auto blocks = static_cast<unsigned>((rows + kPerBlock - 1) / kPerBlock);
  launch_kernel(combine_kernel, blocks, kPerBlock, sums, count, rows, out);
  check_launch("linear_log_prob_combine");
}

void logit_gradients(const LogitRows& logits, const LogitGradients& by, bool to_bfloat16) {
  if (logits.rows == 0) return;
  const auto launch = [&](auto softcap, auto bfloat16) {
    launch_kernel(gradient_kernel<softcap, bfloat16>, static_cast<unsigned>(logits.rows), kThreads, logits,
                  by);
  };
  using Yes = std::true_type;
  using No = std::false_type;
  if (logits.softcap > 0) {
    to_bfloat16 ? launch(Yes(), Yes()) : launch(Yes(), No());
  } else {
    to_bfloat16 ? launch(No(), Yes()) : launch(No(), No());
  }
  check_launch("linear_log_prob_backward");
}

}  // namespace troupe::kernels::cuda
