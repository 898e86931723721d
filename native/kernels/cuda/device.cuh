// What the CUDA kernels share: reductions, conversions, launches.
#pragma once

#include <c10/cuda/CUDACachingAllocator.h>
#include <cuda_bf16.h>

#include <algorithm>
#include <cstdint>

#include "base/error.h"
#include "kernels/cpu/row_kernels.h"
#include "kernels/cuda/launch.cuh"

// What the kernels have in common: arithmetic in float32 on arrays of float32 or bfloat16.
namespace troupe::kernels::cuda {

using BFloat16 = __nv_bfloat16;

constexpr int kWarp = 32;
constexpr unsigned kAllLanes = 0xffffffffu;
// Elements that a thread takes at a time: 16 bytes of bfloat16, 32 of float32.
constexpr int kPack = 8;

// ---- device ----

__device__ inline float to_float(float x) {
  return x;
}
__device__ inline float to_float(BFloat16 x) {
  return __bfloat162float(x);
}
__device__ inline void store(float* p, float x) {
  *p = x;
}
__device__ inline void store(BFloat16* p, float x) {
  *p = __float2bfloat16_rn(x);
}

struct alignas(16) Pack {
  float v[kPack];
};

// Elements [0, min(left, kPack)) at p, zeros behind. The order in which a thread meets the elements of a row
// does not depend on `aligned` (p on a 16-byte boundary), so sums over them do not either.
__device__ inline Pack load_pack(const float* p, int64_t left, bool aligned) {
  Pack pack;
  if (aligned && left >= kPack) {
    *reinterpret_cast<float4*>(pack.v) = reinterpret_cast<const float4*>(p)[0];
    *reinterpret_cast<float4*>(pack.v + 4) = reinterpret_cast<const float4*>(p)[1];
    return pack;
  }
#pragma unroll
  for (int k = 0; k < kPack; ++k) pack.v[k] = k < left ? p[k] : 0.0f;
  return pack;
}
__device__ inline Pack load_pack(const BFloat16* p, int64_t left, bool aligned) {
  Pack pack;
  if (aligned && left >= kPack) {
    const uint4 bits = *reinterpret_cast<const uint4*>(p);
    const auto* pairs = reinterpret_cast<const __nv_bfloat162*>(&bits);
#pragma unroll
    for (int k = 0; k < kPack / 2; ++k) {
      const float2 pair = __bfloat1622float2(pairs[k]);
      pack.v[2 * k] = pair.x;
      pack.v[2 * k + 1] = pair.y;
    }
    return pack;
  }
#pragma unroll
  for (int k = 0; k < kPack; ++k) pack.v[k] = k < left ? to_float(p[k]) : 0.0f;
  return pack;
}

__device__ inline void store_pack(float* p, const Pack& pack, int64_t left, bool aligned) {
  if (aligned && left >= kPack) {
    reinterpret_cast<float4*>(p)[0] = *reinterpret_cast<const float4*>(pack.v);
    reinterpret_cast<float4*>(p)[1] = *reinterpret_cast<const float4*>(pack.v + 4);
    return;
  }
#pragma unroll
  for (int k = 0; k < kPack; ++k) {
    if (k < left) p[k] = pack.v[k];
  }
}
__device__ inline void store_pack(BFloat16* p, const Pack& pack, int64_t left, bool aligned) {
  if (aligned && left >= kPack) {
    uint4 bits;
    auto* pairs = reinterpret_cast<__nv_bfloat162*>(&bits);
#pragma unroll
    for (int k = 0; k < kPack / 2; ++k) {
      pairs[k] = __floats2bfloat162_rn(pack.v[2 * k], pack.v[2 * k + 1]);
    }
    *reinterpret_cast<uint4*>(p) = bits;
    return;
  }
#pragma unroll
  for (int k = 0; k < kPack; ++k) {
    if (k < left) store(p + k, pack.v[k]);
  }
}

template <typename T>
__device__ const T* row_of(const ConstRows& rows, int64_t r) {
  return static_cast<const T*>(rows.data) + r * rows.stride;
}
template <typename T>
__device__ T* row_of(const Rows& rows, int64_t r) {
  return static_cast<T*>(rows.data) + r * rows.stride;
}

template <typename Value>
__device__ Value warp_sum(Value value) {
#pragma unroll
  for (int offset = kWarp / 2; offset > 0; offset /= 2) value += __shfl_xor_sync(kAllLanes, value, offset);
  return value;
}

// Combines one value of every thread of the block (whole warps) in a fixed order; all threads get the result.
template <typename Value, typename Combine>
__device__ Value block_reduce(Value value, const Combine& combine) {
  __shared__ Value parts[kWarp];
#pragma unroll
  for (int offset = kWarp / 2; offset > 0; offset /= 2) {
    value = combine(value, __shfl_xor_sync(kAllLanes, value, offset));
  }
  __syncthreads();  // someone may still read the parts of an earlier call
  if (threadIdx.x % kWarp == 0) parts[threadIdx.x / kWarp] = value;
  __syncthreads();
  value = parts[0];
  for (unsigned warp = 1; warp < blockDim.x / kWarp; ++warp) value = combine(value, parts[warp]);
  return value;
}
template <typename Value>
__device__ Value block_sum(Value value) {
  return block_reduce(value, [](Value a, Value b) { return a + b; });
}

// ---- host ----

inline void check_launch(const char* op) {
  const cudaError_t status = cudaGetLastError();
  require(status == cudaSuccess, ErrorCode::kInternal, "[kernels] ", op, ": ", cudaGetErrorString(status));
}

inline int64_t ceil_div(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}

// Threads for one row of `cols`: a pack each, in whole warps.
inline unsigned row_threads(int64_t cols, int64_t limit) {
  const int64_t warps = ceil_div(ceil_div(cols, kPack), kWarp);
  return static_cast<unsigned>(std::clamp<int64_t>(warps * kWarp, kWarp, limit));
}

// Every row of the array starts on a 16-byte boundary (true for absent arrays).
template <typename T>
bool aligned_rows(const void* data, int64_t stride) {
  return reinterpret_cast<uintptr_t>(data) % 16 == 0 && stride * static_cast<int64_t>(sizeof(T)) % 16 == 0;
}

// Device memory of `count` floats for work on the current stream.
inline c10::DataPtr scratch(int64_t count) {
  return c10::cuda::CUDACachingAllocator::get()->allocate(static_cast<size_t>(count) * sizeof(float));
}

// Sums of columns in two steps: blocks of (kWarp columns) x kColumnLanes threads sum strips of the rows into
// partial [strips, cols], then add_columns adds these to the result.
constexpr int kColumnLanes = 8;

inline int64_t column_strips(int64_t rows, int64_t limit) {
  return std::clamp<int64_t>(rows / (16 * kColumnLanes), 1, limit);
}

// The sum of `value` over the lanes of one column of a kWarp x kColumnLanes block; valid in lane 0.
__device__ inline float lane_sum(float value) {
  __shared__ float parts[kColumnLanes][kWarp];
  __syncthreads();
  parts[threadIdx.y][threadIdx.x] = value;
  __syncthreads();
  float sum = 0;
  for (int lane = 0; lane < kColumnLanes; ++lane) sum += parts[lane][threadIdx.x];
  return sum;
}

// result [cols] += sum of partial [strips, cols] over the strips.
void add_columns(const float* partial, int64_t strips, int64_t cols, float* result);

}  // namespace troupe::kernels::cuda
