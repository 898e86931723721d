// Attention of a decoding step over all rows and heads.
#include "rollout/decode_attention.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <utility>

#include "base/parallel.h"
#include "kernels/cpu/decode_attention_kernels.h"
#include "kernels/cpu/isa.h"
#include "kernels/device_ops.h"

TROUPE_DECLARE_TABLES(DecodeAttentionKernels, decode_attention_table)

namespace troupe::kernels {
const DecodeAttentionKernels& decode_attention_kernels() {
  return TROUPE_PICK_TABLE(decode_attention_table);
}
}  // namespace troupe::kernels

namespace troupe {
namespace {

using kernels::kPagePositions;

constexpr int64_t kRangesPerThread = 16;
// Less than this, in elements of keys and values read, costs less than waking the other threads.
constexpr int64_t kSmallStep = 1 << 17;

int64_t first_key(const ops::AttentionSpec& spec, int64_t length) {
  return spec.window > 0 ? std::max<int64_t>(0, length - spec.window) : 0;
}

// Buffers of one thread, kept from one (row, head) to the next.
struct Scratch {
  std::vector<const char*> pages;
  std::vector<float> floats;
};

void attend_head(const ops::AttentionSpec& spec, const KvCache& cache, int64_t layer, int64_t head,
                 const CachedKeys& keys, const char* qkv_row, char* out_row, Scratch& scratch) {
  scratch.pages.clear();
  for (const at::Tensor& page : keys.prompt->pages)
    scratch.pages.push_back(static_cast<const char*>(page.const_data_ptr()));
  for (const at::Tensor& page : keys.own->pages)
    scratch.pages.push_back(static_cast<const char*>(page.const_data_ptr()));
  const int64_t groups = spec.num_heads / spec.num_kv_heads;
  const auto num_pages = static_cast<int64_t>(scratch.pages.size());
  const auto floats = static_cast<size_t>(groups * (2 * spec.head_dim + num_pages * kPagePositions));
  if (scratch.floats.size() < floats) scratch.floats.resize(floats);

  const int64_t element = static_cast<int64_t>(c10::elementSize(cache.dtype()));
  const int64_t column_bytes = head * groups * spec.head_dim * element;
  kernels::DecodeAttentionTask task;
  task.q = qkv_row + column_bytes;
  task.out = out_row + column_bytes;
  task.pages = scratch.pages.data();
  task.head_bytes = cache.head_bytes(layer, head);
  task.prompt_length = keys.prompt->length;
  task.length = keys.length();
  task.first_key = first_key(spec, task.length);
  task.groups = groups;
  task.head_dim = spec.head_dim;
  task.scale = static_cast<float>(spec.scale);
  task.softcap = static_cast<float>(spec.softcap);
  task.scratch = scratch.floats.data();
  const auto& kernels = kernels::decode_attention_kernels();
  (cache.dtype() == at::kFloat ? kernels.attend_float32 : kernels.attend_bfloat16)(task);
}

void attend_on_gpu(const kernels::DeviceOps& device, const ops::AttentionSpec& spec,
                   const KvCache& cache, int64_t layer, const DecodeRows& rows, const at::Tensor& qkv,
                   const at::Tensor& out) {
  device.paged_attention({.qkv = qkv,
                           .out = out,
                           .pages = rows.pages(),
                           .lengths = rows.lengths(),
                           .layer_bytes = cache.head_bytes(layer, 0),
                           .num_heads = spec.num_heads,
                           .num_kv_heads = spec.num_kv_heads,
                           .head_dim = spec.head_dim,
                           .window = spec.window,
                           .scale = static_cast<float>(spec.scale),
                           .softcap = static_cast<float>(spec.softcap)});
}

}  // namespace

DecodeRows::DecodeRows(std::vector<CachedKeys> rows, const KvCache& cache) : rows_(std::move(rows)) {
  if (cache.device().is_cpu()) return;
  size_t most = 0;
  for (const CachedKeys& keys : rows_)
    most = std::max(most, keys.prompt->pages.size() + keys.own->pages.size());
  const auto count = static_cast<int64_t>(rows_.size());
  const at::Tensor pages = at::zeros({count, static_cast<int64_t>(most)}, at::kLong);
  const at::Tensor lengths = at::empty({count, 2}, at::kInt);
  int64_t* row_pages = pages.mutable_data_ptr<int64_t>();
  int32_t* row_lengths = lengths.mutable_data_ptr<int32_t>();
  for (const CachedKeys& keys : rows_) {
    int64_t* next = row_pages;
    for (const KvSegment* segment : {keys.prompt, keys.own}) {
      for (const at::Tensor& page : segment->pages)
        *next++ = static_cast<int64_t>(reinterpret_cast<intptr_t>(page.const_data_ptr()));
    }
    *row_lengths++ = static_cast<int32_t>(keys.prompt->length);
    *row_lengths++ = static_cast<int32_t>(keys.length());
    row_pages += most;
  }
  pages_ = pages.to(cache.device());
  lengths_ = lengths.to(cache.device());
}

void decode_attention(const ops::AttentionSpec& spec, const KvCache& cache, int64_t layer,
                      const DecodeRows& step, const at::Tensor& qkv, const at::Tensor& out) {
  const std::vector<CachedKeys>& rows = step.rows();
  if (!cache.device().is_cpu()) {
    const auto* device = kernels::device_ops_for(qkv);
    if (device && spec.head_dim <= kernels::kMaxPagedHeadDim)
      return attend_on_gpu(*device, spec, cache, layer, step, qkv, out);
    return decode_attention_reference(spec, cache, layer, rows, qkv, out);
  }
  const auto num_rows = static_cast<int64_t>(rows.size());
  const auto element = static_cast<int64_t>(c10::elementSize(cache.dtype()));
  const int64_t qkv_bytes = cache.row_size() * element;
  const int64_t out_bytes = spec.num_heads * spec.head_dim * element;
  const char* const qkv_rows = static_cast<const char*>(qkv.const_data_ptr());
  char* const out_rows = static_cast<char*>(out.data_ptr());
  // Head by head over all rows: samples of one prompt are neighbours and find its keys in the cache.
  const int64_t work = num_rows * spec.num_kv_heads;
  const auto attend = [&](int64_t begin, int64_t end) {
    Scratch scratch;
    for (int64_t i = begin; i < end; ++i) {
      const int64_t head = i / num_rows, row = i % num_rows;
      const CachedKeys& keys = rows[static_cast<size_t>(row)];
      const char* qkv_row = qkv_rows + row * qkv_bytes;
      cache.store_head(layer, head, *keys.own, keys.own->length - 1, qkv_row, 1);
      attend_head(spec, cache, layer, head, keys, qkv_row, out_rows + row * out_bytes, scratch);
    }
  };
  int64_t keys_read = 0;
  for (const CachedKeys& keys : rows) keys_read += keys.length() - first_key(spec, keys.length());
  if (keys_read * 2 * spec.num_kv_heads * spec.head_dim < kSmallStep) return attend(0, work);
  const int64_t ranges = std::min(work, at::get_num_threads() * kRangesPerThread);
  parallel_ranges(work, ranges, [&](int64_t, int64_t begin, int64_t end) { attend(begin, end); });
}

void decode_attention_reference(const ops::AttentionSpec& spec, const KvCache& cache, int64_t layer,
                                const std::vector<CachedKeys>& rows, const at::Tensor& qkv,
                                const at::Tensor& out) {
  const int64_t heads = spec.num_kv_heads, groups = spec.num_heads / heads, dim = spec.head_dim;
  // [K, length, D] of a segment, part 0 keys, 1 values.
  const auto gather = [&](const KvSegment& segment, int64_t part) {
    std::vector<at::Tensor> pages;
    for (const at::Tensor& page : segment.pages) {
      const at::Tensor block = page.select(0, layer).select(1, part);
      pages.push_back(part == 0 ? block.view({heads, dim, kPagePositions}).transpose(1, 2)
                                : block.view({heads, kPagePositions, dim}));
    }
    return at::cat(pages, 1).narrow(1, 0, segment.length).to(at::kFloat);
  };
  for (size_t i = 0; i < rows.size(); ++i) {
    const auto row = static_cast<int64_t>(i);
    const CachedKeys& cached = rows[i];
    cache.store(layer, *cached.own, cached.own->length - 1, qkv.narrow(0, row, 1));
    const at::Tensor keys = at::cat({gather(*cached.prompt, 0), gather(*cached.own, 0)}, 1);
    const at::Tensor values = at::cat({gather(*cached.prompt, 1), gather(*cached.own, 1)}, 1);
    const at::Tensor query = qkv.select(0, row).narrow(0, 0, heads * groups * dim).view({heads, groups, dim});
    at::Tensor scores = at::matmul(query.to(at::kFloat) * spec.scale, keys.transpose(1, 2));  // [K, G, L]
    if (spec.softcap > 0) scores = spec.softcap * at::tanh(scores / spec.softcap);
    const int64_t first = first_key(spec, cached.length());
    const int64_t visible = cached.length() - first;
    const at::Tensor weights = at::softmax(scores.narrow(2, first, visible), -1);
    out.select(0, row).copy_(at::matmul(weights, values.narrow(1, first, visible)).reshape({-1}));
  }
}

}  // namespace troupe
