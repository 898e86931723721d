// The gated delta rule: what goes into it, and the scan over the rows of a sequence, forward and backward.
#include "kernels/cpu/gated_delta_kernels.h"
#include "kernels/cpu/vector_math.h"

namespace troupe::kernels::TROUPE_ISA {

namespace {

constexpr float kLengthEps = 1e-6f;  // of the squared length of q and k

TROUPE_INLINE float softplus(float x) {
  return x > 20.0f ? x : __builtin_log1pf(__builtin_expf(x));
}
TROUPE_INLINE float sigmoid(float x) {
  return 1.0f / (1.0f + __builtin_expf(-x));
}

template <typename T>
TROUPE_INLINE float inverse_length(const T* x, int64_t dim) {
  const float squares = sum_of(dim, [&](int64_t i) {
    const float value = load(x + i);
    return value * value;
  });
  return 1.0f / __builtin_sqrtf(squares + kLengthEps);
}

TROUPE_INLINE float query_scale(const DeltaShape& s) {
  return 1.0f / __builtin_sqrtf(static_cast<float>(s.key_dim));
}

template <typename T>
void inputs(const DeltaInputs& a) {
  const DeltaShape& s = a.shape;
  const int64_t keys = s.key_heads * s.key_dim, values = s.value_heads * s.value_dim;
  const T* a_log = static_cast<const T*>(a.a_log);
  const T* dt_bias = static_cast<const T*>(a.dt_bias);
  for (int64_t r = 0; r < a.rows; ++r) {
    const T* x = static_cast<const T*>(a.x.data) + r * a.x.stride;
    float* out = a.prepared + r * (2 * keys + values);
    for (int64_t head = 0; head < 2 * s.key_heads; ++head) {
      const T* from = x + head * s.key_dim;
      float* to = out + head * s.key_dim;
      const float scale = inverse_length(from, s.key_dim) * (head < s.key_heads ? query_scale(s) : 1.0f);
#pragma omp simd
      for (int64_t i = 0; i < s.key_dim; ++i) to[i] = load(from + i) * scale;
    }
#pragma omp simd
    for (int64_t i = 0; i < values; ++i) out[2 * keys + i] = load(x + 2 * keys + i);
    const T* b = static_cast<const T*>(a.b.data) + r * a.b.stride;
    const T* step = static_cast<const T*>(a.a.data) + r * a.a.stride;
    for (int64_t h = 0; h < s.value_heads; ++h) {
      a.beta[r * s.value_heads + h] = sigmoid(load(b + h));
      a.decay[r * s.value_heads + h] =
          __builtin_expf(-__builtin_expf(load(a_log + h)) * softplus(load(step + h) + load(dt_bias + h)));
    }
  }
}

// A vector n = x r of length one: dx = r (dn - n (n dn)).
template <typename T>
void inputs_backward(const DeltaInputsBackward& a) {
  const DeltaShape& s = a.shape;
  const int64_t keys = s.key_heads * s.key_dim, values = s.value_heads * s.value_dim;
  const T* a_log = static_cast<const T*>(a.a_log);
  const T* dt_bias = static_cast<const T*>(a.dt_bias);
  for (int64_t r = 0; r < a.rows; ++r) {
    const T* x = static_cast<const T*>(a.x.data) + r * a.x.stride;
    float* gradient = a.dprepared + r * (2 * keys + values);
    for (int64_t head = 0; head < 2 * s.key_heads; ++head) {
      const T* from = x + head * s.key_dim;
      float* d = gradient + head * s.key_dim;
      const float inverse = inverse_length(from, s.key_dim);
      const float scale = inverse * (head < s.key_heads ? query_scale(s) : 1.0f);
      const float along =
          sum_of(s.key_dim, [&](int64_t i) { return d[i] * load(from + i); }) * inverse * inverse;
#pragma omp simd
      for (int64_t i = 0; i < s.key_dim; ++i) d[i] = scale * (d[i] - load(from + i) * along);
    }
    const T* b = static_cast<const T*>(a.b.data) + r * a.b.stride;
    const T* step = static_cast<const T*>(a.a.data) + r * a.a.stride;
    T* db = static_cast<T*>(a.db.data) + r * a.db.stride;
    T* dstep = static_cast<T*>(a.da.data) + r * a.da.stride;
    for (int64_t h = 0; h < s.value_heads; ++h) {
      const float beta = sigmoid(load(b + h));
      store(db + h, a.dbeta[r * s.value_heads + h] * beta * (1.0f - beta));
      const float rate = -__builtin_expf(load(a_log + h));
      const float sum = load(step + h) + load(dt_bias + h);
      const float by_log = a.dlog_decay[r * s.value_heads + h];
      const float by_step = by_log * rate * sigmoid(sum);
      store(dstep + h, by_step);
      a.da_log[h] += by_log * rate * softplus(sum);
      a.ddt_bias[h] += by_step;
    }
  }
}

// Half of the columns at hand: one AVX-512 register; the compiler splits it on lesser processors.
constexpr int64_t kLanes = kDeltaColumns / 2;
typedef float Lanes __attribute__((vector_size(kLanes * sizeof(float)), aligned(4), may_alias));

// All columns at hand.
struct Columns {
  Lanes low, high;
};
TROUPE_INLINE Columns columns_at(const float* p) {
  return {*reinterpret_cast<const Lanes*>(p), *reinterpret_cast<const Lanes*>(p + kLanes)};
}
TROUPE_INLINE void write(float* p, const Columns& value) {
  *reinterpret_cast<Lanes*>(p) = value.low;
  *reinterpret_cast<Lanes*>(p + kLanes) = value.high;
}
TROUPE_INLINE Columns sum_of_four(const Columns (&parts)[4]) {
  return {(parts[0].low + parts[1].low) + (parts[2].low + parts[3].low),
          (parts[0].high + parts[1].high) + (parts[2].high + parts[3].high)};
}
TROUPE_INLINE float total(const Columns& value) {
  const Lanes both = value.low + value.high;
  float sums[kLanes];
  *reinterpret_cast<Lanes*>(sums) = both;
  float sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < kLanes; ++i) sum += sums[i];
  return sum;
}

// Columns that are there of `from`, zeros for the others.
TROUPE_INLINE void load_columns(const float* from, int64_t columns, float* to) {
  for (int64_t j = 0; j < columns; ++j) to[j] = from[j];
  for (int64_t j = columns; j < kDeltaColumns; ++j) to[j] = 0;
}

void load_state(const DeltaScan& a, float* state) {
  for (int64_t i = 0; i < a.key_dim; ++i) {
    load_columns(a.before != nullptr ? a.before + i * a.before_stride : nullptr,
                 a.before != nullptr ? a.columns : 0, state + i * kDeltaColumns);
  }
}

// S^T x in four sums over the rows of the state, which hide the latency of the additions.
TROUPE_INLINE Columns read_state(const float* state, int64_t dim, const float* x) {
  Columns sums[4] = {};
  int64_t i = 0;
  for (; i + 4 <= dim; i += 4) {
#pragma GCC unroll 4
    for (int u = 0; u < 4; ++u) {
      const Columns row = columns_at(state + (i + u) * kDeltaColumns);
      sums[u].low += row.low * x[i + u];
      sums[u].high += row.high * x[i + u];
    }
  }
  for (; i < dim; ++i) {
    const Columns row = columns_at(state + i * kDeltaColumns);
    sums[0].low += row.low * x[i];
    sums[0].high += row.high * x[i];
  }
  return sum_of_four(sums);
}

// S = decay S + k d^T, and S^T q.
TROUPE_INLINE Columns update_state(float* state, int64_t dim, const float* q, const float* k, float decay,
                                   const Columns& d) {
  Columns sums[4] = {};
  const auto row = [&](int64_t i, Columns & sum) __attribute__((always_inline)) {
    Columns value = columns_at(state + i * kDeltaColumns);
    value.low = value.low * decay + d.low * k[i];
    value.high = value.high * decay + d.high * k[i];
    write(state + i * kDeltaColumns, value);
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
TROUPE_INLINE Step step(const DeltaScan& a, int64_t r, float* state) {
  const float* k = a.k + r * a.stride;
  const float decay = a.decay[r * a.gate_stride], beta = a.beta[r * a.gate_stride];
  alignas(64) float v[kDeltaColumns];
  load_columns(a.v + r * a.stride, a.columns, v);
  const Columns value = columns_at(v);
  Columns memory = read_state(state, a.key_dim, k);
  memory.low *= decay;
  memory.high *= decay;
  const Columns delta{(value.low - memory.low) * beta, (value.high - memory.high) * beta};
  return {memory, delta, update_state(state, a.key_dim, a.q + r * a.stride, k, decay, delta)};
}

void scan(const DeltaScan& a) {
  alignas(64) float state[kMaxDeltaKeyDim * kDeltaColumns];
  alignas(64) float out[kDeltaColumns];
  load_state(a, state);
  for (int64_t r = 0; r < a.rows; ++r) {
    const Step done = step(a, r, state);
    if (a.out == nullptr) continue;
    write(out, done.out);
    for (int64_t j = 0; j < a.columns; ++j) a.out[r * a.out_stride + j] = out[j];
  }
  if (a.after == nullptr) return;
  for (int64_t i = 0; i < a.key_dim; ++i) {
    for (int64_t j = 0; j < a.columns; ++j) a.after[i * a.after_stride + j] = state[i * kDeltaColumns + j];
  }
}

// One row back. before: the state that the row found; d_state: by the one that it left, then by `before`.
TROUPE_INLINE void step_backward(const DeltaScanBackward& b, int64_t r, const float* before,
                                 const Columns& memory, const Columns& delta) {
  const DeltaScan& a = b.scan;
  const float* q = a.q + r * a.stride;
  const float* k = a.k + r * a.stride;
  float* dq = b.dq + r * a.stride;
  float* dk = b.dk + r * a.stride;
  const float decay = a.decay[r * a.gate_stride], beta = a.beta[r * a.gate_stride];
  alignas(64) float buffer[kDeltaColumns];
  load_columns(b.dout + r * a.out_stride, a.columns, buffer);
  const Columns dout = columns_at(buffer);
  load_columns(a.v + r * a.stride, a.columns, buffer);
  const Columns v = columns_at(buffer);

  Columns d_delta = {};
  for (int64_t i = 0; i < a.key_dim; ++i) {
    float* const gradient = b.d_state + i * kDeltaColumns;
    const Columns old = columns_at(before + i * kDeltaColumns);
    Columns d = columns_at(gradient);
    d.low += dout.low * q[i];
    d.high += dout.high * q[i];
    write(gradient, d);
    d_delta.low += d.low * k[i];
    d_delta.high += d.high * k[i];
    dk[i] += total({d.low * delta.low, d.high * delta.high});
    dq[i] += total({(old.low * decay + delta.low * k[i]) * dout.low,
                    (old.high * decay + delta.high * k[i]) * dout.high});
  }
  b.dbeta[r * a.gate_stride] +=
      total({d_delta.low * (v.low - memory.low), d_delta.high * (v.high - memory.high)});
  const Columns dv{d_delta.low * beta, d_delta.high * beta};
  write(buffer, dv);
  for (int64_t j = 0; j < a.columns; ++j) b.dv[r * a.stride + j] = buffer[j];

  Columns by_decay = {};
  for (int64_t i = 0; i < a.key_dim; ++i) {
    float* const gradient = b.d_state + i * kDeltaColumns;
    const Columns old = columns_at(before + i * kDeltaColumns);
    const Columns decayed{old.low * decay, old.high * decay};
    Columns d = columns_at(gradient);
    d.low -= dv.low * k[i];
    d.high -= dv.high * k[i];
    dk[i] -= total({decayed.low * dv.low, decayed.high * dv.high});
    by_decay.low += d.low * decayed.low;
    by_decay.high += d.high * decayed.high;
    write(gradient, {d.low * decay, d.high * decay});
  }
  b.dlog_decay[r * a.gate_stride] += total(by_decay);
}

// States between checkpoints are made again, those of the last rows first.
void scan_backward(const DeltaScanBackward& b) {
  const DeltaScan& a = b.scan;
  const int64_t size = a.key_dim * kDeltaColumns;
  const int64_t checkpoints = (a.rows + kDeltaCheckpoint - 1) / kDeltaCheckpoint;
  float* const kept = b.scratch;
  float* const found = kept + checkpoints * size;  // by the rows since the checkpoint
  float* const memories = found + kDeltaCheckpoint * size;
  float* const deltas = memories + kDeltaCheckpoint * kDeltaColumns;
  const auto copy = [&](float* to, const float* from) {
    __builtin_memcpy(to, from, static_cast<uint64_t>(size) * sizeof(float));
  };
  alignas(64) float state[kMaxDeltaKeyDim * kDeltaColumns];
  load_state(a, state);
  for (int64_t r = 0; r < (checkpoints - 1) * kDeltaCheckpoint; ++r) {
    if (r % kDeltaCheckpoint == 0) copy(kept + r / kDeltaCheckpoint * size, state);
    step(a, r, state);
  }
  if (checkpoints > 0) copy(kept + (checkpoints - 1) * size, state);
  for (int64_t checkpoint = checkpoints; checkpoint-- > 0;) {
    const int64_t first = checkpoint * kDeltaCheckpoint;
    const int64_t rows = a.rows - first < kDeltaCheckpoint ? a.rows - first : kDeltaCheckpoint;
    copy(state, kept + checkpoint * size);
    for (int64_t r = 0; r < rows; ++r) {
      copy(found + r * size, state);
      const Step done = step(a, first + r, state);
      write(memories + r * kDeltaColumns, done.memory);
      write(deltas + r * kDeltaColumns, done.delta);
    }
    for (int64_t r = rows; r-- > 0;) {
      step_backward(b, first + r, found + r * size, columns_at(memories + r * kDeltaColumns),
                    columns_at(deltas + r * kDeltaColumns));
    }
  }
}

}  // namespace

extern const DeltaKernels delta_table;
const DeltaKernels delta_table = {{inputs<float>, inputs<BFloat16>},
                                  {inputs_backward<float>, inputs_backward<BFloat16>},
                                  scan,
                                  scan_backward};

}  // namespace troupe::kernels::TROUPE_ISA
