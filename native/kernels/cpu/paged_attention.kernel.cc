// The tiles of the two products: as many rows and vectors as fit into registers.
#include "kernels/cpu/lanes.h"
#include "kernels/cpu/paged_attention_kernels.h"
#include "kernels/cpu/vector_math.h"

namespace troupe::kernels::TROUPE_ISA {

namespace {

constexpr int kSums = kLanes == 16 ? 16 : 8;  // of 32 and 16 registers
typedef float Floats __attribute__((vector_size(kLanes * 4)));
typedef unsigned int Words __attribute__((vector_size(kLanes * 4)));
typedef unsigned short Halves __attribute__((vector_size(kLanes * 2)));

constexpr int kPage = 32;  // kPagePositions
constexpr int kPageVectors = kPage / kLanes;
constexpr int kMaxRows = kSums / kPageVectors < 8 ? kSums / kPageVectors : 8;

inline Floats load_vector(const float* p) {
  Floats v;
  __builtin_memcpy(&v, p, sizeof v);
  return v;
}
inline Floats load_vector(const BFloat16* p) {
  Halves h;
  __builtin_memcpy(&h, p, sizeof h);
  return reinterpret_cast<Floats>(__builtin_convertvector(h, Words) << 16);
}
inline void store_vector(float* p, Floats v) {
  __builtin_memcpy(p, &v, sizeof v);
}

template <typename Scalar>
inline const Scalar* keys_of(const char* page) {
  return reinterpret_cast<const Scalar*>(page);
}

// A key dimension of a page, or as many elements of its values. Keys and values are read once per step, and
// come faster when they are asked for than when the processor finds out by itself that they will be read.
template <typename Scalar>
inline void fetch_row(const Scalar* from) {
  constexpr int64_t kLine = 64;
  for (int64_t at = 0; at < kPage * int64_t{sizeof(Scalar)}; at += kLine)
    __builtin_prefetch(reinterpret_cast<const char*>(from) + at, 0, 2);
}

// Dot products of kRows queries with the keys of kPages pages.
template <typename Scalar, int kRows, int kPages>
void score_tile(const PageScores& t, int64_t row, int64_t page) {
  const Scalar* keys[kPages];
  for (int p = 0; p < kPages; ++p) keys[p] = keys_of<Scalar>(t.pages[page + p]);
  Floats sum[kPages][kRows][kPageVectors];
  for (int p = 0; p < kPages; ++p) {
    for (int r = 0; r < kRows; ++r) {
      for (int v = 0; v < kPageVectors; ++v) sum[p][r][v] = Floats{};
    }
  }
  const float* q = t.q + row * t.dim;
  const Scalar* next[kPages];
  for (int p = 0; p < kPages; ++p)
    next[p] = page + kPages + p < t.pages_there ? keys_of<Scalar>(t.pages[page + kPages + p]) : keys[p];
  for (int64_t d = 0; d < t.dim; ++d) {
    for (int p = 0; p < kPages && row == 0; ++p) {
      fetch_row(next[p] + d * kPage);
      fetch_row(keys[p] + (t.dim + d) * kPage);  // of the values
    }
    for (int p = 0; p < kPages; ++p) {
      for (int v = 0; v < kPageVectors; ++v) {
        const Floats key = load_vector(keys[p] + d * kPage + v * kLanes);
        for (int r = 0; r < kRows; ++r) sum[p][r][v] += (q[r * t.dim + d] - Floats{}) * key;
      }
    }
  }
  for (int p = 0; p < kPages; ++p) {
    for (int r = 0; r < kRows; ++r) {
      float* out = t.out + (row + r) * t.ld + (page + p) * kPage;
      for (int v = 0; v < kPageVectors; ++v) store_vector(out + v * kLanes, sum[p][r][v]);
    }
  }
}

template <typename Scalar, int kRows>
void score_rows(const PageScores& t, int64_t row) {
  constexpr int kMost = kSums / (kPageVectors * kRows);
  constexpr int kPages = kMost < 1 ? 1 : kMost > 4 ? 4 : kMost;
  for (; row + kRows <= t.rows; row += kRows) {
    int64_t page = 0;
    for (; page + kPages <= t.num_pages; page += kPages) score_tile<Scalar, kRows, kPages>(t, row, page);
    for (; page < t.num_pages; ++page) score_tile<Scalar, kRows, 1>(t, row, page);
  }
  if constexpr (kRows > 1) score_rows<Scalar, kRows / 2>(t, row);
}

// kRows rows of columns [d, d + kVectors * kLanes).
template <typename Scalar, int kRows, int kVectors>
void value_tile(const PageValues& t, int64_t row, int64_t d) {
  Floats sum[kRows][kVectors];
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < kVectors; ++v) sum[r][v] = Floats{};
  }
  const float* weight = t.weights + row * t.ld - t.begin;
  for (int64_t position = t.begin; position < t.end;) {
    const int64_t page = position / kPage;
    const int64_t stop = (page + 1) * kPage < t.end ? (page + 1) * kPage : t.end;
    const Scalar* value = keys_of<Scalar>(t.pages[page]) + (kPage + position % kPage) * t.dim + d;
    for (; position < stop; ++position, value += t.dim) {
      for (int v = 0; v < kVectors; ++v) {
        const Floats column = load_vector(value + v * kLanes);
        for (int r = 0; r < kRows; ++r) sum[r][v] += (weight[r * t.ld + position] - Floats{}) * column;
      }
    }
  }
  for (int r = 0; r < kRows; ++r) {
    float* out = t.out + (row + r) * t.dim + d;
    for (int v = 0; v < kVectors; ++v) {
      store_vector(out + v * kLanes, t.add ? load_vector(out + v * kLanes) + sum[r][v] : sum[r][v]);
    }
  }
}

// The columns that fill no vector.
template <typename Scalar>
void value_rest(const PageValues& t, int64_t row, int64_t rows, int64_t d) {
  for (int64_t r = row; r < row + rows; ++r) {
    const float* weight = t.weights + r * t.ld - t.begin;
    for (int64_t column = d; column < t.dim; ++column) {
      float sum = 0;
      for (int64_t position = t.begin; position < t.end; ++position) {
        const Scalar* values =
            keys_of<Scalar>(t.pages[position / kPage]) + (kPage + position % kPage) * t.dim;
        sum += weight[position] * load(values + column);
      }
      float* out = t.out + r * t.dim + column;
      *out = t.add ? *out + sum : sum;
    }
  }
}

template <typename Scalar, int kRows, int kVectors>
void value_columns(const PageValues& t, int64_t row, int64_t d) {
  for (; d + kVectors * kLanes <= t.dim; d += kVectors * kLanes)
    value_tile<Scalar, kRows, kVectors>(t, row, d);
  if constexpr (kVectors > 1) {
    value_columns<Scalar, kRows, kVectors / 2>(t, row, d);
  } else {
    value_rest<Scalar>(t, row, kRows, d);
  }
}

template <typename Scalar, int kRows>
void value_rows(const PageValues& t, int64_t row) {
  constexpr int kMost = kSums / kRows;
  constexpr int kVectors = kMost < 1 ? 1 : kMost > 8 ? 8 : kMost;
  for (; row + kRows <= t.rows; row += kRows) value_columns<Scalar, kRows, kVectors>(t, row, 0);
  if constexpr (kRows > 1) value_rows<Scalar, kRows / 2>(t, row);
}

void scores_float32(const PageScores& t) {
  score_rows<float, kMaxRows>(t, 0);
}
void scores_bfloat16(const PageScores& t) {
  score_rows<BFloat16, kMaxRows>(t, 0);
}
void values_float32(const PageValues& t) {
  value_rows<float, kMaxRows>(t, 0);
}
void values_bfloat16(const PageValues& t) {
  value_rows<BFloat16, kMaxRows>(t, 0);
}

// target[c] = low[c], high[c]; no row: zeros.
inline void pair(const BFloat16* low, const BFloat16* high, int64_t there, int64_t width, Word* target) {
  const auto* even = reinterpret_cast<const uint16_t*>(low);
  const auto* odd = reinterpret_cast<const uint16_t*>(high);
  if (odd != nullptr) {
#pragma omp simd
    for (int64_t c = 0; c < there; ++c) target[c] = even[c] | static_cast<uint32_t>(odd[c]) << 16;
  } else {
    for (int64_t c = 0; c < there; ++c) target[c] = even != nullptr ? even[c] : 0;
  }
  for (int64_t c = there; c < width; ++c) target[c] = 0;
}

void key_words(const char* page, int64_t dim, int64_t steps, Word* target) {
  const BFloat16* keys = keys_of<BFloat16>(page);
  const auto row = [&](int64_t d) { return d < dim ? keys + d * kPage : nullptr; };
  for (int64_t s = 0; s < steps; ++s) pair(row(2 * s), row(2 * s + 1), kPage, kPage, target + s * kPage);
}

void value_words(const ValueColumns& t, int64_t steps, Word* target) {
  const auto row = [&](int64_t i) -> const BFloat16* {
    const int64_t position = t.begin + i;
    if (position >= t.end) return nullptr;
    return keys_of<BFloat16>(t.pages[position / kPage]) + (kPage + position % kPage) * t.dim + t.first;
  };
  for (int64_t s = 0; s < steps; ++s)
    pair(row(2 * s), row(2 * s + 1), t.there, t.width, target + s * t.width);
}

}  // namespace

extern const PagedAttentionKernels paged_attention_table;
const PagedAttentionKernels paged_attention_table = {scores_float32,  scores_bfloat16, values_float32,
                                                     values_bfloat16, key_words,       value_words};

}  // namespace troupe::kernels::TROUPE_ISA
