// One step of the model over rows of many sequences.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "model/decoder.h"
#include "rollout/kv_cache.h"
#include "rollout/paged_attention.h"
#include "rollout/routing_pages.h"
#include "rollout/scheduler.h"
#include "rollout/state_cache.h"

namespace troupe {

// Takes the rows of a plan through all layers: prompts and decodes alike, each row with its position. Buffers
// grow to the largest step.
class StepRunner {
 public:
  // config: the decoder's as the rollout sees it (rollout_config()).
  StepRunner(Decoder& decoder, ModelConfig config, const KvCache& cache, const StateCache& states);

  // The last block's output [wanted padded, H], before the final norm; valid until the next call. Row i is
  // row wanted[i] of the plan's runs, which lie one behind the other; `wanted` ascends. Of the others keys
  // and values are what a step is for: the last layer that keeps some leaves them out of its attention and
  // MLP, and layers that share its keys of all that they do (but experts see all rows: they are counted,
  // recorded, and shared by ranks that must all come).
  // routing: where the choices of experts are recorded; null: nowhere. whole: all layers compute all rows,
  // for rows().
  at::Tensor run(const StepPlan& plan, const std::vector<int64_t>& wanted, RoutingPages* routing, bool whole);
  // The last block's output in all rows of the step [padded, H]; valid until the next call.
  const at::Tensor& rows() const { return rows_; }

  void release_memory() { x_ = rows_ = qkv_ = attention_ = at::Tensor(); }

 private:
  void reserve(int64_t rows);

  Decoder& decoder_;
  ModelConfig config_;
  const KvCache& cache_;
  const StateCache& states_;
  int64_t inputs_ = 0, outputs_ = 0;  // columns of the widest mixer
  at::Tensor x_, rows_;               // [rows, H], and those of the step
  at::Tensor qkv_, attention_;        // [rows * inputs], [rows * outputs]: each layer's rows from the start
  at::Tensor tokens_, positions_;     // [rows] int32, on the CPU
};

}  // namespace troupe
