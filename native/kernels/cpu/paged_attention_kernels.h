// Products of queries with keys and of probabilities with values, where keys and values lie in pages.
#pragma once

#include <cstdint>

#include "kernels/cpu/gemm_kernels.h"

// The two products of attention on pages (kernels/paged_attention.h), for rows of queries that see the same
// keys. Every element is one sum in the order of its terms, as the GEMM of gemm.h makes it (fused
// multiply-adds from zero): so these products have the bits of training's, which are made of packed keys and
// values, and a row's bits depend on no other row.
namespace troupe::kernels {

struct PageScores {
  const float* q;  // [rows, dim]
  int64_t rows, dim;
  const char* const* pages;  // of num_pages pages, from where this layer's and head's keys begin
  int64_t num_pages;
  int64_t pages_there;  // at least num_pages; the others, and all values, are asked for from memory meanwhile
  float* out;           // [rows, num_pages * kPagePositions], row stride ld
  int64_t ld;
};

struct PageValues {
  const float* weights;  // of row r and position `begin` + i at [r * ld + i]
  int64_t rows, dim, ld;
  const char* const* pages;  // page 0 holds positions from 0; from where this layer's and head's keys begin
  int64_t begin, end;        // positions
  float* out;                // [rows, dim]
  bool add;                  // to what is there
  int64_t first_value;       // see below
};

// Columns [first, first + there) of the values at positions [begin, end), as `width` columns.
struct ValueColumns {
  const char* const* pages;  // page 0 holds positions from 0
  int64_t begin, end, dim;
  int64_t first, there, width;
  // Of a page, in rows of dim, where the values begin: kPagePositions, or 0 where they are the keys, too.
  int64_t first_value;
};

struct PagedAttentionKernels {
  void (*scores_float32)(const PageScores& task);
  void (*scores_bfloat16)(const PageScores& task);
  void (*values_float32)(const PageValues& task);
  void (*values_bfloat16)(const PageValues& task);
  // bfloat16 keys of a page, or values, as `steps` rows of words of two successive k (gemm_kernels.h), zeros
  // behind the last one: [steps, kPagePositions] with k along the head's dimension, [steps, width] with k
  // along positions.
  void (*key_words)(const char* page, int64_t dim, int64_t steps, Word* target);
  void (*value_words)(const ValueColumns& columns, int64_t steps, Word* target);
  // Of a page of values alone, which are the keys, too [kPagePositions, dim]: them transposed, as a page has
  // keys that lie by themselves, and what key_words() makes of those.
  void (*keys_of_values_float32)(const char* page, int64_t dim, char* target);
  void (*keys_of_values_bfloat16)(const char* page, int64_t dim, char* target);
  void (*key_words_of_values)(const char* page, int64_t dim, int64_t steps, Word* target);
};
const PagedAttentionKernels& paged_attention_kernels();

}  // namespace troupe::kernels
