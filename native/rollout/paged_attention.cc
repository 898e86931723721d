// Attention on pages over all runs and heads of a step.
#include "rollout/paged_attention.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <optional>
#include <utility>

#include "base/parallel.h"
#include "base/range.h"
#include "kernels/attention_blocks.h"
#include "kernels/attention_sinks.h"
#include "kernels/cpu/isa.h"
#include "kernels/cpu/paged_attention_kernels.h"
#include "rollout/page_products.h"

TROUPE_DECLARE_TABLES(PagedAttentionKernels, paged_attention_table)

namespace troupe::kernels {
const PagedAttentionKernels& paged_attention_kernels() {
  return TROUPE_PICK_TABLE(paged_attention_table);
}
}  // namespace troupe::kernels

namespace troupe {
namespace {

using ops::attention::kKeyBlock;
using ops::attention::Shape;

constexpr int64_t kRangesPerThread = 16;
// Less than this, in elements of keys and values, costs less than waking the other threads.
constexpr int64_t kSmallStep = 1 << 17;

// Buffers of one thread, kept from one item to the next.
struct Scratch {
  explicit Scratch(bool bfloat16) {
    if (bfloat16 && PageProducts::available()) products.emplace();
  }

  std::vector<const char*> pages;
  std::vector<float> floats;
  std::vector<char> keys;  // of pages that hold values alone
  std::optional<PageProducts>
      products;  // of bfloat16 by kernels of our own, else of the keys and values made float32
};

// Rows of one run that lie in one block of queries, see [Note: one shape per position] in
// kernels/attention_blocks.h: where blocks of keys begin follows from where the block of queries does.
struct Piece {
  const RowRun* run;
  int64_t first, count;  // positions
};

// Query heads of a key head, of all that it has: [first, first + count).
struct QueryHeads {
  int64_t first, count;
};

class Attention {
 public:
  // lse [Q, rows] float32: written where it is defined.
  Attention(const ops::AttentionSpec& spec, const KvCache& cache, int64_t layer, const at::Tensor& qkv,
            const at::Tensor& out, const at::Tensor& lse)
      : spec_(spec),
        shape_(spec),
        cache_(cache),
        layer_(layer),
        qkv_(static_cast<const char*>(qkv.const_data_ptr())),
        qkv_ld_(qkv.stride(0)),
        out_(static_cast<char*>(out.data_ptr())),
        lse_(lse.defined() ? lse.data_ptr<float>() : nullptr),
        lse_ld_(lse.defined() ? lse.stride(0) : 0) {}

  // As attention.cc's forward_block, with keys and values in pages and the rows that are there alone. The
  // first `shared` pages are read by a neighbour of the piece, too.
  void run(const Piece& piece, int64_t head, const QueryHeads& queries, int64_t shared,
           Scratch& scratch) const {
    const bool float32 = cache_.dtype() == at::kFloat;
    const auto& kernels = kernels::paged_attention_kernels();
    const int64_t dim = spec_.head_dim, rows = queries.count * piece.count;
    const int64_t end = piece.first + piece.count;  // of the keys
    const int64_t key_begin = shape_.first_key(piece.first / shape_.query_block * shape_.query_block);
    const int64_t first_page = key_begin / kPagePositions;
    scratch.pages.clear();
    for (int64_t page = 0; page < KvCache::pages_for(end); ++page) {
      scratch.pages.push_back(cache_.address((*piece.run->pages)[static_cast<size_t>(page)]) +
                              cache_.head_bytes(layer_, head));
    }
    const PageProducts::Pages kept{scratch.pages.data(), shared, piece.run->position + piece.run->count,
                                   cache_.keys_hold_values()};
    const int64_t ld =
        std::min(kKeyBlock + 2 * kPagePositions, (KvCache::pages_for(end) - first_page) * kPagePositions);
    const auto floats = static_cast<size_t>(rows * (2 * dim + ld + 3));
    if (scratch.floats.size() < floats) scratch.floats.resize(floats);
    float* const q = scratch.floats.data();
    float* const o = q + rows * dim;
    float* const row_max = o + rows * dim;
    float* const row_sum = row_max + rows;
    float* const correction = row_sum + rows;
    float* const scores = correction + rows;

    if (scratch.products) {
      scratch.products->take_queries(
          rows, dim, [&](at::BFloat16* target) { load<at::BFloat16>(piece, head, queries, target); });
    } else if (float32) {
      load<float>(piece, head, queries, q);
    } else {
      load<at::BFloat16>(piece, head, queries, q);
    }
    std::fill(row_max, row_max + rows, -std::numeric_limits<float>::infinity());
    std::fill(row_sum, row_sum + rows, 0.0f);
    for (int64_t k0 = key_begin; k0 < end; k0 += kKeyBlock) {
      const int64_t cols = std::min(kKeyBlock, end - k0);
      const int64_t page = k0 / kPagePositions;
      float* const block = scores + (k0 - page * kPagePositions);
      const char* const* const pages = scratch.pages.data() + page;
      const int64_t num_pages = KvCache::pages_for(k0 + cols) - page;
      if (scratch.products) {
        scratch.products->scores(kept, page, page + num_pages, scores, ld);
      } else {
        const kernels::PageScores product{q,      rows, dim, pages, num_pages, KvCache::pages_for(end) - page,
                                          scores, ld};
        multiply_keys(product, scratch);
      }
      kernels::ScoreBlock softmax = shape_.block(queries.count, piece.first, piece.count, k0, cols);
      softmax.ld = ld;
      kernels::attention_kernels().softmax(block, softmax, row_max, row_sum, correction);
      const bool add = k0 != key_begin;
      if (add) kernels::attention_kernels().scale_rows(o, rows, dim, correction);
      if (scratch.products) {
        scratch.products->values(block, ld, kept, k0, k0 + cols, o, add);
      } else {
        const kernels::PageValues values{
            block, rows,      dim, ld,  scratch.pages.data(),
            k0,    k0 + cols, o,   add, cache_.keys_hold_values() ? 0 : kPagePositions};
        (float32 ? kernels.values_float32 : kernels.values_bfloat16)(values);
      }
    }
    kernels::attention_kernels().divide_rows(o, rows, dim, row_sum);
    store(piece, head, queries, o);
    if (lse_ != nullptr) store_sums(piece, head, queries, row_max, row_sum);
  }

 private:
  // Where pages hold values alone, which are the keys, they are laid out as keys, some pages at a time.
  void multiply_keys(kernels::PageScores product, Scratch& scratch) const {
    const bool float32 = cache_.dtype() == at::kFloat;
    const auto& kernels = kernels::paged_attention_kernels();
    const auto multiply = float32 ? kernels.scores_float32 : kernels.scores_bfloat16;
    if (!cache_.keys_hold_values()) return multiply(product);
    constexpr int64_t kAtOnce = 4;
    const auto bytes = product.dim * kPagePositions * static_cast<int64_t>(c10::elementSize(cache_.dtype()));
    if (scratch.keys.size() < static_cast<size_t>(kAtOnce * bytes))
      scratch.keys.resize(static_cast<size_t>(kAtOnce * bytes));
    const char* const* const all = product.pages;
    const int64_t count = product.num_pages;
    std::array<const char*, kAtOnce> laid_out{};
    product.pages = laid_out.data();
    for (int64_t page = 0; page < count; page += kAtOnce, product.out += kAtOnce * kPagePositions) {
      product.num_pages = product.pages_there = std::min(kAtOnce, count - page);
      for (int64_t i = 0; i < product.num_pages; ++i) {
        char* const keys = scratch.keys.data() + i * bytes;
        (float32 ? kernels.keys_of_values_float32 : kernels.keys_of_values_bfloat16)(all[page + i],
                                                                                     product.dim, keys);
        laid_out[static_cast<size_t>(i)] = keys;
      }
      multiply(product);
    }
  }
  // Row g * count + i: the g-th of these query heads at the piece's position i.
  template <typename Scalar, typename Operand>
  void load(const Piece& piece, int64_t head, const QueryHeads& queries, Operand* q) const {
    for (int64_t g = 0; g < queries.count; ++g) {
      const int64_t at = row_of(piece) * qkv_ld_ + shape_.q_column(head, queries.first + g);
      ops::attention::load_rows(reinterpret_cast<const Scalar*>(qkv_) + at, qkv_ld_, piece.count,
                                spec_.head_dim, q + g * piece.count * spec_.head_dim);
    }
  }
  void store(const Piece& piece, int64_t head, const QueryHeads& queries, const float* o) const {
    for (int64_t g = 0; g < queries.count; ++g) {
      const int64_t at = row_of(piece) * out_ld() + shape_.q_column(head, queries.first + g);
      const float* source = o + g * piece.count * spec_.head_dim;
      if (cache_.dtype() == at::kFloat) {
        ops::attention::store_rows(source, piece.count, spec_.head_dim, reinterpret_cast<float*>(out_) + at,
                                   out_ld());
      } else {
        ops::attention::store_rows(source, piece.count, spec_.head_dim,
                                   reinterpret_cast<at::BFloat16*>(out_) + at, out_ld());
      }
    }
  }
  void store_sums(const Piece& piece, int64_t head, const QueryHeads& queries, const float* row_max,
                  const float* row_sum) const {
    for (int64_t g = 0; g < queries.count; ++g) {
      float* const target = lse_ + (head * shape_.groups + queries.first + g) * lse_ld_ + row_of(piece);
      for (int64_t i = 0, at = g * piece.count; i < piece.count; ++i, ++at)
        target[i] = row_max[at] + std::log(row_sum[at]);
    }
  }
  int64_t out_ld() const { return spec_.num_heads * spec_.head_dim; }
  int64_t row_of(const Piece& piece) const { return piece.run->row + piece.first - piece.run->position; }

  const ops::AttentionSpec& spec_;
  Shape shape_;
  const KvCache& cache_;
  int64_t layer_;
  const char* qkv_;
  int64_t qkv_ld_;
  char* out_;
  float* lse_;
  int64_t lse_ld_;
};

// From the first on, which both pieces read.
int64_t shared_pages(const Piece& a, const Piece& b) {
  const std::vector<int32_t>&of_a = *a.run->pages, &of_b = *b.run->pages;
  if (&of_a == &of_b) return static_cast<int64_t>(of_a.size());
  return std::mismatch(of_a.begin(), of_a.end(), of_b.begin(), of_b.end()).first - of_a.begin();
}

void attend_on_cpu(const ops::AttentionSpec& spec, const KvCache& cache, int64_t layer, const StepRows& rows,
                   const std::vector<RowRun>& wanted, const at::Tensor& qkv, const at::Tensor& out) {
  const int64_t query_block = ops::attention::query_block_size(spec.num_heads / spec.num_kv_heads);
  std::vector<const RowRun*> runs;
  for (const RowRun& run : wanted) runs.push_back(&run);
  // The longest first, so that no thread starts the largest piece last. Of one run, and of samples of one
  // prompt, they stay together, since they read the same pages.
  std::stable_sort(runs.begin(), runs.end(),
                   [](const RowRun* a, const RowRun* b) { return a->count > b->count; });
  std::vector<Piece> pieces;
  int64_t keys_moved = rows.size();  // to the cache, and then from it
  for (const RowRun* run : runs) {
    for (int64_t end = run->position + run->count; end > run->position;) {
      const int64_t first = std::max(run->position, (end - 1) / query_block * query_block);
      pieces.push_back({run, first, end - first});
      keys_moved += spec.window > 0 ? std::min(end, spec.window + query_block) : end;
      end = first;
    }
  }
  const at::Tensor lse =
      spec.sinks.defined() ? at::empty({spec.num_heads, rows.size()}, at::kFloat) : at::Tensor();
  const Attention attention(spec, cache, layer, qkv, out, lse);
  const auto count = static_cast<int64_t>(pieces.size());
  const int64_t groups = spec.num_heads / spec.num_kv_heads, threads = at::get_num_threads();
  // A key head's queries are more than one piece of work where there would be fewer than threads.
  const int64_t parts =
      std::clamp<int64_t>(threads / std::max<int64_t>(count * spec.num_kv_heads, 1), 1, groups);
  // Head by head over all pieces.
  const auto attend = [&](int64_t begin, int64_t end) {
    Scratch scratch(cache.dtype() == at::kBFloat16);
    for (int64_t i = begin; i < end; ++i) {
      const auto at = static_cast<size_t>(i % count);
      int64_t shared = 0;
      if (i > begin && at > 0) shared = shared_pages(pieces[at], pieces[at - 1]);
      if (i + 1 < end && at + 1 < pieces.size())
        shared = std::max(shared, shared_pages(pieces[at], pieces[at + 1]));
      const int64_t head = i / count / parts, part = i / count % parts, first = groups * part / parts;
      attention.run(pieces[at], head, {first, groups * (part + 1) / parts - first}, shared, scratch);
    }
  };
  const int64_t work = count * spec.num_kv_heads * parts;
  if (keys_moved * 2 * spec.num_kv_heads * spec.head_dim < kSmallStep) {
    cache.store(layer, rows.slots(), qkv, 0, rows.size());
    attend(0, work);
  } else {
    parallel_ranges(
        rows.size(), std::min<int64_t>(rows.size(), 4 * threads),
        [&](int64_t, int64_t begin, int64_t end) { cache.store(layer, rows.slots(), qkv, begin, end); });
    const int64_t ranges = std::min(work, threads * kRangesPerThread);
    parallel_ranges(work, ranges, [&](int64_t, int64_t begin, int64_t end) { attend(begin, end); });
  }
  if (lse.defined()) ops::add_sinks(spec, out, lse, rows.size());
}

}  // namespace

void paged_attention(const ops::AttentionSpec& spec, const KvCache& cache, int64_t layer,
                     const StepRows& rows, const at::Tensor& qkv, const at::Tensor& out,
                     const std::vector<RowRun>* wanted) {
  const Range range("paged_attention");
  if (simulated(qkv)) return;  // its buffers are on no device
  if (cache.device().is_cpu())
    return attend_on_cpu(spec, cache, layer, rows, wanted != nullptr ? *wanted : rows.runs(), qkv, out);
  const auto* device = kernels::device_ops_for(qkv);
  if (device == nullptr || spec.head_dim > kernels::kMaxPagedHeadDim)
    return paged_attention_reference(spec, cache, layer, rows, qkv, out);
  // The kernel stores each row's key itself, too late for other rows of the step.
  if (!rows.apart()) cache.store(layer, rows.row_pages, rows.row_slots, qkv);
  device->paged_attention(
      {.qkv = qkv,
       .out = out,
       .pages = rows.pages,
       .queries = rows.queries,
       .layer_bytes = cache.head_bytes(layer, 0),
       .num_heads = spec.num_heads,
       .num_kv_heads = spec.num_kv_heads,
       .head_dim = spec.head_dim,
       .keys_hold_values = cache.keys_hold_values(),
       .window = spec.window,
       .scale = static_cast<float>(spec.scale),
       .softcap = static_cast<float>(spec.softcap),
       .sinks = spec.sinks.defined() ? spec.sinks.to(at::kFloat).contiguous() : at::Tensor()});
}

void paged_attention_reference(const ops::AttentionSpec& spec, const KvCache& cache, int64_t layer,
                               const StepRows& rows, const at::Tensor& qkv, const at::Tensor& out) {
  if (cache.device().is_cpu()) {
    cache.store(layer, rows.slots(), qkv, 0, rows.size());
  } else {
    cache.store(layer, rows.row_pages, rows.row_slots, qkv);
  }
  const int64_t heads = spec.num_kv_heads, groups = spec.num_heads / heads, dim = spec.head_dim;
  for (const RowRun& run : rows.runs()) {
    const at::Tensor keys = cache.gather(layer, 0, *run.pages).to(at::kFloat);
    const at::Tensor values = cache.gather(layer, 1, *run.pages).to(at::kFloat);
    for (int64_t i = 0; i < run.count; ++i) {
      const int64_t length = run.position + i + 1;
      const int64_t first = spec.window > 0 ? std::max<int64_t>(0, length - spec.window) : 0;
      const at::Tensor query =
          qkv.select(0, run.row + i).narrow(0, 0, heads * groups * dim).view({heads, groups, dim});
      const at::Tensor seen = keys.narrow(1, first, length - first);
      at::Tensor scores = at::matmul(query.to(at::kFloat) * spec.scale, seen.transpose(1, 2));  // [K, G, L]
      if (spec.softcap > 0) scores = spec.softcap * at::tanh(scores / spec.softcap);
      at::Tensor weights = at::softmax(scores, -1);
      if (spec.sinks.defined()) {
        const at::Tensor sinks = spec.sinks.to(at::kFloat).view({heads, groups, 1});
        weights = weights * at::sigmoid(scores.logsumexp(-1, true) - sinks);
      }
      out.select(0, run.row + i)
          .copy_(at::matmul(weights, values.narrow(1, first, length - first)).reshape({-1}));
    }
  }
}

}  // namespace troupe
