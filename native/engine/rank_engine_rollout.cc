// A rollout between the other verbs.
#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <chrono>
#include <utility>

#include "base/error.h"
#include "base/parallel.h"
#include "engine/rank_engine.h"
#include "rollout/cache_budget.h"

namespace troupe {

RolloutStats RankEngine::open_rollout(const RolloutOptions& options) {
  require_head(HeadKind::kLm, "open_rollout");
  // Where another rank could not open, all are asked to open again.
  const bool serves = rollout_ && (rollout_->stats().running > 0 || rollout_->stats().waiting > 0);
  require(!serves, ErrorCode::kInvalidArgument,
          "[rollout] this engine has a rollout already, which has requests: expected one per engine");
  stop_decoding();  // the weights at hand are those that the options of before asked for
  decode_over(options.tensor_parallel, options.predicts());
  rollout_.reset();
  RolloutOptions own = options;
  if (own.kv_cache_bytes == 0) own.kv_cache_bytes = cache_budget(device_, own.memory_share);
  // Ranks that generate together must make the same plans: all take the smallest budget among them.
  const at::Tensor least = at::tensor({-own.kv_cache_bytes}, at::kLong);
  for (Communicator* axis : decoding_axes())
    axis->all_reduce(least, ReduceOp::kMax, {"generate", "cache budget"});
  own.kv_cache_bytes = -least.item<int64_t>();
  rollout_ = std::make_unique<Rollout>(decoder(), own);
  rollout_->park(false);
  return rollout_->stats();
}

void RankEngine::decode_over(int64_t tensor_parallel, bool predicts) {
  require(tensor_parallel >= 1, ErrorCode::kInvalidArgument, "[rollout] expected tensorParallel >= 1, got ",
          tensor_parallel);
  if (!copy_ && tensor_parallel == 1) return;
  if (copy_) {
    if (copy_->tp() == tensor_parallel && copy_->predicts() == predicts) return;
    const auto said = [](bool drafts) { return drafts ? ", drafting" : ", not drafting"; };
    fail(ErrorCode::kInvalidArgument, "[rollout] expected tensorParallel ", copy_->tp(),
         said(copy_->predicts()), " by the layers for further tokens, as before, got ", tensor_parallel,
         said(predicts));
  }
  auto copy = std::make_unique<DecodingCopy>(options_, *mesh_.world(), tensor_parallel, predicts);
  const std::lock_guard<std::mutex> lock(abort_mutex_);  // abort() is called from another thread
  copy_ = std::move(copy);
  if (aborted_) copy_->comm().abort(abort_reason_);
}

std::vector<Communicator*> RankEngine::decoding_axes() const {
  std::vector<Communicator*> axes{mesh_.pp().get(), mesh_.ep().get(), mesh_.tp().get()};
  if (copy_) axes.push_back(&copy_->comm());
  return axes;
}

void RankEngine::begin_rollout(int64_t version) {
  at::NoGradGuard no_grad;
  const Beginning beginning(*this, 0);
  require(rollout_ != nullptr, ErrorCode::kInvalidArgument,
          "[rollout] expected open_rollout before begin_rollout");
  prepare();
  stop_decoding();
  const bool predicts = rollout_->options().predicts();
  bool gathered = false;
  try {
    // A rank that has no room for it says so before the others gather anything for it.
    if (copy_) copy_->reserve();
    agree({});
    if (copy_) {
      copy_->fill(store_, sharding_);
      sharding_.release_all();
    } else {
      sharding_.acquire_all("generate", options_.model.num_layers + (predicts ? 1 : 0));
      gathered = true;
    }
    decoder().begin_decoding(rollout_->options().form());
  } catch (...) {
    if (copy_) copy_->release();
    // Only what has come: a collective that has failed may still hold its tensors.
    if (gathered) sharding_.release_all();
    throw;
  }
  decoding_ = true;
  rollout_->set_version(version);
  if (rollout_weights_ != weights_version_) rollout_->weights_changed();
  rollout_weights_ = weights_version_;
}

RolloutTurn RankEngine::rollout_turn(RolloutCommands commands) {
  at::NoGradGuard no_grad;
  check_abort();
  require(rollout_ != nullptr, ErrorCode::kInvalidArgument,
          "[rollout] expected open_rollout before rollout_turn");
  RolloutTurn turn;
  for (RolloutRequest& request : commands.submit) {
    const uint64_t id = request.id;
    try {
      rollout_->submit(std::move(request));
    } catch (const Error& error) {
      RolloutOutput refused;
      refused.id = id;
      refused.error = error.what();
      refused.finish = Finish::kAbort;
      turn.outputs.push_back(std::move(refused));
    }
  }
  for (const uint64_t id : commands.abort) rollout_->abort(id);
  for (auto& [id, mask] : commands.masks) rollout_->set_mask(id, std::move(mask));
  turn.ready = decoding_;
  const auto begin = std::chrono::steady_clock::now();
  const auto spent = [&] {
    return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin).count();
  };
  // Ranks that generate together must stop after the same step: the first rank's clock decides.
  const auto time_left = [&] {
    const at::Tensor more = at::tensor({int64_t{spent() < commands.milliseconds}}, at::kLong);
    for (Communicator* axis : decoding_axes()) axis->broadcast(more, 0, {"generate", "time"});
    return more.item<int64_t>() != 0;
  };
  do {
    check_abort();
    turn.idle = turn.ready && !rollout_->step();
  } while (turn.ready && !turn.idle && time_left());
  for (RolloutOutput& output : rollout_->take_outputs()) turn.outputs.push_back(std::move(output));
  join_routed_experts(turn.outputs);
  turn.stats = rollout_->stats();
  return turn;
}

void RankEngine::join_routed_experts(std::vector<RolloutOutput>& outputs) {
  if (mesh_.pp()->size() == 1) return;
  for (RolloutOutput& output : outputs) {
    std::vector<uint8_t>& choices = output.routed_experts;
    if (choices.empty()) continue;
    // Each stage has written its own layers, and zeros for the others.
    const auto bytes = static_cast<int64_t>(choices.size());
    const at::Tensor all = at::zeros({round_up(bytes, static_cast<int64_t>(sizeof(int32_t)))}, at::kByte);
    std::copy(choices.begin(), choices.end(), all.mutable_data_ptr<uint8_t>());
    mesh_.pp()->all_reduce(all.view(at::kInt), ReduceOp::kSum, {"generate", "routed experts"});
    const auto* joined = all.const_data_ptr<uint8_t>();
    choices.assign(joined, joined + bytes);
  }
}

void RankEngine::park_rollout(bool preempt) {
  stop_decoding();
  if (rollout_) rollout_->park(preempt);
}

void RankEngine::stop_decoding() {
  if (!decoding_) return;
  decoding_ = false;
  decoder().end_decoding();
  if (copy_) copy_->release();
  sharding_.release_all();
}

}  // namespace troupe
