// The layout of a KV page, and the kernels that read and write it.
#pragma once

#include <cstdint>

// Attention of one query position against keys and values that lie in pages (see rollout/kv_cache.h).
namespace troupe::kernels {

// Positions per page. One head's part of a page is K transposed [D, kPagePositions], then V
// [kPagePositions, D]: the scores of a page's keys are then D multiply-adds over whole vectors, with
// no sum across lanes.
constexpr int64_t kPagePositions = 32;

// G query heads of one key head. Page i < ceil(prompt_length / kPagePositions) holds positions of the
// prompt; the others continue from prompt_length, so the prompt's last page may have a hole.
struct DecodeAttentionTask {
  const void* q;  // [G, D] in the dtype of the kernel
  void* out;      // [G, D]
  const char* const* pages;
  int64_t head_bytes;  // from the start of a page to this layer's and head's K^T
  int64_t prompt_length;
  int64_t length;        // keys in all; the query is the last one
  int64_t first_key;     // keys before it are outside the window
  int64_t groups;        // G
  int64_t head_dim;      // D
  float scale, softcap;  // softcap 0 = off
  float* scratch;        // [G * (2 D + number of pages * kPagePositions)]
};

// Softmax in float32 over all visible keys at once; sums in page order, so a result depends on the
// task's own values alone.
struct DecodeAttentionKernels {
  void (*attend_float32)(const DecodeAttentionTask& task);
  void (*attend_bfloat16)(const DecodeAttentionTask& task);
};
const DecodeAttentionKernels& decode_attention_kernels();

}  // namespace troupe::kernels
