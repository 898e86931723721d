// The tiles of the two products: as many rows and vectors as fit into registers.
#include <utility>

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
    const Scalar* value = keys_of<Scalar>(t.pages[page]) + (t.first_value + position % kPage) * t.dim + d;
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
            keys_of<Scalar>(t.pages[position / kPage]) + (t.first_value + position % kPage) * t.dim;
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
    return keys_of<BFloat16>(t.pages[position / kPage]) + (t.first_value + position % kPage) * t.dim +
           t.first;
  };
  for (int64_t s = 0; s < steps; ++s)
    pair(row(2 * s), row(2 * s + 1), t.there, t.width, target + s * t.width);
}

// Of kLanes rows of as many words, lane j of vector i and lane i of vector j change places: halves of blocks
// first, single lanes last.
template <int kHalf, int... kLane>
inline void exchange_halves(Words* rows, std::integer_sequence<int, kLane...>) {
  for (int i = 0; i < kLanes; ++i) {
    if ((i & kHalf) != 0) continue;
    const Words upper = rows[i], lower = rows[i + kHalf];
    rows[i] =
        __builtin_shufflevector(upper, lower, ((kLane & kHalf) != 0 ? kLanes + kLane - kHalf : kLane)...);
    rows[i + kHalf] =
        __builtin_shufflevector(upper, lower, ((kLane & kHalf) != 0 ? kLanes + kLane : kLane + kHalf)...);
  }
}

inline void transpose(Words* rows) {
  constexpr auto kEach = std::make_integer_sequence<int, kLanes>();
  if constexpr (kLanes >= 16) exchange_halves<kLanes / 2>(rows, kEach);
  if constexpr (kLanes >= 8) exchange_halves<4>(rows, kEach);
  exchange_halves<2>(rows, kEach);
  exchange_halves<1>(rows, kEach);
}

// Words [kPage, count], `stride` bytes from row to row, as [count, kPage].
void transpose_words(const char* from, int64_t stride, int64_t count, Word* target) {
  int64_t column = 0;
  for (; column + kLanes <= count; column += kLanes) {
    for (int64_t row = 0; row < kPage; row += kLanes) {
      Words block[kLanes];
      for (int i = 0; i < kLanes; ++i)
        __builtin_memcpy(&block[i], from + (row + i) * stride + column * int64_t{sizeof(Word)},
                         sizeof(Words));
      transpose(block);
      for (int i = 0; i < kLanes; ++i)
        __builtin_memcpy(target + (column + i) * kPage + row, &block[i], sizeof(Words));
    }
  }
  for (; column < count; ++column) {
    for (int64_t row = 0; row < kPage; ++row)
      __builtin_memcpy(target + column * kPage + row, from + row * stride + column * int64_t{sizeof(Word)},
                       sizeof(Word));
  }
}

void keys_of_values_float32(const char* page, int64_t dim, char* target) {
  transpose_words(page, dim * int64_t{sizeof(float)}, dim, reinterpret_cast<Word*>(target));
}

void keys_of_values_bfloat16(const char* page, int64_t dim, char* target) {
  const BFloat16* values = keys_of<BFloat16>(page);
  auto* keys = reinterpret_cast<BFloat16*>(target);
  for (int64_t d = 0; d < dim; ++d) {
    for (int64_t position = 0; position < kPage; ++position)
      keys[d * kPage + position] = values[position * dim + d];
  }
}

void key_words_of_values(const char* page, int64_t dim, int64_t steps, Word* target) {
  transpose_words(page, dim * int64_t{sizeof(BFloat16)}, dim / 2, target);
  for (int64_t s = dim / 2; s < steps; ++s) {
    const BFloat16* last = s == dim / 2 && dim % 2 != 0 ? keys_of<BFloat16>(page) + dim - 1 : nullptr;
    for (int64_t position = 0; position < kPage; ++position)
      target[s * kPage + position] =
          last != nullptr ? reinterpret_cast<const uint16_t&>(last[position * dim]) : 0;
  }
}

}  // namespace

extern const PagedAttentionKernels paged_attention_table;
const PagedAttentionKernels paged_attention_table = {
    scores_float32, scores_bfloat16,        values_float32,          values_bfloat16,    key_words,
    value_words,    keys_of_values_float32, keys_of_values_bfloat16, key_words_of_values};

}  // namespace troupe::kernels::TROUPE_ISA
