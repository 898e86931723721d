// Decoding attention on pages of keys and values, one launch per layer.
#include "kernels/cuda/decode_attention.h"
#include "kernels/cuda/device.cuh"
#include "kernels/paged_attention.h"

// A block takes a row and up to kGroup query heads of one key head; each of its warps takes every kWarps-th
// page with a softmax of its own, and these are put together at the end. A lane is a position while scores
// are made, and columns of D while values are summed.
namespace troupe::kernels::cuda {

namespace {

constexpr int kGroup = 8;
constexpr int kWarps = 4;
constexpr int kThreads = kWarps * kWarp;
static_assert(kPagePositions == kWarp);

struct Args {
  const void* qkv;
  void* out;
  const int64_t* pages;
  const int32_t* lengths;
  int64_t qkv_stride, max_pages, layer_bytes, head_bytes;
  int num_heads, num_kv_heads, head_dim, group_chunks, window;
  float scale, softcap;
};

__device__ inline float warp_max(float value) {
#pragma unroll
  for (int offset = kWarp / 2; offset > 0; offset /= 2) {
    value = fmaxf(value, __shfl_xor_sync(kAllLanes, value, offset));
  }
  return value;
}

// The keys of a row: where they lie, and which of a page count.
struct Keys {
  int prompt_length, length, first, prompt_pages, num_pages;

  __device__ Keys(const int32_t* lengths, int window)
      : prompt_length(lengths[0]),
        length(lengths[1]),
        first(window > 0 ? max(0, length - window) : 0),
        prompt_pages((prompt_length + kWarp - 1) / kWarp),
        num_pages(prompt_pages + (length - prompt_length + kWarp - 1) / kWarp) {}

  // Slots [begin, end) of a page hold visible positions.
  __device__ void visible(int page, int& begin, int& end) const {
    const bool in_prompt = page < prompt_pages;
    const int position = in_prompt ? page * kWarp : prompt_length + (page - prompt_pages) * kWarp;
    const int limit = in_prompt ? prompt_length : length;
    begin = max(0, first - position);
    end = min(kWarp, limit - position);
  }
};

// kColumns: columns of D per lane.
template <typename T, int kColumns>
__global__ void __launch_bounds__(kThreads) decode_attention_kernel(Args a) {
  constexpr int kDim = kColumns * kWarp;
  __shared__ float queries[kGroup][kDim];
  __shared__ float weights[kWarps][kGroup][kWarp];
  __shared__ float tops[kWarps][kGroup], sums[kWarps][kGroup];
  __shared__ float partial[kWarps][kDim];

  const int64_t row = blockIdx.x;
  const int head = static_cast<int>(blockIdx.y) / a.group_chunks;
  const int group_size = a.num_heads / a.num_kv_heads;
  const int first_query = static_cast<int>(blockIdx.y) % a.group_chunks * kGroup;
  const int groups = min(kGroup, group_size - first_query);
  const int dim = a.head_dim;
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const Keys keys(a.lengths + 2 * row, a.window);
  const int64_t* pages = a.pages + row * a.max_pages;
  const int64_t head_offset = a.layer_bytes + head * a.head_bytes;
  const T* qkv = static_cast<const T*>(a.qkv) + row * a.qkv_stride;
  const int64_t query_column = static_cast<int64_t>(head * group_size + first_query) * dim;

  const int slot = (keys.length - keys.prompt_length - 1) % kWarp;
  T* last_page = reinterpret_cast<T*>(pages[keys.num_pages - 1] + head_offset);
  for (int d = threadIdx.x; d < dim; d += kThreads) {
    last_page[d * kWarp + slot] = qkv[static_cast<int64_t>(a.num_heads + head) * dim + d];
    last_page[static_cast<int64_t>(kWarp + slot) * dim + d] =
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

  for (int page = warp; page < keys.num_pages; page += kWarps) {
    int begin, end;
    keys.visible(page, begin, end);
    if (begin >= end) continue;
    const T* page_keys = reinterpret_cast<const T*>(pages[page] + head_offset);
    const T* page_values = page_keys + static_cast<int64_t>(kWarp) * dim;
    const bool counts = lane >= begin && lane < end;
    float score[kGroup] = {};
    for (int d = 0; d < dim; ++d) {
      const float key = to_float(page_keys[d * kWarp + lane]);
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
    for (int d = threadIdx.x; d < dim; d += kThreads) {
      float value = 0;
#pragma unroll
      for (int w = 0; w < kWarps; ++w) value += factors[w] * partial[w][d];
      store(out + static_cast<int64_t>(g) * dim + d, value / total);
    }
    __syncthreads();
  }
}

template <typename T>
void launch(const Args& a, int64_t rows) {
  const dim3 grid(static_cast<unsigned>(rows), static_cast<unsigned>(a.num_kv_heads * a.group_chunks));
  if (a.head_dim <= 32) {
    decode_attention_kernel<T, 1><<<grid, kThreads, 0, stream()>>>(a);
  } else if (a.head_dim <= 64) {
    decode_attention_kernel<T, 2><<<grid, kThreads, 0, stream()>>>(a);
  } else if (a.head_dim <= 128) {
    decode_attention_kernel<T, 4><<<grid, kThreads, 0, stream()>>>(a);
  } else {
    decode_attention_kernel<T, 8><<<grid, kThreads, 0, stream()>>>(a);
  }
}

}  // namespace

void decode_attention(const PagedAttention& task) {
  const int64_t rows = task.pages.size(0);
  if (rows == 0) return;
  const int64_t groups = task.num_heads / task.num_kv_heads;
  Args a{};
  a.qkv = task.qkv.const_data_ptr();
  a.out = task.out.mutable_data_ptr();
  a.pages = task.pages.const_data_ptr<int64_t>();
  a.lengths = task.lengths.const_data_ptr<int32_t>();
  a.qkv_stride = task.qkv.stride(0);
  a.max_pages = task.pages.size(1);
  a.layer_bytes = task.layer_bytes;
  a.head_bytes = 2 * task.head_dim * kPagePositions * static_cast<int64_t>(task.qkv.element_size());
  a.num_heads = static_cast<int>(task.num_heads);
  a.num_kv_heads = static_cast<int>(task.num_kv_heads);
  a.head_dim = static_cast<int>(task.head_dim);
  a.group_chunks = static_cast<int>(ceil_div(groups, kGroup));
  a.window = static_cast<int>(task.window);
  a.scale = task.scale;
  a.softcap = task.softcap;
  if (task.qkv.scalar_type() == at::kFloat) {
    launch<float>(a, rows);
  } else {
    launch<BFloat16>(a, rows);
  }
  check_launch("decode_attention");
}

}  // namespace troupe::kernels::cuda
