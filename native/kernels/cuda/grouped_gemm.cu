// Tiles of products by group: bfloat16 on tensor cores, float32 without.
#include <mma.h>

#include "kernels/cuda/device.cuh"
#include "kernels/cuda/grouped_gemm.h"

// A block computes 128 x 128 numbers of one group's product, in steps of 64 bytes of depth: while it
// multiplies what is in shared memory, its threads hold the next step in registers. A row's sum runs over the
// depth in order, so its bits depend on the row and the matrix alone.
namespace troupe::kernels::cuda {

namespace {

constexpr int kTile = 128;
constexpr int kThreads = 256;
constexpr int kChunkBytes = 16;
constexpr int kPadBytes = 16;                          // against bank conflicts
constexpr int kStageBytes = kTile * (64 + kPadBytes);  // of one operand, in either layout
constexpr int kChunksPerThread = 2;
constexpr int kFragment = 16;
constexpr int kStaged = 20;  // columns of a fragment on its way out, padding included

template <typename T>
constexpr int kChunk = kChunkBytes / static_cast<int>(sizeof(T));
template <typename T>
constexpr int kDepth = 64 / static_cast<int>(sizeof(T));
template <typename T>
constexpr int kPad = kPadBytes / static_cast<int>(sizeof(T));
static_assert(kTile * 64 / kChunkBytes == kChunksPerThread * kThreads);

// An operand of a block's tile from its first row or column on: lines of adjacent elements, zeros beyond.
// kAcross: a line runs along the depth, one for each row (column) of the tile; else a line has the tile's
// columns at one depth.
template <typename T, bool kAcross>
struct Operand {
  static constexpr int kLine = (kAcross ? kDepth<T> : kTile) + kPad<T>;  // in shared memory
  static constexpr int kChunksPerLine = (kAcross ? kDepth<T> : kTile) / kChunk<T>;

  const T* data;
  int64_t stride, lines, cols;
  bool aligned;

  __device__ uint4 chunk(int i, int64_t depth) const {
    int64_t line = i / kChunksPerLine, col = i % kChunksPerLine * kChunk<T>;
    (kAcross ? col : line) += depth;
    uint4 bits = make_uint4(0, 0, 0, 0);
    if (line >= lines || col >= cols) return bits;
    const T* from = data + line * stride + col;
    if (aligned && col + kChunk<T> <= cols) return *reinterpret_cast<const uint4*>(from);
    T* elements = reinterpret_cast<T*>(&bits);
    for (int k = 0; k < kChunk<T>; ++k) {
      if (col + k < cols) elements[k] = from[k];
    }
    return bits;
  }
  __device__ void load(int64_t depth, uint4 (&held)[kChunksPerThread]) const {
#pragma unroll
    for (int k = 0; k < kChunksPerThread; ++k)
      held[k] = chunk(static_cast<int>(threadIdx.x) + k * kThreads, depth);
  }
  __device__ static void put(char* stage, const uint4 (&held)[kChunksPerThread]) {
#pragma unroll
    for (int k = 0; k < kChunksPerThread; ++k) {
      const int i = static_cast<int>(threadIdx.x) + k * kThreads;
      T* to = reinterpret_cast<T*>(stage) + i / kChunksPerLine * kLine + i % kChunksPerLine * kChunk<T>;
      *reinterpret_cast<uint4*>(to) = held[k];
    }
  }
  __device__ static const T* at(const char* stage, int row, int depth) {
    return reinterpret_cast<const T*>(stage) + (kAcross ? row * kLine + depth : depth * kLine + row);
  }
};

// Where a tile goes: rows x cols numbers, stored, or with kAdd added to.
template <typename Out, bool kAdd>
struct Result {
  Out* data;
  int64_t stride, rows, cols;
  bool aligned;

  __device__ void one(int row, int col, float value) const {
    if (row >= rows || col >= cols) return;
    Out* to = data + row * stride + col;
    store(to, kAdd ? to_float(*to) + value : value);
  }
  __device__ void pack(int row, int col, Pack values) const {
    if (row >= rows || col >= cols) return;
    Out* to = data + row * stride + col;
    if constexpr (kAdd) {
      const Pack before = load_pack(to, cols - col, aligned);
#pragma unroll
      for (int k = 0; k < kPack; ++k) values.v[k] += before.v[k];
    }
    store_pack(to, values, cols - col, aligned);
  }
};

// What a block has of its tile.
template <typename T, bool kAAcross, bool kBAcross>
struct Sums;

// Eight warps, each with 64 x 32 numbers of the tile in fragments of 16 x 16.
template <bool kAAcross, bool kBAcross>
struct Sums<BFloat16, kAAcross, kBAcross> {
  using A = Operand<BFloat16, kAAcross>;
  using B = Operand<BFloat16, kBAcross>;
  using Rows = std::conditional_t<kAAcross, nvcuda::wmma::row_major, nvcuda::wmma::col_major>;
  using Cols = std::conditional_t<kBAcross, nvcuda::wmma::col_major, nvcuda::wmma::row_major>;
  template <typename Use, typename... Layout>
  using Fragment = nvcuda::wmma::fragment<Use, kFragment, kFragment, kFragment, Layout...>;
  static constexpr int kDown = 4, kAside = 2;

  Fragment<nvcuda::wmma::accumulator, float> sums[kDown][kAside];

  __device__ static int row(int i) { return static_cast<int>(threadIdx.x) / kWarp % 2 * 64 + i * kFragment; }
  __device__ static int col(int j) { return static_cast<int>(threadIdx.x) / kWarp / 2 * 32 + j * kFragment; }

  __device__ void clear() {
#pragma unroll
    for (int i = 0; i < kDown; ++i) {
#pragma unroll
      for (int j = 0; j < kAside; ++j) nvcuda::wmma::fill_fragment(sums[i][j], 0.0f);
    }
  }
  __device__ void multiply(const char* a, const char* b) {
#pragma unroll
    for (int depth = 0; depth < kDepth<BFloat16>; depth += kFragment) {
      Fragment<nvcuda::wmma::matrix_b, BFloat16, Cols> right[kAside];
#pragma unroll
      for (int j = 0; j < kAside; ++j)
        nvcuda::wmma::load_matrix_sync(right[j], B::at(b, col(j), depth), B::kLine);
#pragma unroll
      for (int i = 0; i < kDown; ++i) {
        Fragment<nvcuda::wmma::matrix_a, BFloat16, Rows> left;
        nvcuda::wmma::load_matrix_sync(left, A::at(a, row(i), depth), A::kLine);
#pragma unroll
        for (int j = 0; j < kAside; ++j) nvcuda::wmma::mma_sync(sums[i][j], left, right[j], sums[i][j]);
      }
    }
  }
  template <typename To>
  __device__ void emit(const To& to, char* memory) const {
    const int lane = static_cast<int>(threadIdx.x) % kWarp;
    float* staged =
        reinterpret_cast<float*>(memory) + static_cast<int>(threadIdx.x) / kWarp * kFragment * kStaged;
#pragma unroll
    for (int i = 0; i < kDown; ++i) {
#pragma unroll
      for (int j = 0; j < kAside; ++j) {
        nvcuda::wmma::store_matrix_sync(staged, sums[i][j], kStaged, nvcuda::wmma::mem_row_major);
        __syncwarp();
        Pack values;
#pragma unroll
        for (int k = 0; k < kPack; ++k) values.v[k] = staged[lane / 2 * kStaged + lane % 2 * kPack + k];
        to.pack(row(i) + lane / 2, col(j) + lane % 2 * kPack, values);
        __syncwarp();
      }
    }
  }
};

// A thread has every 16th row and column.
template <bool kAAcross, bool kBAcross>
struct Sums<float, kAAcross, kBAcross> {
  using A = Operand<float, kAAcross>;
  using B = Operand<float, kBAcross>;
  static constexpr int kSide = 8, kStep = kTile / kSide;

  float sums[kSide][kSide];

  __device__ static int row(int i) { return static_cast<int>(threadIdx.x) / kStep + i * kStep; }
  __device__ static int col(int j) { return static_cast<int>(threadIdx.x) % kStep + j * kStep; }

  __device__ void clear() {
#pragma unroll
    for (int i = 0; i < kSide; ++i) {
#pragma unroll
      for (int j = 0; j < kSide; ++j) sums[i][j] = 0;
    }
  }
  __device__ void multiply(const char* a, const char* b) {
    for (int depth = 0; depth < kDepth<float>; ++depth) {
      float right[kSide];
#pragma unroll
      for (int j = 0; j < kSide; ++j) right[j] = *B::at(b, col(j), depth);
#pragma unroll
      for (int i = 0; i < kSide; ++i) {
        const float left = *A::at(a, row(i), depth);
#pragma unroll
        for (int j = 0; j < kSide; ++j) sums[i][j] += left * right[j];
      }
    }
  }
  template <typename To>
  __device__ void emit(const To& to, char*) const {
#pragma unroll
    for (int i = 0; i < kSide; ++i) {
#pragma unroll
      for (int j = 0; j < kSide; ++j) to.one(row(i), col(j), sums[i][j]);
    }
  }
};

// to (+)= a b over `depth`.
template <typename T, bool kAAcross, bool kBAcross, typename To>
__device__ void tile_product(const Operand<T, kAAcross>& a, const Operand<T, kBAcross>& b, int64_t depth,
                             const To& to, char* memory) {
  const auto stage = [&](int64_t step, int operand) {
    return memory + (step % 2 * 2 + operand) * kStageBytes;
  };
  const int64_t steps = (depth + kDepth<T> - 1) / kDepth<T>;
  Sums<T, kAAcross, kBAcross> sums;
  sums.clear();
  uint4 next_a[kChunksPerThread], next_b[kChunksPerThread];
  a.load(0, next_a);
  b.load(0, next_b);
  for (int64_t step = 0; step < steps; ++step) {
    // Whoever still multiplies the step before reads the other stage.
    a.put(stage(step, 0), next_a);
    b.put(stage(step, 1), next_b);
    __syncthreads();
    if (step + 1 < steps) {
      a.load((step + 1) * kDepth<T>, next_a);
      b.load((step + 1) * kDepth<T>, next_b);
    }
    sums.multiply(stage(step, 0), stage(step, 1));
  }
  __syncthreads();
  sums.emit(to, memory);
}

struct Products {
  const void* x;
  const void* weights;
  void* y;
  const int32_t* starts;
  int groups;
  int64_t depth, cols, x_stride, y_stride;
  int64_t group_stride, line_stride;  // of the weights
  bool x_aligned, weights_aligned, y_aligned;
};

// Tile number `tile` of all groups' tiles of rows: its group, first row, and the group's end; -1 behind the
// last.
__device__ void find_tile(const int32_t* starts, int groups, int tile, int (&found)[3]) {
  if (threadIdx.x < kWarp) {
    const int lane = static_cast<int>(threadIdx.x);
    if (lane == 0) found[0] = -1;
    __syncwarp();
    int before = 0;
    for (int base = 0; base < groups && before <= tile; base += kWarp) {
      const int group = base + lane;
      const int first = group < groups ? starts[group] : 0, end = group < groups ? starts[group + 1] : 0;
      const int tiles = (end - first + kTile - 1) / kTile;
      int last = tiles;  // inclusive sum over the lanes
#pragma unroll
      for (int offset = 1; offset < kWarp; offset *= 2) {
        const int other = __shfl_up_sync(kAllLanes, last, offset);
        if (lane >= offset) last += other;
      }
      const int own = tile - before - (last - tiles);
      if (own >= 0 && own < tiles) {
        found[0] = group;
        found[1] = first + own * kTile;
        found[2] = end;
      }
      before += __shfl_sync(kAllLanes, last, kWarp - 1);
    }
  }
  __syncthreads();
}

// kAcross: the weights lie with their depth adjacent.
template <typename T, bool kAcross>
__global__ void __launch_bounds__(kThreads) grouped_rows_kernel(Products r) {
  __shared__ __align__(128) char memory[4 * kStageBytes];
  __shared__ int found[3];
  find_tile(r.starts, r.groups, static_cast<int>(blockIdx.y), found);
  if (found[0] < 0) return;
  const int64_t row = found[1], rows = min(kTile, found[2] - found[1]);
  const int64_t col = static_cast<int64_t>(blockIdx.x) * kTile, cols = r.cols - col;
  const T* weights = static_cast<const T*>(r.weights) + found[0] * r.group_stride;
  const Operand<T, true> a{static_cast<const T*>(r.x) + row * r.x_stride, r.x_stride, rows, r.depth,
                           r.x_aligned};
  const Operand<T, kAcross> b{weights + (kAcross ? col * r.line_stride : col), r.line_stride,
                              kAcross ? cols : r.depth, kAcross ? r.depth : cols, r.weights_aligned};
  const Result<T, false> to{static_cast<T*>(r.y) + row * r.y_stride + col, r.y_stride, rows, cols,
                            r.y_aligned};
  tile_product(a, b, r.depth, to, memory);
}

struct Gradients {
  const void* a;
  const void* b;
  float* out;
  const int32_t* starts;
  int64_t rows, cols, a_stride, b_stride, group_stride, out_stride;
  bool a_aligned, b_aligned, out_aligned;
};

template <typename T>
__global__ void __launch_bounds__(kThreads) grouped_gradients_kernel(Gradients g) {
  __shared__ __align__(128) char memory[4 * kStageBytes];
  const int64_t first = g.starts[blockIdx.z], depth = g.starts[blockIdx.z + 1] - first;
  if (depth == 0) return;
  const int64_t row = static_cast<int64_t>(blockIdx.y) * kTile;
  const int64_t col = static_cast<int64_t>(blockIdx.x) * kTile;
  const Operand<T, false> a{static_cast<const T*>(g.a) + first * g.a_stride + row, g.a_stride, depth,
                            g.rows - row, g.a_aligned};
  const Operand<T, false> b{static_cast<const T*>(g.b) + first * g.b_stride + col, g.b_stride, depth,
                            g.cols - col, g.b_aligned};
  const Result<float, true> to{g.out + blockIdx.z * g.group_stride + row * g.out_stride + col, g.out_stride,
                               g.rows - row, g.cols - col, g.out_aligned};
  tile_product(a, b, depth, to, memory);
}

template <typename T>
bool aligned_groups(const void* data, int64_t stride, int64_t group_stride) {
  return aligned_rows<T>(data, stride) && group_stride * static_cast<int64_t>(sizeof(T)) % kChunkBytes == 0;
}

unsigned tiles(int64_t count) {
  return static_cast<unsigned>(ceil_div(count, kTile));
}

template <typename T>
void launch_rows(Products r, const at::Tensor& x, bool across) {
  r.x_aligned = aligned_rows<T>(r.x, r.x_stride);
  r.weights_aligned = aligned_groups<T>(r.weights, r.line_stride, r.group_stride);
  r.y_aligned = aligned_rows<T>(r.y, r.y_stride);
  // Each group may end with a tile that is not full.
  const dim3 grid(tiles(r.cols), tiles(x.size(0)) + static_cast<unsigned>(r.groups));
  if (across) {
    launch_kernel(grouped_rows_kernel<T, true>, grid, kThreads, r);
  } else {
    launch_kernel(grouped_rows_kernel<T, false>, grid, kThreads, r);
  }
  check_launch("grouped_gemm");
}

template <typename T>
void launch_gradients(Gradients g, unsigned groups) {
  g.a_aligned = aligned_rows<T>(g.a, g.a_stride);
  g.b_aligned = aligned_rows<T>(g.b, g.b_stride);
  g.out_aligned = aligned_groups<float>(g.out, g.out_stride, g.group_stride);
  const dim3 grid(tiles(g.cols), tiles(g.rows), groups);
  launch_kernel(grouped_gradients_kernel<T>, grid, kThreads, g);
  check_launch("grouped_gemm_transposed");
}

}  // namespace

void grouped_rows(const at::Tensor& x, const at::Tensor& weights, const at::Tensor& starts,
                  const at::Tensor& y) {
  if (y.numel() == 0) return;
  const bool across = weights.stride(1) == 1;
  require(x.stride(1) == 1 && y.stride(1) == 1 && (across || weights.stride(2) == 1), ErrorCode::kInternal,
          "[gemm] grouped_gemm expected adjacent columns, and columns or rows of weights, but got strides ",
          x.strides(), ", ", weights.strides());
  Products r{};
  r.x = x.const_data_ptr();
  r.weights = weights.const_data_ptr();
  r.y = y.mutable_data_ptr();
  r.starts = starts.const_data_ptr<int32_t>();
  r.groups = static_cast<int>(weights.size(0));
  r.depth = x.size(1);
  r.cols = weights.size(2);
  r.x_stride = x.stride(0);
  r.y_stride = y.stride(0);
  r.group_stride = weights.stride(0);
  r.line_stride = across ? weights.stride(2) : weights.stride(1);
  if (x.scalar_type() == at::kFloat) return launch_rows<float>(r, x, across);
  launch_rows<BFloat16>(r, x, across);
}

void grouped_gemm_transposed(const at::Tensor& a, const at::Tensor& b, const at::Tensor& starts,
                             const at::Tensor& out) {
  if (a.size(0) == 0 || out.numel() == 0) return;
  require(a.stride(1) == 1 && b.stride(1) == 1 && out.stride(2) == 1, ErrorCode::kInternal,
          "[gemm] grouped_gemm_transposed expected adjacent columns but got strides ", a.strides(), ", ",
          b.strides(), ", ", out.strides());
  Gradients g{};
  g.a = a.const_data_ptr();
  g.b = b.const_data_ptr();
  g.out = out.mutable_data_ptr<float>();
  g.starts = starts.const_data_ptr<int32_t>();
  g.rows = out.size(1);
  g.cols = out.size(2);
  g.a_stride = a.stride(0);
  g.b_stride = b.stride(0);
  g.group_stride = out.stride(0);
  g.out_stride = out.stride(1);
  const auto groups = static_cast<unsigned>(out.size(0));
  if (a.scalar_type() == at::kFloat) return launch_gradients<float>(g, groups);
  launch_gradients<BFloat16>(g, groups);
}

}  // namespace troupe::kernels::cuda
