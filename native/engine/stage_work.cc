// Forward and backward of micro-batches, several of which are under way at a time.
#include "engine/stage_work.h"

#include <ATen/ATen.h>

#include "base/range.h"

namespace troupe {

StageWork::StageWork(Transformer& transformer, int64_t count, bool checkpointing, ActivationOffload* offload,
                     HeadWork head, std::function<MicroRows(int64_t micro)> rows, std::function<void()> check)
    : transformer_(transformer),
      count_(count),
      checkpointing_(checkpointing),
      offload_(offload),
      head_(std::move(head)),
      rows_(std::move(rows)),
      check_(std::move(check)) {}

StageWork::Flight& StageWork::flight(int64_t micro) {
  const auto [found, fresh] = flights_.try_emplace(micro);
  Flight& flight = found->second;
  if (fresh) {
    if (micro < count_) flight.rows = rows_(micro);
    flight.chunks_left = transformer_.stages().size();
    flight.passes.resize(flight.chunks_left);
  }
  return flight;
}

void StageWork::leave(int64_t chunk, int64_t micro) {
  Flight& own = flight(micro);
  own.passes[static_cast<size_t>(chunk)].reset();
  if (--own.chunks_left == 0) flights_.erase(micro);
}

at::Tensor StageWork::message(int64_t micro) {
  check_();
  if (micro >= count_) return {};
  return at::empty(
      {transformer_.own_rows(flight(micro).rows->part.tokens.size(0)), transformer_.config().hidden_size},
      at::TensorOptions().dtype(transformer_.dtype()).device(transformer_.device()));
}

at::Tensor StageWork::forward(int64_t chunk, int64_t micro, const at::Tensor& x) {
  const Range range("micro_batch", micro);
  check_();
  Stage& stage = transformer_.stages()[static_cast<size_t>(chunk)];
  Flight& own = flight(micro);
  StagePass& pass = own.passes[static_cast<size_t>(chunk)].emplace(training(), checkpointing_, offload_);
  at::Tensor y = stage.forward(own.rows ? &own.rows->part : nullptr, x, pass);
  if (training()) {
    if (!stage.range().head) return y;
    own.hidden = y;
    return {};
  }
  if (stage.range().head) {
    const Range of_head("head");
    if (own.rows) head_.evaluate(*own.rows, y);
    y = at::Tensor();
  }
  stage.end(pass);
  leave(chunk, micro);
  return y;
}

at::Tensor StageWork::backward(int64_t chunk, int64_t micro, const at::Tensor& dy) {
  const Range range("micro_batch", micro, " backward");
  check_();
  Stage& stage = transformer_.stages()[static_cast<size_t>(chunk)];
  Flight& own = flight(micro);
  StagePass& pass = *own.passes[static_cast<size_t>(chunk)];
  at::Tensor d = dy;
  if (stage.range().head) {
    const Range of_head("head and loss");
    stage.enter_head_backward(pass);
    if (own.rows) d = head_.gradient(*own.rows, own.hidden);
    if (own.rows && head_.predictions) pass.predictions = head_.predictions(micro, *own.rows);
    own.hidden.reset();
  }
  const at::Tensor dx = stage.backward(d, pass);
  leave(chunk, micro);
  return dx;
}

}  // namespace troupe
