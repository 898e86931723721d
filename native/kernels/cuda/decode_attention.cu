// Decoding attention on pages of keys and values, one launch per layer, or two where a row has many keys.
#include "kernels/cuda/decode_attention.h"
#include "kernels/cuda/device.cuh"
#include "kernels/key_splits.h"
#include "kernels/paged_attention.h"

// A block takes a part of a row's keys (kernels/key_splits.h) and some query heads of one key head, kGroup;
// each of its warps takes every kWarps-th page with a softmax of its own, and these are put together at the
// end. A lane is a position while scores are made, and columns of D while values are summed. The parts of a
// row come together in a second launch; a row that has one part is done before it.
namespace troupe::kernels::cuda {

namespace {

constexpr int kWarps = 4;
constexpr int kThreads = kWarps * kWarp;
static_assert(kPagePositions == kWarp);
// What parts leave behind: more rows than have room there are taken one slice after the other.
constexpr int64_t kPartialFloats = int64_t{32} << 20;

struct Args {
  const void* qkv;
  void* out;
  const int64_t* pages;
  const int32_t* queries;
  float* partial;  // [rows, heads, splits, D + 2] of rows with several parts: values, then their SoftmaxPart
  int splits;      // the most that a row has
  int64_t qkv_stride, max_pages, layer_bytes, head_bytes;
  int num_heads, num_kv_heads, head_dim, window;
  // Of a page's part: number d of the key at a position is at d * key_stride + position * position_stride,
  // and the values begin at first_value; 0: they are the keys.
  int key_stride, position_stride, first_value;
  float scale, softcap;
  const float* sinks;  // [heads]; null: none
};

// The sum that a row's values are divided by, from that of exp(score - top) over its keys: a sink takes its
// part of the softmax (kernels/attention_sinks.h). Where it is far above the scores the values become 0.
__device__ inline float with_sink(const Args& a, int64_t query_head, float top, float total) {
  return a.sinks == nullptr ? total : total + expf(a.sinks[query_head] - top);
}

__device__ inline float warp_max(float value) {
#pragma unroll
  for (int offset = kWarp / 2; offset > 0; offset /= 2) {
    value = fmaxf(value, __shfl_xor_sync(kAllLanes, value, offset));
  }
  return value;
}

// The keys of a row: which parts they have, and which of a page count.
struct Keys : KeySplits {
  int length, first;

  __device__ Keys(int positions, int window)
      : KeySplits(positions, window), length(positions), first(window > 0 ? max(0, positions - window) : 0) {}

  // Slots [begin, end) of a page hold visible positions.
  __device__ void visible(int page, int& begin, int& end) const {
    begin = max(0, first - page * kWarp);
    end = min(kWarp, length - page * kWarp);
  }
};

__device__ inline float* partial_of(const Args& a, int64_t row, int64_t query_head, int split) {
  return a.partial + ((row * a.num_heads + query_head) * a.splits + split) * (a.head_dim + 2);
}

// kColumns: columns of D per lane. kGroup: as many query heads as registers hold the sums of.
template <typename T, int kColumns, int kGroup>
__global__ void __launch_bounds__(kThreads) decode_attention_kernel(Args a) {
  constexpr int kDim = kColumns * kWarp;
  __shared__ float queries[kGroup][kDim];
  __shared__ float weights[kWarps][kGroup][kWarp];
  __shared__ float tops[kWarps][kGroup], sums[kWarps][kGroup];
  __shared__ float partial[kWarps][kDim];

  const int64_t row = blockIdx.x;
  const int group_size = a.num_heads / a.num_kv_heads, chunks = (group_size + kGroup - 1) / kGroup;
  const int head = static_cast<int>(blockIdx.y) / chunks;
  const int first_query = static_cast<int>(blockIdx.y) % chunks * kGroup;
  const int groups = min(kGroup, group_size - first_query);
  const int dim = a.head_dim;
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const Keys keys(a.queries[2 * row + 1], a.window);
  const int split = static_cast<int>(blockIdx.z), splits = keys.count();
  if (split >= splits) return;
  const int64_t* pages = a.pages + a.queries[2 * row] * a.max_pages;
  const int64_t head_offset = a.layer_bytes + head * a.head_bytes;
  const T* qkv = static_cast<const T*>(a.qkv) + row * a.qkv_stride;
  const int64_t query_column = static_cast<int64_t>(head * group_size + first_query) * dim;

  const int slot = (keys.length - 1) % kWarp;
  T* last_page = reinterpret_cast<T*>(pages[keys.num_pages - 1] + head_offset);
  for (int d = threadIdx.x; split == splits - 1 && d < dim; d += kThreads) {
    last_page[d * a.key_stride + slot * a.position_stride] =
        qkv[static_cast<int64_t>(a.num_heads + head) * dim + d];
    if (a.first_value == 0) continue;
    last_page[a.first_value + slot * dim + d] =
        qkv[static_cast<int64_t>(a.num_heads + a.num_kv_heads + head) * dim + d];
  }
  for (int i = threadIdx.x; i < groups * dim; i += kThreads)
    queries[i / dim][i % dim] = to_float(qkv[query_column + i]) * a.scale;
  __syncthreads();

  float top[kGroup], sum[kGroup], acc[kGroup][kColumns];
#pragma unroll
  for (int g = 0; g < kGroup; ++g) {
    top[g] = -INFINITY;
    sum[g] = 0;
#pragma unroll
    for (int c = 0; c < kColumns; ++c) acc[g][c] = 0;
  }

  for (int page = keys.begin(split) + warp; page < keys.end(split); page += kWarps) {
    int begin, end;
    keys.visible(page, begin, end);
    if (begin >= end) continue;
    const T* page_keys = reinterpret_cast<const T*>(pages[page] + head_offset);
    const T* page_values = page_keys + a.first_value;
    const bool counts = lane >= begin && lane < end;
    float score[kGroup] = {};
    for (int d = 0; d < dim; ++d) {
      const float key = to_float(page_keys[d * a.key_stride + lane * a.position_stride]);
#pragma unroll
      for (int g = 0; g < kGroup; ++g) score[g] += g < groups ? queries[g][d] * key : 0.0f;
    }
#pragma unroll
    for (int g = 0; g < kGroup; ++g) {
      if (a.softcap > 0) score[g] = a.softcap * tanhf(score[g] / a.softcap);
      if (!counts) score[g] = -INFINITY;  // whatever the memory held
      const float higher = fmaxf(top[g], warp_max(score[g]));
      const float factor = expf(top[g] - higher);
      const float weight = counts ? expf(score[g] - higher) : 0.0f;
      sum[g] = sum[g] * factor + warp_sum(weight);
      top[g] = higher;
      weights[warp][g][lane] = weight;
#pragma unroll
      for (int c = 0; c < kColumns; ++c) acc[g][c] *= factor;
    }
    __syncwarp();
    for (int p = begin; p < end; ++p) {
      float value[kColumns];
#pragma unroll
      for (int c = 0; c < kColumns; ++c) {
        const int d = c * kWarp + lane;
        value[c] = d < dim ? to_float(page_values[static_cast<int64_t>(p) * dim + d]) : 0.0f;
      }
#pragma unroll
      for (int g = 0; g < kGroup; ++g) {
        const float weight = weights[warp][g][p];
#pragma unroll
        for (int c = 0; c < kColumns; ++c) acc[g][c] += weight * value[c];
      }
    }
    __syncwarp();
  }

  if (lane == 0) {
#pragma unroll
    for (int g = 0; g < kGroup; ++g) {
      tops[warp][g] = top[g];
      sums[warp][g] = sum[g];
    }
  }
  T* out = static_cast<T*>(a.out) + row * a.num_heads * dim + query_column;
  for (int g = 0; g < groups; ++g) {
#pragma unroll
    for (int h = 0; h < kGroup; ++h) {
      if (h != g) continue;  // registers have no index at run time
#pragma unroll
      for (int c = 0; c < kColumns; ++c) partial[warp][c * kWarp + lane] = acc[h][c];
    }
    __syncthreads();
    float higher = -INFINITY;
    for (int w = 0; w < kWarps; ++w) higher = fmaxf(higher, tops[w][g]);
    float total = 0;
    float factors[kWarps];
#pragma unroll
    for (int w = 0; w < kWarps; ++w) {
      factors[w] = sums[w][g] > 0 ? expf(tops[w][g] - higher) : 0.0f;  // a warp without pages: 0
      total += factors[w] * sums[w][g];
    }
    const float divisor = with_sink(a, head * group_size + first_query + g, higher, total);
    float* left = splits > 1 ? partial_of(a, row, head * group_size + first_query + g, split) : nullptr;
    for (int d = threadIdx.x; d < dim; d += kThreads) {
      float value = 0;
#pragma unroll
      for (int w = 0; w < kWarps; ++w) value += factors[w] * partial[w][d];
      if (left != nullptr) {
        left[d] = value;
      } else {
        store(out + static_cast<int64_t>(g) * dim + d, value / divisor);
      }
    }
    if (left != nullptr && threadIdx.x == 0) {
      left[dim] = higher;
      left[dim + 1] = total;
    }
    __syncthreads();
  }
}

// The parts of a row and query head, in their order.
template <typename T>
__global__ void __launch_bounds__(kThreads) combine_parts_kernel(Args a) {
  const int64_t row = blockIdx.x, query_head = blockIdx.y;
  const int splits = KeySplits(a.queries[2 * row + 1], a.window).count();
  if (splits == 1) return;
  const auto part = [&](int split) {
    const float* sums = partial_of(a, row, query_head, split) + a.head_dim;
    return SoftmaxPart{sums[0], sums[1]};
  };
  float top = -INFINITY, total = 0;
  for (int split = 0; split < splits; ++split) top = fmaxf(top, part(split).top);
  for (int split = 0; split < splits; ++split) total += factor_of(part(split), top) * part(split).sum;
  total = with_sink(a, query_head, top, total);
  T* out = static_cast<T*>(a.out) + (row * a.num_heads + query_head) * a.head_dim;
  for (int d = threadIdx.x; d < a.head_dim; d += kThreads) {
    float value = 0;
    for (int split = 0; split < splits; ++split)
      value += factor_of(part(split), top) * partial_of(a, row, query_head, split)[d];
    store(out + d, value / total);
  }
}

template <typename T, int kColumns, int kGroup>
void launch_heads(const Args& a, int64_t rows) {
  const int64_t chunks = ceil_div(a.num_heads / a.num_kv_heads, kGroup);
  const dim3 grid(static_cast<unsigned>(rows), static_cast<unsigned>(a.num_kv_heads * chunks),
                  static_cast<unsigned>(a.splits));
  launch_kernel(decode_attention_kernel<T, kColumns, kGroup>, grid, kThreads, a);
}

template <typename T>
void launch(const Args& a, int64_t rows) {
  if (a.head_dim <= 32) {
    launch_heads<T, 1, 8>(a, rows);
  } else if (a.head_dim <= 64) {
    launch_heads<T, 2, 8>(a, rows);
  } else if (a.head_dim <= 128) {
    launch_heads<T, 4, 8>(a, rows);
  } else if (a.head_dim <= 256) {
    launch_heads<T, 8, 8>(a, rows);
  } else {
    launch_heads<T, kMaxPagedHeadDim / kWarp, 4>(a, rows);
  }
  if (a.splits == 1) return;
  const dim3 heads(static_cast<unsigned>(rows), static_cast<unsigned>(a.num_heads));
  launch_kernel(combine_parts_kernel<T>, heads, kThreads, a);
}

// In slices of rows whose parts have room.
template <typename T>
void launch_slices(Args a, int64_t rows) {
  const int64_t floats = a.splits == 1 ? 0 : int64_t{a.num_heads} * a.splits * (a.head_dim + 2);
  const int64_t slice = floats == 0 ? rows : std::clamp<int64_t>(kPartialFloats / floats, 1, rows);
  const c10::DataPtr memory = scratch(slice * floats);
  a.partial = static_cast<float*>(memory.get());
  for (int64_t first = 0; first < rows; first += slice) {
    Args part = a;
    part.qkv = static_cast<const T*>(a.qkv) + first * a.qkv_stride;
    part.out = static_cast<T*>(a.out) + first * a.num_heads * a.head_dim;
    part.queries += 2 * first;
    launch<T>(part, std::min(slice, rows - first));
  }
}

}  // namespace

void decode_attention(const PagedAttention& task) {
  const int64_t rows = task.queries.size(0);
  if (rows == 0) return;
  Args a{};
  a.qkv = task.qkv.const_data_ptr();
  a.out = task.out.mutable_data_ptr();
  a.pages = task.pages.const_data_ptr<int64_t>();
  a.queries = task.queries.const_data_ptr<int32_t>();
  a.qkv_stride = task.qkv.stride(0);
  a.max_pages = task.pages.size(1);
  a.splits = KeySplits::most(static_cast<int>(a.max_pages), static_cast<int>(task.window));
  a.layer_bytes = task.layer_bytes;
  a.head_bytes = (task.keys_hold_values ? 1 : 2) * task.head_dim * kPagePositions *
                 static_cast<int64_t>(task.qkv.element_size());
  a.num_heads = static_cast<int>(task.num_heads);
  a.num_kv_heads = static_cast<int>(task.num_kv_heads);
  a.head_dim = static_cast<int>(task.head_dim);
  a.key_stride = task.keys_hold_values ? 1 : kWarp;
  a.position_stride = task.keys_hold_values ? a.head_dim : 1;
  a.first_value = task.keys_hold_values ? 0 : kWarp * a.head_dim;
  a.window = static_cast<int>(task.window);
  a.scale = task.scale;
  a.softcap = task.softcap;
  a.sinks = task.sinks.defined() ? task.sinks.const_data_ptr<float>() : nullptr;
  if (task.qkv.scalar_type() == at::kFloat) {
    launch_slices<float>(a, rows);
  } else {
    launch_slices<BFloat16>(a, rows);
  }
  check_launch("decode_attention");
}

}  // namespace troupe::kernels::cuda
