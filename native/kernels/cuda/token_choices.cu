// Rows of logits on a GPU: maxima and sums of their blocks, and the choice of a token in each.
#include "kernels/choose_token.h"
#include "kernels/cuda/device.cuh"
#include "kernels/cuda/token_choices.h"

// Two passes over the logits by all of the GPU, a warp per kLogitBlock entries, two to a lane; then a block
// per row reads the few of these that it needs.
namespace troupe::kernels::cuda {

namespace {

constexpr int kThreads = 256;
constexpr int64_t kWarps = kThreads / kWarp;
static_assert(kLogitBlock == 2 * kWarp);
constexpr int kTeamThreads = 512;

// The larger one, NaN when either is: no comparison with NaN holds but a != a.
struct MaxOrNan {
  __device__ float operator()(float a, float b) const { return a != a || b <= a ? a : b; }
};

struct BlockTeam {
  __device__ int64_t rank() const { return threadIdx.x; }
  __device__ int64_t size() const { return blockDim.x; }
  __device__ void sync() const { __syncthreads(); }
  __device__ int32_t add(int32_t* count, int32_t n) const { return atomicAdd(count, n); }
  __device__ void least(int32_t* value, int32_t other) const { atomicMin(value, other); }
  __device__ float weight(float x, float max, float inverse_temperature) const {
    return expf((x - max) * inverse_temperature);
  }
};

// Rows [0, own) are the model's, those after them the changed ones.
struct Logits {
  const float* data;
  int64_t stride, own, vocab, blocks;
  const float* changed;  // [rows - own, vocab]
  const TokenWish* wishes;
  const RowChanges* changes;

  __device__ const float* row(int64_t r) const {
    return r < own ? data + r * stride : changed + (r - own) * vocab;
  }
  __device__ float at(int64_t r, int64_t column) const { return column < vocab ? row(r)[column] : -INFINITY; }
  __device__ float inverse_temperature_of(int64_t r) const {
    return inverse_temperature(wishes[r < own ? r : changes[r - own].row].options);
  }
};

// What the passes leave, per row.
struct Numbers {
  float* maxima;   // [blocks]
  float* tops;     // one
  double* sums;    // [blocks]
  double* groups;  // [sum_groups(blocks)]
};

__device__ inline int64_t block_of_warp() {
  return static_cast<int64_t>(blockIdx.y) * kWarps + threadIdx.x / kWarp;
}

__global__ void __launch_bounds__(kTeamThreads)
    change_kernel(Logits logits, LogitChanges lists, float* __restrict__ out) {
  const RowChanges by = logits.changes[blockIdx.x];
  change_logits(BlockTeam(), logits.row(by.row), logits.vocab, by, lists, out + blockIdx.x * logits.vocab);
}

__global__ void __launch_bounds__(kThreads) block_maxima_kernel(Logits logits, float* __restrict__ maxima) {
  const int64_t row = blockIdx.x, block = block_of_warp();
  if (block >= logits.blocks) return;
  const int64_t first = block * kLogitBlock + threadIdx.x % kWarp;
  const MaxOrNan larger;
  float top = larger(logits.at(row, first), logits.at(row, first + kWarp));
#pragma unroll
  for (int offset = kWarp / 2; offset > 0; offset /= 2) {
    top = larger(top, __shfl_xor_sync(kAllLanes, top, offset));
  }
  if (threadIdx.x % kWarp == 0) maxima[row * logits.blocks + block] = top == INFINITY ? NAN : top;
}

__global__ void __launch_bounds__(kThreads)
    row_maxima_kernel(const float* __restrict__ maxima, int64_t blocks, float* __restrict__ tops) {
  const int64_t row = blockIdx.x;
  const MaxOrNan larger;
  float top = -INFINITY;
  for (int64_t b = threadIdx.x; b < blocks; b += kThreads) top = larger(top, maxima[row * blocks + b]);
  top = block_reduce(top, larger);
  if (threadIdx.x == 0) tops[row] = top;
}

__global__ void __launch_bounds__(kThreads)
    block_sums_kernel(Logits logits, const float* __restrict__ tops, double* __restrict__ sums) {
  const int64_t row = blockIdx.x, block = block_of_warp();
  if (block >= logits.blocks) return;
  const int64_t first = block * kLogitBlock + threadIdx.x % kWarp;
  const BlockTeam team;
  const float top = tops[row], inverse = logits.inverse_temperature_of(row);
  const double sum = warp_sum(static_cast<double>(team.weight(logits.at(row, first), top, inverse)) +
                              static_cast<double>(team.weight(logits.at(row, first + kWarp), top, inverse)));
  if (threadIdx.x % kWarp == 0) sums[row * logits.blocks + block] = sum;
}

__global__ void __launch_bounds__(kTeamThreads)
    choose_kernel(Logits logits, Numbers numbers, int32_t* __restrict__ out, int64_t words) {
  __shared__ ChoiceScratch scratch;
  const int64_t row = blockIdx.x;
  const TokenWish wish = logits.wishes[row];
  const auto scan = [&](int64_t r) {
    return LogitScan{logits.row(r),
                     logits.vocab,
                     numbers.tops[r],
                     numbers.maxima + r * logits.blocks,
                     numbers.sums + r * logits.blocks,
                     numbers.groups + r * sum_groups(logits.blocks)};
  };
  const LogitScan own = scan(row);
  choose_token(BlockTeam(), own, wish.changed < 0 ? own : scan(logits.own + wish.changed), wish, scratch,
               out + row * words);
}

template <typename Entry>
const Entry* entries(const at::Tensor& bytes) {
  return bytes.numel() == 0 ? nullptr : static_cast<const Entry*>(bytes.const_data_ptr());
}

}  // namespace

void choose_tokens(const TokenChoices& task) {
  const int64_t own = task.wishes.size(0), changed = task.changes.size(0), vocab = task.logits.size(1);
  if (own == 0) return;
  const int64_t rows = own + changed, blocks = logit_blocks(vocab);
  // Floats; sums first, for their alignment.
  const int64_t doubles = rows * (blocks + sum_groups(blocks));
  const c10::DataPtr memory = scratch(2 * doubles + rows * (blocks + 1) + changed * vocab);
  Numbers numbers;
  numbers.sums = static_cast<double*>(memory.get());
  numbers.groups = numbers.sums + rows * blocks;
  numbers.maxima = reinterpret_cast<float*>(numbers.sums + doubles);
  numbers.tops = numbers.maxima + rows * blocks;
  float* const changed_rows = numbers.tops + rows;
  const Logits logits{task.logits.const_data_ptr<float>(),
                      task.logits.stride(0),
                      own,
                      vocab,
                      blocks,
                      changed_rows,
                      entries<TokenWish>(task.wishes),
                      entries<RowChanges>(task.changes)};
  if (changed > 0) {
    const LogitChanges lists{entries<SeenToken>(task.seen), entries<TokenBias>(task.biases),
                             entries<uint32_t>(task.words)};
    launch_kernel(change_kernel, static_cast<unsigned>(changed), kTeamThreads, logits, lists, changed_rows);
  }
  const dim3 grid(static_cast<unsigned>(rows), static_cast<unsigned>(ceil_div(blocks, kWarps)));
  launch_kernel(block_maxima_kernel, grid, kThreads, logits, numbers.maxima);
  launch_kernel(row_maxima_kernel, grid.x, kThreads, numbers.maxima, blocks, numbers.tops);
  launch_kernel(block_sums_kernel, grid, kThreads, logits, numbers.tops, numbers.sums);
  launch_kernel(choose_kernel, static_cast<unsigned>(own), kTeamThreads, logits, numbers,
                task.out.mutable_data_ptr<int32_t>(), task.out.size(1));
  check_launch("choose_tokens");
}

}  // namespace troupe::kernels::cuda
