// From ragged sequences to micro-batches that the decoder takes.
#pragma once

#include <cstdint>
#include <vector>

#include "batch/token_batch.h"
#include "kernels/attention.h"

namespace troupe {

// The ragged layout of a batch, checked once: offsets increasing, prompts of at least one token and no
// longer than their sequences, ids within the vocabulary.
struct BatchLayout {
  std::vector<int64_t> lengths;           // [B] tokens
  std::vector<int64_t> seq_offsets;       // [B+1] into the token arrays
  std::vector<int64_t> response_offsets;  // [B+1] into the response arrays
  // [B] the first sequence with the same prompt, images included, which goes to the same experts
  std::vector<int64_t> same_prompt;
  std::vector<std::vector<ImageSpan>> images;  // [B] in the prompts
  int64_t size() const { return static_cast<int64_t>(lengths.size()); }
  int64_t prompt_length(int64_t i) const { return lengths[i] - response_length(i); }
  int64_t response_length(int64_t i) const { return response_offsets[i + 1] - response_offsets[i]; }
  int64_t num_response_tokens() const { return response_offsets.back(); }
};
// images: null for a model that reads text alone; kInvalidArgument where it is given images, and as
// image_spans() where they do not fit the prompts.
BatchLayout check_layout(const TokenBatch& batch, int64_t vocab_size, int64_t max_positions,
                         const ImageTokens* images = nullptr);

// One micro-batch: which sequences of the batch it holds, those with the same prompt side by side.
struct MicroBatch {
  std::vector<int64_t> sequences;
  int64_t rows = 0;  // of the decoder: a prompt once, every response but its last token
};

// Packs sequences into micro-batches of at most `capacity` rows: the responses to one prompt together where
// they fit, the largest groups first, each into the first micro-batch with room. A sequence longer than the
// capacity is kInvalidArgument naming it.
std::vector<MicroBatch> pack(const BatchLayout& layout, std::vector<int64_t> sequences, int64_t capacity);
// Packs sequences [begin, end).
std::vector<MicroBatch> pack(const BatchLayout& layout, int64_t begin, int64_t end, int64_t capacity);

// Sequences [begin, end) that an update propagates backwards, and those that it runs forward alone.
// `has_gradient` [B] uint8, or undefined: all have one. Sequences without a gradient are propagated all the
// same where others with their prompt are, unless a forward pass over the prompt once more costs less than
// their own backward pass, which takes two.
struct Propagation {
  std::vector<int64_t> backward, forward;
};
Propagation propagation(const BatchLayout& layout, int64_t begin, int64_t end,
                        const at::Tensor& has_gradient);

// How many rows a micro-batch gets, its tail included: a multiple of `multiple`. fixed: those of a full one,
// whatever it holds. A library's GEMM picks its kernel by the number of rows, so that where the products are
// a library's a row has the same bits in every packing only if all have as many.
struct RowPadding {
  int64_t multiple = 1, capacity = 0;
  bool fixed = false;
};
int64_t padded_rows(const MicroBatch& micro, const RowPadding& padding);

// Rows [row, + count) of a micro-batch are tokens [token, + count) of the batch.
struct RowSource {
  int64_t row, token, count;
};

// An image whose tokens are rows [row, row + tokens) of a micro-batch.
struct PlacedImage {
  Image image;
  int64_t row, tokens;
};

// A micro-batch ready for the decoder. A prompt that several sequences share is one segment, computed once;
// the last token of a sequence predicts nothing and has no row. Rows are padded with token 0 to `rows`
// ("tail"); the tail belongs to no segment and its results are never read.
struct PackedTokens {
  at::Tensor tokens;       // [T] int32
  at::Tensor positions;    // [T] int32
  ops::Segments segments;  // of the real rows
  // [T] float32: how many sequences have the row: 0 in the tail, of a shared prompt several
  at::Tensor sequences;
  // The rows whose outputs predict the response tokens (the last row of a shared prompt several times), the
  // tokens they predict, and where those lie in the batch's response arrays. N response tokens.
  at::Tensor predict_rows;                // [N] int64
  at::Tensor targets;                     // [N] int32
  at::Tensor response_index;              // [N] int64
  std::vector<int64_t> response_offsets;  // [S+1] into the N
  std::vector<RowSource> sources;  // of the whole; the rows of a shared prompt once for each of its sequences
  at::Tensor routed_experts;       // [T, row_bytes] (batch/routed_experts.h); undefined: as in TokenBatch
  int64_t real_rows = 0;           // those that belong to a segment, before the tail
  // Where some prompts have images: these (of a part: those of the whole, in its rows), and the rows' rotary
  // positions [3, T] int32 (time, row, column).
  std::vector<PlacedImage> images;
  at::Tensor rotary_positions;
  // Of a part of a micro-batch (batch/row_parts.h): which of its whole_rows rows these are, [T] int64; which
  // of the whole's N response tokens are predicted there (undefined: all); and in a cut by context where the
  // whole's rows lie, undefined elsewhere.
  at::Tensor rows;
  int64_t whole_rows = 0;
  at::Tensor predictions;  // [n] int64
  at::Tensor places;       // [T of the whole] int64: rank * rows of a part + row
};
PackedTokens gather(const TokenBatch& batch, const BatchLayout& layout, const MicroBatch& micro,
                    int64_t rows);

}  // namespace troupe
