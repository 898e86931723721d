// The gated delta rule, and the same without erasure: the scan over the rows of a sequence, forward and
// backward.
#include "kernels/cpu/gated_delta_kernels.h"
#include "kernels/cpu/lanes.h"
#include "kernels/cpu/vector_math.h"

namespace troupe::kernels::TROUPE_ISA {

namespace {

typedef float Floats __attribute__((vector_size(kLanes * 4)));
typedef int32_t Order __attribute__((vector_size(kLanes * 4)));

// Columns of a state that are worked on at a time, in two registers.
constexpr int64_t kColumns = 2 * kLanes;
static_assert(kDeltaColumns % kColumns == 0);
struct Columns {
  Floats low, high;
};
TROUPE_INLINE Columns columns_at(const float* p) {
  Columns value;
  __builtin_memcpy(&value.low, p, sizeof value.low);
  __builtin_memcpy(&value.high, p + kLanes, sizeof value.high);
  return value;
}
TROUPE_INLINE void write(float* p, const Columns& value) {
  __builtin_memcpy(p, &value.low, sizeof value.low);
  __builtin_memcpy(p + kLanes, &value.high, sizeof value.high);
}
TROUPE_INLINE Columns sum_of_four(const Columns (&parts)[4]) {
  return {(parts[0].low + parts[1].low) + (parts[2].low + parts[3].low),
          (parts[0].high + parts[1].high) + (parts[2].high + parts[3].high)};
}
TROUPE_INLINE float total(const Columns& value) {
  const Floats both = value.low + value.high;
  float sum = 0;
  for (int i = 0; i < kLanes; ++i) sum += both[i];
  return sum;
}

// Of two vectors the lanes, side by side, that are added to those `width` behind them. Four lanes are
// [a0, b0, a1, b1] and [a2, b2, a3, b3] first, an unpacking that all processors have.
TROUPE_INLINE Order lanes_of_two(int width, bool behind) {
  Order order{};
  for (int p = 0; p < kLanes; ++p) {
    const int lane = width == 1 ? (p & ~3) + (p >> 1 & 1) + 2 * behind : (p & ~width) + width * behind;
    order[p] = lane + (p & width ? kLanes : 0);
  }
  return order;
}
// The sum of each of kLanes vectors.
template <int kWidth = 1>
TROUPE_INLINE Floats sums_of(const Floats* parts) {
  if constexpr (kWidth == kLanes) {
    return parts[0];
  } else {
    Floats halves[kLanes / 2 / kWidth];
    for (int i = 0; i < kLanes / 2 / kWidth; ++i) {
      halves[i] = __builtin_shuffle(parts[2 * i], parts[2 * i + 1], lanes_of_two(kWidth, false)) +
                  __builtin_shuffle(parts[2 * i], parts[2 * i + 1], lanes_of_two(kWidth, true));
    }
    return sums_of<2 * kWidth>(halves);
  }
}

// Adds to[i] += the sum over the columns of part(i), for i < dim.
template <typename Part>
TROUPE_INLINE void add_row_sums(int64_t dim, float* to, const Part& part) {
  int64_t i = 0;
  for (; i + kLanes <= dim; i += kLanes) {
    Floats parts[kLanes], sums;
#pragma GCC unroll 16
    for (int u = 0; u < kLanes; ++u) {
      const Columns columns = part(i + u);
      parts[u] = columns.low + columns.high;
    }
    __builtin_memcpy(&sums, to + i, sizeof sums);
    sums += sums_of(parts);
    __builtin_memcpy(to + i, &sums, sizeof sums);
  }
  for (; i < dim; ++i) to[i] += total(part(i));
}

// Columns that are there of `from`, zeros for the others.
TROUPE_INLINE void load_columns(const float* from, int64_t columns, float* to) {
  for (int64_t j = 0; j < columns; ++j) to[j] = from[j];
  for (int64_t j = columns; j < kColumns; ++j) to[j] = 0;
}

// Columns [first, first + kColumns) of a scan, as far as they are there.
DeltaScan columns_of(const DeltaScan& all, int64_t first) {
  DeltaScan scan = all;
  scan.columns = all.columns - first < kColumns ? all.columns - first : kColumns;
  scan.v += first;
  if (scan.before != nullptr) scan.before += first;
  if (scan.after != nullptr) scan.after += first;
  if (scan.out != nullptr) scan.out += first;
  return scan;
}

void load_state(const DeltaScan& a, float* state) {
  for (int64_t i = 0; i < a.key_dim; ++i) {
    load_columns(a.before != nullptr ? a.before + i * a.before_stride : nullptr,
                 a.before != nullptr ? a.columns : 0, state + i * kColumns);
  }
}

// S^T x in four sums over the rows of the state, which hide the latency of the additions.
TROUPE_INLINE Columns read_state(const float* state, int64_t dim, const float* x) {
  Columns sums[4] = {};
  int64_t i = 0;
  for (; i + 4 <= dim; i += 4) {
#pragma GCC unroll 4
    for (int u = 0; u < 4; ++u) {
      const Columns row = columns_at(state + (i + u) * kColumns);
      sums[u].low += row.low * x[i + u];
      sums[u].high += row.high * x[i + u];
    }
  }
  for (; i < dim; ++i) {
    const Columns row = columns_at(state + i * kColumns);
    sums[0].low += row.low * x[i];
    sums[0].high += row.high * x[i];
  }
  return sum_of_four(sums);
}

// to = decay S + k d^T, which may be in the place of S, and its product with q.
TROUPE_INLINE Columns update_state(const float* state, float* to, int64_t dim, const float* q, const float* k,
                                   float decay, const Columns& d) {
  Columns sums[4] = {};
  const auto row = [&](int64_t i, Columns & sum) __attribute__((always_inline)) {
    Columns value = columns_at(state + i * kColumns);
    value.low = value.low * decay + d.low * k[i];
    value.high = value.high * decay + d.high * k[i];
    write(to + i * kColumns, value);
    sum.low += value.low * q[i];
    sum.high += value.high * q[i];
  };
  int64_t i = 0;
  for (; i + 4 <= dim; i += 4) {
#pragma GCC unroll 4
    for (int u = 0; u < 4; ++u) row(i + u, sums[u]);
  }
  for (; i < dim; ++i) row(i, sums[0]);
  return sum_of_four(sums);
}

struct Step {
  Columns memory, delta, out;
};
template <bool kErases>
TROUPE_INLINE Step step(const DeltaScan& a, int64_t r, const float* state, float* to) {
  const float* k = a.k + r * a.stride;
  const float decay = a.decay[r * a.gate_stride], beta = a.beta[r * a.gate_stride];
  alignas(64) float v[kColumns];
  load_columns(a.v + r * a.stride, a.columns, v);
  const Columns value = columns_at(v);
  Columns memory = {};
  if constexpr (kErases) {
    memory = read_state(state, a.key_dim, k);
    memory.low *= decay;
    memory.high *= decay;
  }
  const Columns delta{(value.low - memory.low) * beta, (value.high - memory.high) * beta};
  return {memory, delta, update_state(state, to, a.key_dim, a.q + r * a.stride, k, decay, delta)};
}

template <bool kErases>
void scan_columns(const DeltaScan& a) {
  alignas(64) float state[kMaxDeltaKeyDim * kColumns];
  alignas(64) float out[kColumns];
  load_state(a, state);
  for (int64_t r = 0; r < a.rows; ++r) {
    const Step done = step<kErases>(a, r, state, state);
    if (a.out == nullptr) continue;
    write(out, done.out);
    for (int64_t j = 0; j < a.columns; ++j) a.out[r * a.out_stride + j] = out[j];
  }
  if (a.after == nullptr) return;
  for (int64_t i = 0; i < a.key_dim; ++i) {
    for (int64_t j = 0; j < a.columns; ++j) a.after[i * a.after_stride + j] = state[i * kColumns + j];
  }
}

void scan(const DeltaScan& a) {
  for (int64_t first = 0; first < a.columns; first += kColumns) {
    const DeltaScan part = columns_of(a, first);
    a.erases ? scan_columns<true>(part) : scan_columns<false>(part);
  }
}

// What a row found and left.
struct RowStates {
  const float* before;
  const float* after;
  Columns memory, delta;
};

// One row back. d_state: by the state that it left, then by the one that it found.
template <bool kErases>
TROUPE_INLINE void step_backward(const DeltaScanBackward& b, int64_t r, const RowStates& states,
                                 float* d_state) {
  const DeltaScan& a = b.scan;
  const float* q = a.q + r * a.stride;
  const float* k = a.k + r * a.stride;
  const float decay = a.decay[r * a.gate_stride], beta = a.beta[r * a.gate_stride];
  const auto& [before, after, memory, delta] = states;
  alignas(64) float buffer[kColumns];
  load_columns(b.dout + r * a.out_stride, a.columns, buffer);
  const Columns dout = columns_at(buffer);
  load_columns(a.v + r * a.stride, a.columns, buffer);
  const Columns v = columns_at(buffer);

  Columns d_delta = {};
  for (int64_t i = 0; i < a.key_dim; ++i) {
    Columns d = columns_at(d_state + i * kColumns);
    d.low += dout.low * q[i];
    d.high += dout.high * q[i];
    write(d_state + i * kColumns, d);
    d_delta.low += d.low * k[i];
    d_delta.high += d.high * k[i];
  }
  add_row_sums(
      a.key_dim, b.dq + r * a.stride, [&](int64_t i) __attribute__((always_inline)) {
        const Columns left = columns_at(after + i * kColumns);
        return Columns{left.low * dout.low, left.high * dout.high};
      });
  b.dbeta[r * a.gate_stride] +=
      total({d_delta.low * (v.low - memory.low), d_delta.high * (v.high - memory.high)});
  const Columns dv{d_delta.low * beta, d_delta.high * beta};
  write(buffer, dv);
  for (int64_t j = 0; j < a.columns; ++j) b.dv[r * a.stride + j] = buffer[j];

  Columns by_decay = {};
  add_row_sums(
      a.key_dim, b.dk + r * a.stride, [&](int64_t i) __attribute__((always_inline)) {
        const Columns found = columns_at(before + i * kColumns);
        const Columns decayed{found.low * decay, found.high * decay};
        const Columns d = columns_at(d_state + i * kColumns);
        Columns back = d, by_key{d.low * delta.low, d.high * delta.high};
        if constexpr (kErases) {
          back = {d.low - dv.low * k[i], d.high - dv.high * k[i]};
          by_key.low -= decayed.low * dv.low;
          by_key.high -= decayed.high * dv.high;
        }
        by_decay.low += back.low * decayed.low;
        by_decay.high += back.high * decayed.high;
        write(d_state + i * kColumns, {back.low * decay, back.high * decay});
        return by_key;
      });
  b.dlog_decay[r * a.gate_stride] += total(by_decay);
}

// States between checkpoints are made again, those of the last rows first.
template <bool kErases>
void scan_backward_columns(const DeltaScanBackward& b) {
  const DeltaScan& a = b.scan;
  const int64_t size = a.key_dim * kColumns;
  const int64_t checkpoints = (a.rows + kDeltaCheckpoint - 1) / kDeltaCheckpoint;
  float* const kept = b.scratch;
  float* const found = kept + checkpoints * size;  // by the rows since the checkpoint
  float* const memories = found + kDeltaCheckpoint * size;
  float* const deltas = memories + kDeltaCheckpoint * kColumns;
  alignas(64) float state[kMaxDeltaKeyDim * kColumns];
  alignas(64) float d_state[kMaxDeltaKeyDim * kColumns];
  for (int64_t i = 0; i < a.key_dim; ++i)
    load_columns(b.d_state + i * kDeltaColumns, kColumns, d_state + i * kColumns);
  const auto copy = [&](float* to, const float* from) {
    __builtin_memcpy(to, from, static_cast<uint64_t>(size) * sizeof(float));
  };
  load_state(a, state);
  for (int64_t r = 0; r < (checkpoints - 1) * kDeltaCheckpoint; ++r) {
    if (r % kDeltaCheckpoint == 0) copy(kept + r / kDeltaCheckpoint * size, state);
    step<kErases>(a, r, state, state);
  }
  if (checkpoints > 0) copy(kept + (checkpoints - 1) * size, state);
  for (int64_t checkpoint = checkpoints; checkpoint-- > 0;) {
    const int64_t first = checkpoint * kDeltaCheckpoint;
    const int64_t rows = a.rows - first < kDeltaCheckpoint ? a.rows - first : kDeltaCheckpoint;
    copy(found, kept + checkpoint * size);
    const auto left_by = [&](int64_t r) { return r + 1 < rows ? found + (r + 1) * size : state; };
    for (int64_t r = 0; r < rows; ++r) {
      const Step done = step<kErases>(a, first + r, found + r * size, left_by(r));
      write(memories + r * kColumns, done.memory);
      write(deltas + r * kColumns, done.delta);
    }
    for (int64_t r = rows; r-- > 0;) {
      step_backward<kErases>(b, first + r,
                             {found + r * size, left_by(r), columns_at(memories + r * kColumns),
                              columns_at(deltas + r * kColumns)},
                             d_state);
    }
  }
  for (int64_t i = 0; i < a.key_dim; ++i) {
    for (int64_t j = 0; j < kColumns; ++j) b.d_state[i * kDeltaColumns + j] = d_state[i * kColumns + j];
  }
}

void scan_backward(const DeltaScanBackward& all) {
  for (int64_t first = 0; first < all.scan.columns; first += kColumns) {
    DeltaScanBackward part = all;
    part.scan = columns_of(all.scan, first);
    part.dout += first;
    part.dv += first;
    part.d_state += first;
    part.scan.erases ? scan_backward_columns<true>(part) : scan_backward_columns<false>(part);
  }
}

}  // namespace

extern const DeltaKernels delta_table;
const DeltaKernels delta_table = {scan, scan_backward};

}  // namespace troupe::kernels::TROUPE_ISA
