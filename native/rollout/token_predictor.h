// The model's own layer for further tokens, over the rows of a rollout's steps.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "model/decoder.h"
#include "rollout/kv_cache.h"
#include "rollout/paged_attention.h"
#include "rollout/step_plan.h"

namespace troupe {

// Rows of a step that are positions of one sequence, and the tokens behind them. The sequence may have ended
// with the step: nothing here refers to it.
struct FollowedRows {
  uint64_t id = 0;                // of the request
  int64_t row = 0, position = 0;  // of the first
  std::vector<int32_t> pages;     // of the sequence
  // Behind each row, from the first on. Rows without one are those of a draft that was wrong.
  std::vector<int32_t> next;
  bool sampled = false;  // the last of `next`, which is the last token of the sequence

  int64_t count() const { return static_cast<int64_t>(next.size()); }
};

// Of a run of the step about to be computed, whose first row is `row`: the rows of its sequence, or of one of
// its copies. The sampled token is still missing. Nothing for a copy that has no row in a page of its own.
std::optional<FollowedRows> followed_rows(const Sequence& sequence, const PlannedRun& run, int64_t row);

// Where the token behind the next one of a sequence is to be guessed from.
struct GuessRow {
  size_t followed;  // which of the FollowedRows
  int64_t row;      // of the output so far
  int32_t token;    // that was guessed from it
};

// Its keys and values lie in the pages behind those of the decoder's layers. Every row of a step writes its
// own once the token behind it is known, whether something is guessed or not. A page that several sequences
// go on from ends with what followed there in one of them; guesses alone see that.
//
// Beyond one token it goes on from its own output in the place of the decoder's, as engines do that draft
// with one such layer (EAGLE, arXiv:2401.15077).
class TokenPredictor {
 public:
  // config: the decoder's as the rollout sees it (rollout_config()).
  TokenPredictor(Decoder& decoder, ModelConfig config, const KvCache& cache);

  // hidden [>= rows of the step, H]: the last block's output. Returned: this layer's, in the last rows of the
  // followed ones whose numbers are in `guessing`, ascending; [padded, H].
  at::Tensor follow(const std::vector<FollowedRows>& followed, const at::Tensor& hidden,
                    const std::vector<size_t>& guessing);
  // One token further, `ahead` tokens behind the sequences' last ones: from `before`, which one of both has
  // returned.
  at::Tensor further(const std::vector<FollowedRows>& followed, const at::Tensor& before,
                     const std::vector<GuessRow>& guesses, int64_t ahead);

 private:
  // Rows that the layer computes: each from one of what comes before, and the token behind it.
  struct Rows {
    std::vector<RowRun> runs;
    std::vector<int64_t> sources;
    std::vector<int32_t> tokens, positions;

    void add(int64_t source, int32_t token, int64_t position);
  };
  at::Tensor compute(const Rows& rows, const at::Tensor& before, bool again, std::vector<int64_t> wanted);

  Decoder& decoder_;
  ModelConfig config_;
  const KvCache& cache_;
  int64_t cached_;  // of the layers in the pages, the number of this one
};

}  // namespace troupe
