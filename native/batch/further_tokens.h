// A batch as layers see it that predict further tokens.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "batch/packing.h"
#include "batch/token_batch.h"

namespace troupe {

// Of a batch, what the layer reads that predicts `depth` tokens further than the decoder: at position t
// stands token t + depth, so that the row there predicts token t + depth + 1 as a row of the decoder predicts
// its next one. Sequences are `depth` tokens shorter, and so are their prompts; of a prompt that has no more
// than these, response tokens are left that no row predicts.
struct FurtherTokens {
  TokenBatch tokens;  // without images and choices of experts; positions of a sequence lie where they did
  BatchLayout layout;
  at::Tensor responses;  // [sum R'] int64: which of the batch's response tokens those of `layout` are
};
FurtherTokens further_tokens(const TokenBatch& batch, const BatchLayout& layout, int64_t depth);

// A micro-batch of them, in rows of its own: a row that several sequences share before may be followed by
// different tokens.
struct FurtherRows {
  PackedTokens packed;
  at::Tensor sources;  // [real_rows] int64: for each, the row of the same position in the pass before
};
// micro: of the batch. before: its rows in the decoder, or in the layer of the depth before.
FurtherRows further_rows(const FurtherTokens& tokens, const MicroBatch& micro, const PackedTokens& before,
                         const RowPadding& padding);

}  // namespace troupe
