// CUDA's language for a C++ compiler, as far as kernels/cuda speaks it: included ahead of everything else.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "cuda_on_host/grid.h"

// Blocks run one after the other, so that one array does for the shared memory of all.
#define __global__
#define __device__
#define __host__
#define __shared__ static
#define __align__(bytes) __attribute__((aligned(bytes)))
#define __launch_bounds__(threads)

struct dim3 : troupe::test::cuda_on_host::Extent {
  constexpr dim3(unsigned along_x = 1, unsigned along_y = 1, unsigned along_z = 1)
      : Extent{along_x, along_y, along_z} {}
};

#define threadIdx (troupe::test::cuda_on_host::running.thread)
#define blockIdx (troupe::test::cuda_on_host::running.block)
#define blockDim (troupe::test::cuda_on_host::running.grid.threads)
#define gridDim (troupe::test::cuda_on_host::running.grid.blocks)

// Loads of 8 and 16 bytes, which a GPU refuses off their boundaries: so does the sanitizer for alignment.
struct alignas(8) float2 {
  float x, y;
};
struct alignas(16) float4 {
  float x, y, z, w;
};
struct alignas(16) uint4 {
  unsigned x, y, z, w;
};
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) {
  return {x, y, z, w};
}

inline void __syncthreads() {
  troupe::test::cuda_on_host::wait_for_block();
}
inline void __syncwarp() {
  troupe::test::cuda_on_host::wait_for_warp();
}

// Of all lanes, which is how they are called. `from` is taken of the lane that reads.
template <typename T>
T shuffle_from(T value, unsigned from) {
  static_assert(std::is_arithmetic_v<T> && sizeof(T) <= sizeof(uint64_t));
  uint64_t word = 0;
  std::memcpy(&word, &value, sizeof(T));
  std::memcpy(&value, troupe::test::cuda_on_host::exchange(word) + from, sizeof(T));
  return value;
}
template <typename T>
T __shfl_sync(unsigned, T value, int lane) {
  return shuffle_from(value, static_cast<unsigned>(lane) % troupe::test::cuda_on_host::kWarpSize);
}
template <typename T>
T __shfl_xor_sync(unsigned, T value, int mask) {
  return shuffle_from(value, troupe::test::cuda_on_host::lane() ^ static_cast<unsigned>(mask));
}
template <typename T>
T __shfl_up_sync(unsigned, T value, int delta) {
  const unsigned lane = troupe::test::cuda_on_host::lane(), by = static_cast<unsigned>(delta);
  return shuffle_from(value, lane < by ? lane : lane - by);
}

// One thread runs at a time.
inline int32_t atomicAdd(int32_t* value, int32_t n) {
  const int32_t before = *value;
  *value += n;
  return before;
}
inline int32_t atomicMin(int32_t* value, int32_t other) {
  const int32_t before = *value;
  if (other < before) *value = other;
  return before;
}

template <typename A, typename B>
constexpr std::common_type_t<A, B> min(A a, B b) {
  return b < a ? b : a;
}
template <typename A, typename B>
constexpr std::common_type_t<A, B> max(A a, B b) {
  return a < b ? b : a;
}

inline float __expf(float x) {
  return std::exp(x);
}
inline unsigned __float_as_uint(float x) {
  return std::bit_cast<unsigned>(x);
}

using cudaError_t = const char*;  // null: none
inline constexpr cudaError_t cudaSuccess = nullptr;
cudaError_t cudaGetLastError();
inline const char* cudaGetErrorString(cudaError_t error) {
  return error;
}
