// The micro-batches of one pass in the stages of this rank.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <vector>

#include "engine/loss_head.h"
#include "megatron/pipeline.h"
#include "model/transformer.h"

namespace troupe {

// What the stage with the head does with the hidden states of a micro-batch.
struct HeadWork {
  // Forward alone.
  std::function<void(const MicroRows& micro, const at::Tensor& hidden)> evaluate;
  // Returns the gradient by the hidden states, [N', H]. Defined: the pass is a training pass.
  std::function<at::Tensor(const MicroRows& micro, const at::Tensor& hidden)> gradient;
  // Of a training pass of a model with layers that predict further tokens: what they are to do with
  // micro-batch number `micro`.
  std::function<PredictionTask(int64_t micro, const MicroRows& rows)> predictions = {};
};

// Micro-batches 0 to `count` of this rank's pipeline; those of a higher number are empty.
class StageWork final : public PipelineWork {
 public:
  // checkpointing, offload: as of a StagePass. rows: of a micro-batch. check: before each step; throws to end
  // the work.
  StageWork(Transformer& transformer, int64_t count, bool checkpointing, ActivationOffload* offload,
            HeadWork head, std::function<MicroRows(int64_t micro)> rows, std::function<void()> check);

  at::Tensor message(int64_t micro) override;
  at::Tensor forward(int64_t chunk, int64_t micro, const at::Tensor& x) override;
  at::Tensor backward(int64_t chunk, int64_t micro, const at::Tensor& dy) override;

 private:
  // From the first step of a micro-batch on this rank to the last.
  struct Flight {
    std::optional<MicroRows> rows;                 // none: it is empty
    std::vector<std::optional<StagePass>> passes;  // by chunk
    at::Tensor hidden;                             // of the head, until its backward
    size_t chunks_left;
  };
  bool training() const { return static_cast<bool>(head_.gradient); }
  Flight& flight(int64_t micro);
  void leave(int64_t chunk, int64_t micro);

  Transformer& transformer_;
  int64_t count_;
  bool checkpointing_;
  ActivationOffload* offload_;
  HeadWork head_;
  std::function<MicroRows(int64_t)> rows_;
  std::function<void()> check_;
  std::map<int64_t, Flight> flights_;
};

}  // namespace troupe
