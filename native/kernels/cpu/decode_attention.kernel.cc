// Attention of one new token to cached keys.
#include "kernels/cpu/decode_attention_kernels.h"
#include "kernels/cpu/vector_math.h"

namespace troupe::kernels::TROUPE_ISA {

namespace {

#if defined(__AVX512F__)
constexpr int kLanes = 16;
#elif defined(__AVX2__)
constexpr int kLanes = 8;
#else
constexpr int kLanes = 4;
#endif
typedef float Floats __attribute__((vector_size(kLanes * 4)));
typedef unsigned int Words __attribute__((vector_size(kLanes * 4)));
typedef unsigned short Halves __attribute__((vector_size(kLanes * 2)));

constexpr int kPage = static_cast<int>(kPagePositions);
constexpr int kPageVectors = kPage / kLanes;
// Enough independent sums to hide the latency of a multiply-add, few enough for the registers.
constexpr int kSums = 8;
constexpr int kMaxHeads = kSums / kPageVectors;  // query heads that share one load of a key

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
struct Attention {
  const DecodeAttentionTask& task;
  const int64_t dim;
  int64_t prompt_pages, num_pages, first_page;
  int64_t slots;         // visited pages * kPage
  float* const q;        // [G, D], scaled
  float* const sums;     // [G, D]
  float* const weights;  // [G, slots]

  explicit Attention(const DecodeAttentionTask& t)
      : task(t), dim(t.head_dim), q(t.scratch), sums(q + t.groups * dim), weights(sums + t.groups * dim) {
    prompt_pages = (t.prompt_length + kPage - 1) / kPage;
    num_pages = prompt_pages + (t.length - t.prompt_length + kPage - 1) / kPage;
    first_page = t.first_key < t.prompt_length ? t.first_key / kPage
                                               : prompt_pages + (t.first_key - t.prompt_length) / kPage;
    slots = (num_pages - first_page) * kPage;
  }

  const Scalar* page_keys(int64_t page) const {
    return reinterpret_cast<const Scalar*>(task.pages[page] + task.head_bytes);
  }
  const Scalar* page_values(int64_t page) const { return page_keys(page) + dim * kPage; }

  // Slots [begin, end) of a page hold visible keys.
  struct Range {
    int begin, end;
  };
  Range visible(int64_t page) const {
    const bool prompt = page < prompt_pages;
    const int64_t start = prompt ? page * kPage : task.prompt_length + (page - prompt_pages) * kPage;
    const int64_t limit = (prompt ? task.prompt_length : task.length) - start;
    const int64_t begin = task.first_key - start;
    return {static_cast<int>(begin > 0 ? begin : 0), static_cast<int>(limit < kPage ? limit : kPage)};
  }

  void load_queries() {
    const float factor = task.softcap > 0 ? task.scale / task.softcap : task.scale;
    const Scalar* source = static_cast<const Scalar*>(task.q);
    for (int64_t i = 0; i < task.groups * dim; ++i) q[i] = load(source + i) * factor;
  }

  // Dot products of `Heads` query heads with the keys of a page.
  template <int Heads>
  void page_scores(const Scalar* keys, const float* query, float* out) const {
    constexpr int kSplit = kSums / (kPageVectors * Heads);
    Floats sum[kSplit][Heads][kPageVectors] = {};
    int64_t d = 0;
    for (; d + kSplit <= dim; d += kSplit) {
      for (int s = 0; s < kSplit; ++s) {
        for (int v = 0; v < kPageVectors; ++v) {
          const Floats key = load_vector(keys + (d + s) * kPage + v * kLanes);
          for (int h = 0; h < Heads; ++h) sum[s][h][v] += query[h * dim + d + s] * key;
        }
      }
    }
    for (; d < dim; ++d) {
      for (int v = 0; v < kPageVectors; ++v) {
        const Floats key = load_vector(keys + d * kPage + v * kLanes);
        for (int h = 0; h < Heads; ++h) sum[0][h][v] += query[h * dim + d] * key;
      }
    }
    for (int h = 0; h < Heads; ++h) {
      for (int v = 0; v < kPageVectors; ++v) {
        Floats total = sum[0][h][v];
        for (int s = 1; s < kSplit; ++s) total += sum[s][h][v];
        store_vector(out + h * slots + v * kLanes, total);
      }
    }
  }

  template <int Heads>
  void score_heads(int64_t page, int64_t head) const {
    for (; head + Heads <= task.groups; head += Heads) {
      page_scores<Heads>(page_keys(page), q + head * dim,
                         weights + head * slots + (page - first_page) * kPage);
    }
    if constexpr (Heads > 1) score_heads<Heads / 2>(page, head);
  }

  // Unused slots of a page hold anything, NaN included.
  void hide_unused(int64_t page) const {
    const Range range = visible(page);
    if (range.begin == 0 && range.end == kPage) return;
    for (int64_t head = 0; head < task.groups; ++head) {
      float* row = weights + head * slots + (page - first_page) * kPage;
      for (int j = 0; j < range.begin; ++j) row[j] = -__builtin_inff();
      for (int j = range.end; j < kPage; ++j) row[j] = -__builtin_inff();
    }
  }

  // Scores of one head -> exp(score - max); returns their sum.
  float softmax(float* row) const {
    if (task.softcap > 0) {
#pragma omp simd
      for (int64_t j = 0; j < slots; ++j) {
        row[j] = row[j] > -__builtin_inff() ? task.softcap * vector_tanh(row[j]) : row[j];
      }
    }
    float lane[kPage];
    for (int j = 0; j < kPage; ++j) lane[j] = row[j];
    for (int64_t begin = kPage; begin < slots; begin += kPage) {
#pragma omp simd
      for (int j = 0; j < kPage; ++j) lane[j] = row[begin + j] > lane[j] ? row[begin + j] : lane[j];
    }
    float top = lane[0];
    for (int j = 1; j < kPage; ++j) top = lane[j] > top ? lane[j] : top;
    for (int j = 0; j < kPage; ++j) lane[j] = 0;
    for (int64_t begin = 0; begin < slots; begin += kPage) {
#pragma omp simd
      for (int j = 0; j < kPage; ++j) {
        const float weight = vector_exp(row[begin + j] - top);
        row[begin + j] = weight;
        lane[j] += weight;
      }
    }
    for (int half = kPage / 2; half > 0; half /= 2) {
      for (int j = 0; j < half; ++j) lane[j] += lane[j + half];
    }
    return lane[0];
  }

  // sums[h, d..] += weights[h, range] * values[range, d..] over Vectors whole vectors.
  template <int Heads, int Vectors>
  void add_values(const Scalar* values, Range range, const float* weight, float* out) const {
    Floats sum[Heads][Vectors];
    for (int h = 0; h < Heads; ++h) {
      for (int v = 0; v < Vectors; ++v) sum[h][v] = load_vector(out + h * dim + v * kLanes);
    }
    for (int j = range.begin; j < range.end; ++j) {
      for (int v = 0; v < Vectors; ++v) {
        const Floats value = load_vector(values + j * dim + v * kLanes);
        for (int h = 0; h < Heads; ++h) sum[h][v] += weight[h * slots + j] * value;
      }
    }
    for (int h = 0; h < Heads; ++h) {
      for (int v = 0; v < Vectors; ++v) store_vector(out + h * dim + v * kLanes, sum[h][v]);
    }
  }

  template <int Heads, int Vectors>
  void add_columns(const Scalar* values, Range range, const float* weight, float* out, int64_t d) const {
    for (; d + Vectors * kLanes <= dim; d += Vectors * kLanes) {
      add_values<Heads, Vectors>(values + d, range, weight, out + d);
    }
    if constexpr (Vectors > 1) {
      add_columns<Heads, Vectors / 2>(values, range, weight, out, d);
    } else {
      for (int h = 0; h < Heads; ++h) {
        for (int64_t column = d; column < dim; ++column) {
          float sum = out[h * dim + column];
          for (int j = range.begin; j < range.end; ++j)
            sum += weight[h * slots + j] * load(values + j * dim + column);
          out[h * dim + column] = sum;
        }
      }
    }
  }

  template <int Heads>
  void add_heads(int64_t page, Range range, int64_t head) const {
    for (; head + Heads <= task.groups; head += Heads) {
      add_columns<Heads, kSums / Heads>(page_values(page), range,
                                        weights + head * slots + (page - first_page) * kPage,
                                        sums + head * dim, 0);
    }
    if constexpr (Heads > 1) add_heads<Heads / 2>(page, range, head);
  }

  void run() {
    load_queries();
    for (int64_t page = first_page; page < num_pages; ++page) {
      score_heads<kMaxHeads>(page, 0);
      hide_unused(page);
    }
    Scalar* const out = static_cast<Scalar*>(task.out);
    for (int64_t i = 0; i < task.groups * dim; ++i) sums[i] = 0;
    // q is no longer needed: its first G floats keep the sums of the weights.
    for (int64_t head = 0; head < task.groups; ++head) q[head] = softmax(weights + head * slots);
    for (int64_t page = first_page; page < num_pages; ++page) add_heads<kMaxHeads>(page, visible(page), 0);
    for (int64_t head = 0; head < task.groups; ++head) {
      const float inverse = 1.0f / q[head];
      for (int64_t d = 0; d < dim; ++d) store(out + head * dim + d, sums[head * dim + d] * inverse);
    }
  }
};

void attend_float32(const DecodeAttentionTask& task) {
  Attention<float>(task).run();
}
void attend_bfloat16(const DecodeAttentionTask& task) {
  Attention<BFloat16>(task).run();
}

}  // namespace

extern const DecodeAttentionKernels decode_attention_table;
const DecodeAttentionKernels decode_attention_table = {attend_float32, attend_bfloat16};

}  // namespace troupe::kernels::TROUPE_ISA
