// The engine of one rank: the only implementation of Engine.
#pragma once

#include <array>
#include <atomic>
#include <functional>
#include <mutex>

#include "batch/packing.h"
#include "batch/row_parts.h"
#include "engine/decoding_copy.h"
#include "engine/engine.h"
#include "engine/loss_head.h"
#include "engine/stage_work.h"
#include "fsdp/sharding.h"
#include "megatron/context_group.h"
#include "megatron/exchange.h"
#include "megatron/mesh.h"
#include "model/transformer.h"
#include "parameters/parameter_store.h"
#include "rollout/rollout.h"
#include "ulysses/sequence_group.h"

namespace troupe {

class RouterWatch;
class TensorFileWriter;

// How the ranks of an engine lie along the axes of a layout.
ParallelDims parallel_dims(const EngineOptions& options);
// Of an engine's options, in a data-parallel group of `size`.
ShardingOptions sharding_options(const EngineOptions& options, int64_t size);
// What rank `rank` of resolved dims has of every layer.
DecoderPart decoder_part(const EngineOptions& options, const ParallelDims& dims, int64_t rank);
// The parameters of an engine on `device`: what a rank of a world with these dims (resolved) holds of them.
ParameterStore make_store(const EngineOptions& options, at::Device device, const ParallelDims& dims,
                          int64_t rank);

// The engine of one rank of any number: its shard of a model, or of some stages of it, with a `sharding_`
// that gathers what it lacks and, where several ranks share a micro-batch, a `sequence_` or `context_` group
// of them. A model in one process is the shard of a group of one.
class RankEngine final : public Engine {
 public:
  RankEngine(const EngineOptions& options, std::shared_ptr<Communicator> comm);

  std::vector<ParameterInfo> parameters() const override;
  void import_tensors(TensorKind kind, const std::vector<TensorFile>& files) override;
  void export_tensors(TensorKind kind, const std::vector<TensorFile>& files) override;
  ExportedWeights export_weights(TensorKind kind, const WeightBucket& bucket, std::optional<int64_t> version,
                                 bool more) override;
  void import_weights(const WeightBucket& bucket, const at::Tensor& bytes) override;
  at::Tensor get_tensor(TensorKind kind, const std::string& param) override;
  StateBytes state_bytes() const override;
  int64_t bytes_sent() const override {
    return mesh_.bytes_sent() + sharding_.bytes_sent() + (sequence_ ? sequence_->bytes_sent() : 0) +
           (copy_ ? copy_->comm().log().bytes_sent() : 0);
  }
  void offload(const StateKinds& kinds) override;
  void onload(const StateKinds& kinds) override;

  LogProbResult compute_log_prob(const TokenBatch& batch, double temperature, bool entropy,
                                 bool sum_pi_squared, bool disable_adapters, bool record_experts,
                                 int64_t top_k) override;
  MetricsList update_policy(const PolicyBatch& batch, const MiniBatches& mini, const PolicyLossOptions& loss,
                            double temperature) override;
  at::Tensor compute_values(const TokenBatch& batch) override;
  MetricsList update_critic(const ValueBatch& batch, const MiniBatches& mini,
                            const ValueLossOptions& loss) override;
  MetricsList update_sft(const SftBatch& batch, const MiniBatches& mini, const SftLossOptions& loss) override;
  RolloutStats open_rollout(const RolloutOptions& options) override;
  void begin_rollout(int64_t version) override;
  RolloutTurn rollout_turn(RolloutCommands commands) override;
  void park_rollout(bool preempt) override;

  int64_t optimizer_steps() const override { return optimizer_steps_; }
  int64_t schedule_steps() const override { return schedule_steps_; }
  void set_steps(int64_t optimizer_steps, int64_t schedule_steps) override;
  double learning_rate() const override;
  void abort(const std::string& reason) override;

 private:
  // Weights in the loss: of ExpertLoad::balance_loss, and of RouterZLoss.
  struct RouterLosses {
    double balance_coef = 0, z_coef = 0;
  };
  // `mask` [sum R] uint8 of the loss; `has_gradient` [B] uint8, or undefined: all.
  MetricsList run_updates(const TokenBatch& tokens, const BatchLayout& layout, const at::Tensor& mask,
                          const at::Tensor& has_gradient, const MiniBatches& mini, LossHead& head,
                          const RouterLosses& routers);
  struct Update;
  // Of mini-batch m, over all its micro-batches.
  void find_gradients(Update& update, size_t m, RouterWatch& watch);
  Metrics mini_batch_metrics(Update& update, size_t m);
  // Of a model with experts.
  bool counts_routers() const { return options_.model.moe.has_value(); }
  // Of these micro-batches, two parts for each mini-batch: [M] the tokens that its routers see, over all
  // ranks. Every rank at the same time.
  std::vector<double> routed_tokens(const BatchLayout& layout,
                                    const std::vector<std::vector<MicroBatch>>& parts) const;
  // False where another rank of the tensor-parallel group counts the same choices.
  bool own_choices() const { return mesh_.tp()->rank() == 0; }
  void optimizer_step(Metrics& metrics);
  // How many micro-batches all ranks run for each entry: the most that any of them has. The start of a verb.
  std::vector<int64_t> agree(const std::vector<int64_t>& counts);
  // Lives from the start of a verb. If the verb throws on this rank before its agree(), the destructor tells
  // the other ranks through their agree() (of as many entries): they throw too, instead of waiting for a rank
  // that will not come.
  class Beginning {
   public:
    Beginning(RankEngine& engine, size_t entries);
    ~Beginning();
    Beginning(const Beginning&) = delete;
    Beginning& operator=(const Beginning&) = delete;

   private:
    RankEngine& engine_;
    size_t entries_;
    int64_t agreements_;
  };
  BatchLayout checked_layout(const TokenBatch& batch) const;
  // See RouterOrders.
  at::Tensor no_choices(const TokenBatch& batch) const;
  HeadContext head_context();
  // The ranks that share the rows of micro-batches with this one; null: none.
  Communicator* sharing() const {
    return sequence_ ? &sequence_->comm() : context_ ? mesh_.cp().get() : nullptr;
  }
  // The rows of a micro-batch, which ranks share evenly, and this rank's part of them.
  int64_t row_parts() const;  // into which rows are cut
  RowPadding row_padding() const;
  MicroRows gather_rows(const TokenBatch& batch, const BatchLayout& layout, const MicroBatch& micro) const;
  // A response array [sum R] of which each rank that shares the rows has written its part, on the stage with
  // the head: the whole on all ranks that have been called with the same data.
  at::Tensor combined(const at::Tensor& own, const char* what) const;
  // This rank's micro-batches, among `rounds` of all ranks, through the stages: with a backward where `head`
  // has a gradient.
  void run_micro_batches(const TokenBatch& batch, const BatchLayout& layout,
                         const std::vector<MicroBatch>& micros, int64_t rounds, const HeadWork& head);
  // Inference over a batch: `evaluate` where the head is.
  void infer(const TokenBatch& batch, const BatchLayout& layout,
             const std::function<void(const MicroRows& micro, const at::Tensor& hidden)>& evaluate);
  // Whether any rank says so. Every rank at the same time.
  bool any_rank(bool mine, const CollectiveLabel& label);
  // Elements of a group's flat buffer, from `begin` on.
  struct GroupPart {
    int64_t begin;
    at::Tensor values;
  };
  // The part of a group that this rank writes in an export; adapters: all of those on it that are merged in.
  GroupPart export_part(TensorKind kind, size_t group, const at::Tensor& adapters) const;
  static void write_part(TensorFileWriter& writer, const TensorSlice& slice, const Parameter& parameter,
                         const GroupPart& part);
  // The whole flat buffer of a group, of what is placed on this rank.
  at::Tensor flat(TensorKind kind, size_t group);
  at::Tensor merged(size_t group);
  // The whole flat buffer of a group on the ranks of its own stage and on the first rank of all.
  at::Tensor flat_on_first_stage(TensorKind kind, size_t group);
  // A whole parameter in its own shape, from what is placed on this rank. All ranks of a tensor-parallel
  // group.
  at::Tensor whole(const Parameter& parameter, const at::Tensor& own);
  // A whole parameter for an export in buckets; undefined where nobody reads it.
  const at::Tensor& kept_parameter(TensorKind kind, const Parameter& parameter);
  void weights_changed();
  // Completes the routed experts of outputs with those of the other stages' layers. All ranks of a pipeline
  // at the same time.
  void join_routed_experts(std::vector<RolloutOutput>& outputs);
  // Of these ranks, so many that decode together, from open_rollout() on.
  void decode_over(int64_t tensor_parallel, bool predicts);
  Transformer& decoder() { return copy_ ? copy_->decoder() : transformer_; }
  // The communicators of the ranks that decode together: all of them make the same calls.
  std::vector<Communicator*> decoding_axes() const;
  // Undoes begin_rollout(): frees gathered parameters, the parts of a decoding copy, and the packed or
  // quantised copies of the weights.
  void stop_decoding();

  void require_head(HeadKind head, const char* verb) const;
  static void check_temperature(double temperature);
  // Before a use of the weights. kInvalidModel where a part of them or of the state is changed and a part is
  // not; replaces_weights: of the state alone, since the weights are about to be others.
  void prepare(bool replaces_weights = false);
  // Of a call of all ranks without agree(), which leaves gathered parameters, of a generation too, as they
  // are: what a rank does before its first collective. Where it throws on one, all of them throw.
  void begin_together(const std::function<void()>& begin);
  // Whether something has begun to change tensors of this kind and not ended: they are neither what they were
  // nor what they were to be, here or, of a step, on other ranks.
  bool& half_changed(TensorKind kind) { return half_changed_[static_cast<size_t>(kind)]; }
  void check_abort() const;

  EngineOptions options_;
  at::Device device_;
  Mesh mesh_;
  std::vector<StageRange> parts_;  // of the decoder, over the stages of the pipeline
  ParameterStore store_;
  Sharding sharding_;
  std::unique_ptr<SequenceGroup> sequence_;         // null where each rank has micro-batches of its own
  std::optional<ContextGroup> context_;             // none where no rank has other rows of the same sequences
  Communicator* ep_;                                // null where each rank has all experts
  std::optional<Exchange> exchange_;                // none where each rank has whole matrices
  std::optional<ops::VocabularyShard> vocabulary_;  // of a causal LM, with exchange_
  Transformer transformer_;
  std::optional<ActivationOffload> activation_offload_;
  std::optional<int64_t> embedding_peer_;  // the stage that has the embeddings, too
  bool prepared_ = false;
  std::unique_ptr<DecodingCopy> copy_;  // null where a generation is laid out as training
  std::unique_ptr<Rollout> rollout_;
  bool decoding_ = false;
  int64_t rollout_weights_ = 0;  // the weights_version_ of its pages
  // What an export in buckets keeps from one bucket to the next: the group that it gathered last, and the
  // parameter of that group that it put together last.
  struct KeptGroup {
    TensorKind kind;
    size_t group;
    at::Tensor own;
    const Parameter* parameter;
    at::Tensor whole;
  };
  std::optional<KeptGroup> kept_;
  std::array<bool, static_cast<size_t>(TensorKind::kMerged)> half_changed_{};  // by kind
  int64_t agreements_ = 0;                                                     // calls of agree()
  int64_t weights_version_ = 0;
  int64_t optimizer_steps_ = 0;
  int64_t schedule_steps_ = 0;

  std::atomic<bool> aborted_{false};
  mutable std::mutex abort_mutex_;
  std::string abort_reason_;
};

}  // namespace troupe
