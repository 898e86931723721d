// Scans of the gated delta rule with the state in registers.
#include "kernels/cuda/device.cuh"
#include "kernels/cuda/gated_delta_rule.h"

// A block has kWarps warps. Lane j has column j of the columns at hand, warp w the rows w, w + kWarps, ... of
// the state. The formulas are those of cpu/gated_delta_rule.kernel.cc.
namespace troupe::kernels::cuda {

namespace {

constexpr int kWarps = 8;
constexpr int kThreads = kWarps * kWarp;
static_assert(kDeltaColumns == kWarp, "a lane has a column");

// Where a value head and columns of its state lie.
struct Place {
  int64_t head, column, columns;
  __device__ bool has(int lane) const { return lane < columns; }
};

struct Lanes {
  int lane, warp;
};
__device__ Lanes lanes() {
  return {static_cast<int>(threadIdx.x) % kWarp, static_cast<int>(threadIdx.x) / kWarp};
}

// The sum over the warps of what each has for a column, in their order; every thread gets that of its lane.
__device__ float over_warps(float value, float (*parts)[kWarp], const Lanes& at) {
  __syncthreads();  // someone may still read the parts of an earlier call
  parts[at.warp][at.lane] = value;
  __syncthreads();
  float sum = 0;
#pragma unroll
  for (int warp = 0; warp < kWarps; ++warp) sum += parts[warp][at.lane];
  return sum;
}

// Of one row: q and k in shared memory, the rest in registers of every thread.
struct Row {
  float v, decay, beta;
};
__device__ Row load_row(const ScanLaunch& a, const Place& place, int64_t row, float* q, float* k,
                        const Lanes& at) {
  const DeltaShape& s = a.shape;
  const float* x = a.x + row * s.width();
  const int64_t key = place.head / (s.value_heads / s.key_heads) * s.key_dim;
  __syncthreads();  // someone may still read the row before
  for (int i = threadIdx.x; i < s.key_dim; i += kThreads) {
    q[i] = x[s.q() + key + i];
    k[i] = x[s.k() + key + i];
  }
  __syncthreads();
  const float v = place.has(at.lane) ? x[s.v() + place.head * s.value_dim + place.column + at.lane] : 0.0f;
  const int64_t gate = row * s.value_heads + place.head;
  return {v, a.decay[gate], a.beta[gate]};
}

// Elements of a state of `slot` from the first row and column of the place on.
__device__ int64_t state_at(const ScanLaunch& a, const Place& place, int64_t slot, int64_t stride) {
  return slot * stride + place.head * a.shape.key_dim * a.shape.value_dim + place.column;
}

template <int kRows>
__device__ void load_state(const ScanLaunch& a, const Place& place, int64_t slot, const Lanes& at,
                           float (&state)[kRows]) {
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    const int row = at.warp + i * kWarps;
    const bool there = slot >= 0 && row < a.shape.key_dim && place.has(at.lane);
    state[i] =
        there ? a.states[state_at(a, place, slot, a.slot_stride) + row * a.shape.value_dim + at.lane] : 0.0f;
  }
}

struct Step {
  float memory, delta;
};
// One row: the state goes on; what the rule gives for the lane's column is in `out`.
template <int kRows>
__device__ Step step(const Row& row, const float* q, const float* k, const DeltaShape& s,
                     float (*parts)[kWarp], const Lanes& at, float (&state)[kRows], float* out) {
  const int64_t key_dim = s.key_dim;
  float memory = 0;
  if (s.erases) {
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      const int r = at.warp + i * kWarps;
      if (r < key_dim) memory += state[i] * k[r];
    }
    memory = over_warps(memory, parts, at) * row.decay;
  }
  const float delta = (row.v - memory) * row.beta;
  float result = 0;
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    const int r = at.warp + i * kWarps;
    if (r >= key_dim) continue;
    state[i] = state[i] * row.decay + delta * k[r];
    result += state[i] * q[r];
  }
  if (out != nullptr) *out = over_warps(result, parts, at);
  return {memory, delta};
}

template <int kRows>
__global__ void __launch_bounds__(kThreads) scan_kernel(ScanLaunch a) {
  __shared__ float q[kMaxDeltaKeyDim], k[kMaxDeltaKeyDim], parts[kWarps][kWarp];
  const DeltaShape& s = a.shape;
  const ScanItem item = a.items[blockIdx.x];
  const int64_t column = static_cast<int64_t>(blockIdx.z) * kDeltaColumns;
  const Place place{blockIdx.y, column, min(kDeltaColumns, s.value_dim - column)};
  const Lanes at = lanes();
  float state[kRows];
  load_state(a, place, item.before, at, state);
  for (int64_t r = 0; r < item.count; ++r) {
    const Row row = load_row(a, place, item.row + r, q, k, at);
    float out = 0;
    step(row, q, k, s, parts, at, state, a.out != nullptr ? &out : nullptr);
    if (a.out != nullptr && at.warp == 0 && place.has(at.lane))
      a.out[((item.row + r) * s.value_heads + place.head) * s.value_dim + column + at.lane] = out;
  }
  if (item.after < 0 || !place.has(at.lane)) return;
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    const int row = at.warp + i * kWarps;
    if (row < s.key_dim)
      a.states[state_at(a, place, item.after, a.slot_stride) + row * s.value_dim + at.lane] = state[i];
  }
}

// The registers of a thread, one behind the other for all threads; `rows` of the state.
template <int kRows>
__device__ void keep(float* to, int64_t key_dim, const Lanes& at, const float (&state)[kRows]) {
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    const int row = at.warp + i * kWarps;
    if (row < key_dim) to[row * kWarp + at.lane] = state[i];
  }
}
template <int kRows>
__device__ void kept(const float* from, int64_t key_dim, const Lanes& at, float (&state)[kRows]) {
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    const int row = at.warp + i * kWarps;
    state[i] = row < key_dim ? from[row * kWarp + at.lane] : 0.0f;
  }
}

// One row back. state: what the row found; d_state: by what it left, then by what it found.
template <int kRows>
__device__ void step_back(const ScanBackwardLaunch& b, const Place& place, int64_t at_row, const float* aux,
                          float* q, float* k, float (*parts)[kWarp], const Lanes& at,
                          const float (&state)[kRows], float (&d_state)[kRows]) {
  const ScanLaunch& a = b.scan;
  const DeltaShape& s = a.shape;
  const Row row = load_row(a, place, at_row, q, k, at);
  const float memory = aux[at.lane], delta = aux[kWarp + at.lane];
  const float dout =
      place.has(at.lane)
          ? b.dout[(at_row * s.value_heads + place.head) * s.value_dim + place.column + at.lane]
          : 0.0f;
  float* dx = b.dx + at_row * s.width();
  const int64_t key = place.head / (s.value_heads / s.key_heads) * s.key_dim;
  float* dq = dx + s.q() + key;
  float* dk = dx + s.k() + key;
  float* dv = dx + s.v() + place.head * s.value_dim + place.column;
  const int64_t gate = at_row * s.value_heads + place.head;

  float d_delta = 0, by_key[kRows];
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    const int r = at.warp + i * kWarps;
    if (r >= s.key_dim) continue;
    const float left = state[i] * row.decay + delta * k[r];
    d_state[i] += dout * q[r];
    d_delta += d_state[i] * k[r];
    by_key[i] = d_state[i] * delta;
    const float by_query = warp_sum(left * dout);
    if (at.lane == 0) dq[r] += by_query;
  }
  d_delta = over_warps(d_delta, parts, at);
  const float d_value = d_delta * row.beta;
  float by_decay = 0;
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    const int r = at.warp + i * kWarps;
    if (r >= s.key_dim) continue;
    const float erased = s.erases ? d_value : 0.0f;
    const float decayed = state[i] * row.decay, d = d_state[i] - erased * k[r];
    const float by_row = warp_sum(by_key[i] - decayed * erased);
    if (at.lane == 0) dk[r] += by_row;
    by_decay += d * decayed;
    d_state[i] = d * row.decay;
  }
  by_decay = over_warps(by_decay, parts, at);
  if (at.warp != 0) return;
  if (place.has(at.lane)) dv[at.lane] = d_value;
  const float by_beta = warp_sum(d_delta * (row.v - memory)), by_log = warp_sum(by_decay);
  if (at.lane == 0) {
    b.dbeta[gate] += by_beta;
    b.dlog_decay[gate] += by_log;
  }
}

// Scratch of a block: states at checkpoints, states that the rows since the last one found, and two numbers
// per column and row. States between checkpoints are made again, those of the last rows first.
template <int kRows>
__global__ void __launch_bounds__(kThreads) scan_backward_kernel(ScanBackwardLaunch b) {
  __shared__ float q[kMaxDeltaKeyDim], k[kMaxDeltaKeyDim], parts[kWarps][kWarp];
  const ScanLaunch& a = b.scan;
  const DeltaShape& s = a.shape;
  const ScanItem item = a.items[blockIdx.x];
  const Lanes at = lanes();
  const int64_t size = s.key_dim * kDeltaColumns, groups = s.value_heads / s.key_heads;
  const int64_t checkpoints = (item.count + kDeltaCheckpoint - 1) / kDeltaCheckpoint;
  float* const at_checkpoint = b.scratch + item.scratch + blockIdx.y * delta_scratch(item.count, s.key_dim);
  float* const found = at_checkpoint + checkpoints * size;
  float* const aux = found + kDeltaCheckpoint * size;
  float state[kRows], d_state[kRows];
  for (int64_t head = blockIdx.y * groups; head < (blockIdx.y + 1) * groups; ++head) {
    for (int64_t column = 0; column < s.value_dim; column += kDeltaColumns) {
      const Place place{head, column, min(kDeltaColumns, s.value_dim - column)};
      const int64_t slot_size = s.value_heads * s.key_dim * s.value_dim;
      load_state(a, place, item.before, at, state);
      for (int64_t r = 0; r < item.count; ++r) {
        if (r % kDeltaCheckpoint == 0)
          keep(at_checkpoint + r / kDeltaCheckpoint * size, s.key_dim, at, state);
        if (r >= (checkpoints - 1) * kDeltaCheckpoint) break;
        const Row row = load_row(a, place, item.row + r, q, k, at);
        step(row, q, k, s, parts, at, state, nullptr);
      }
#pragma unroll
      for (int i = 0; i < kRows; ++i) {
        const int row = at.warp + i * kWarps;
        const bool there = item.after >= 0 && row < s.key_dim && place.has(at.lane);
        d_state[i] = there
                         ? b.d_states[state_at(a, place, item.after, slot_size) + row * s.value_dim + at.lane]
                         : 0.0f;
      }
      for (int64_t checkpoint = checkpoints; checkpoint-- > 0;) {
        const int64_t first = checkpoint * kDeltaCheckpoint;
        const int64_t rows = min(item.count - first, kDeltaCheckpoint);
        kept(at_checkpoint + checkpoint * size, s.key_dim, at, state);
        for (int64_t r = 0; r < rows; ++r) {
          keep(found + r * size, s.key_dim, at, state);
          const Row row = load_row(a, place, item.row + first + r, q, k, at);
          const Step done = step(row, q, k, s, parts, at, state, nullptr);
          if (at.warp != 0) continue;
          aux[2 * r * kWarp + at.lane] = done.memory;
          aux[(2 * r + 1) * kWarp + at.lane] = done.delta;
        }
        __syncthreads();  // aux is there for all warps
        for (int64_t r = rows; r-- > 0;) {
          kept(found + r * size, s.key_dim, at, state);
          step_back(b, place, item.row + first + r, aux + 2 * r * kWarp, q, k, parts, at, state, d_state);
        }
        __syncthreads();  // and has been read
      }
      if (item.before < 0 || !place.has(at.lane)) continue;
#pragma unroll
      for (int i = 0; i < kRows; ++i) {
        const int row = at.warp + i * kWarps;
        if (row < s.key_dim)
          b.d_states[state_at(a, place, item.after, slot_size) + row * s.value_dim + at.lane] = d_state[i];
      }
    }
  }
}

}  // namespace

void launch_scan(const ScanLaunch& a) {
  const dim3 grid(static_cast<unsigned>(a.count), static_cast<unsigned>(a.shape.value_heads),
                  static_cast<unsigned>(ceil_div(a.shape.value_dim, kDeltaColumns)));
  if (a.shape.key_dim <= 16 * kWarps) {
    launch_kernel(scan_kernel<16>, grid, kThreads, a);
  } else {
    launch_kernel(scan_kernel<kMaxDeltaKeyDim / kWarps>, grid, kThreads, a);
  }
  check_launch("gated_delta_rule");
}

void launch_scan_backward(const ScanBackwardLaunch& b) {
  const dim3 grid(static_cast<unsigned>(b.scan.count), static_cast<unsigned>(b.scan.shape.key_heads));
  if (b.scan.shape.key_dim <= 16 * kWarps) {
    launch_kernel(scan_backward_kernel<16>, grid, kThreads, b);
  } else {
    launch_kernel(scan_backward_kernel<kMaxDeltaKeyDim / kWarps>, grid, kThreads, b);
  }
  check_launch("gated_delta_rule backward");
}

}  // namespace troupe::kernels::cuda
