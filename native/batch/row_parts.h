// Parts of a micro-batch's rows, for ranks that share it.
#pragma once

#include <cstdint>
#include <vector>

#include "batch/packing.h"

namespace troupe {

// Part `index` of `count` parts of as many consecutive rows, with the predictions that are made there.
// Segments and images stay those of the whole. T must be a multiple of `count`.
PackedTokens consecutive_rows(const PackedTokens& whole, int64_t index, int64_t count);

// Part `index` of `count` parts of as many rows in which causal attention costs the same: of 2 * count chunks
// of every segment, chunks `index` and 2 * count - 1 - index, then rows of the tail (Llama 3: Grattafiori et
// al. 2024, arXiv:2407.21783, section 3.3.2). What a segment has beyond a multiple of 2 * count rows goes to
// the parts that have the fewest rows so far: no two of them differ by more than one real row. Segments stay
// those of the whole, with this part's rows as their share. T must be a multiple of `count`.
PackedTokens balanced_rows(const PackedTokens& whole, int64_t index, int64_t count);

}  // namespace troupe
