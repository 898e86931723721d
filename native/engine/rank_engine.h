// The engine of one rank: the only implementation of Engine.
#pragma once

#include <atomic>
#include <functional>
#include <mutex>

#include "engine/engine.h"
#include "batch/packing.h"
#include "fsdp/sharding.h"
#include "kernels/linear_log_prob.h"
#include "losses/losses.h"
#include "parameters/parameter_store.h"
#include "model/transformer.h"
#include "ulysses/sequence_group.h"

namespace troupe {

// Of an engine's options, in a group of `size`.
ShardingOptions sharding_options(const EngineOptions& options, int64_t size);
// The parameters of an engine on `device`: what rank `rank` of `size` holds of them.
ParameterStore make_store(const EngineOptions& options, at::Device device, int64_t rank, int64_t size);

// The engine of one rank of any number: its shard of a model, with a `sharding_` that gathers what it lacks
// and, where several ranks share a micro-batch, a `sequence_` group of them. A model in one process is the
// shard of a group of one.
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
    return sharding_.bytes_sent() + (sequence_ ? sequence_->bytes_sent() : 0);
  }
  void offload(const StateKinds& kinds) override;
  void onload(const StateKinds& kinds) override;

  LogProbResult compute_log_prob(const TokenBatch& batch, double temperature, bool entropy,
                                 bool sum_pi_squared, bool disable_adapters) override;
  MetricsList update_policy(const PolicyBatch& batch, const MiniBatches& mini, const PolicyLossOptions& loss,
                            double temperature) override;
  at::Tensor compute_values(const TokenBatch& batch) override;
  MetricsList update_critic(const ValueBatch& batch, const MiniBatches& mini,
                            const ValueLossOptions& loss) override;
  MetricsList update_sft(const SftBatch& batch, const MiniBatches& mini) override;
  GenerateResult generate(const PromptBatch& prompts, const SamplingOptions& options) override;

  int64_t optimizer_steps() const override { return optimizer_steps_; }
  int64_t schedule_steps() const override { return schedule_steps_; }
  void set_steps(int64_t optimizer_steps, int64_t schedule_steps) override;
  double learning_rate() const override;
  void abort(const std::string& reason) override;

 private:
  // Forward and, where its sequences have a gradient, backward of this rank's part of one micro-batch
  // (`whole`) of mini-batch `mini`.
  using MicroStep =
      std::function<void(int64_t mini, const PackedTokens& whole, const PackedTokens& part, bool backward)>;
  // The metrics of a finished mini-batch.
  using Summary = std::function<Metrics(int64_t mini)>;
  // `has_gradient` [B] uint8, or undefined: all.
  MetricsList run_updates(const TokenBatch& tokens, const BatchLayout& layout, const at::Tensor& has_gradient,
                          const MiniBatches& mini, const MicroStep& step, const Summary& summarize);
  void optimizer_step(Metrics& metrics);
  // How many micro-batches all ranks run for each entry: the most that any of them has. The start of a verb.
  std::vector<int64_t> agree(const std::vector<int64_t>& counts);
  // Around what a verb does before agree(): where that throws on this rank alone, the others hear of it in their
  // agree() of as many entries, and throw too, instead of waiting for a rank that does not come.
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
  // Log-probs of a micro-batch's targets, and what else is wanted, from its decoder's outputs.
  ops::LogProbRows head_rows(const ops::LogProbSpec& spec, const PackedTokens& packed,
                             const at::Tensor& hidden, bool entropy, bool sum_pi_squared);
  // The rows of a micro-batch, which a sequence group shares evenly, and this rank's part of them.
  PackedTokens gather_rows(const TokenBatch& batch, const BatchLayout& layout, const MicroBatch& micro) const;
  PackedTokens own_part(const PackedTokens& whole) const;
  // A response array [sum R] of which each rank of the sequence group has written its part.
  at::Tensor combined(const at::Tensor& own, const char* what) const;
  // Inference over a batch, micro-batch by micro-batch: this rank's part of each.
  void for_each_micro(const TokenBatch& batch, const BatchLayout& layout,
                      const std::function<void(const PackedTokens& packed)>& body);
  // Elements of a group's flat buffer, from `begin` on.
  struct GroupPart {
    int64_t begin;
    at::Tensor values;
  };
  // The part of a group that this rank writes in an export. Every rank at the same time.
  GroupPart export_part(TensorKind kind, size_t group);
  // The whole flat buffer of a group.
  at::Tensor flat(TensorKind kind, size_t group);
  at::Tensor merged(size_t group);
  // The whole flat buffer of a group for an export in buckets; undefined where nobody reads it.
  const at::Tensor& kept_group(TensorKind kind, size_t group);
  void weights_changed();

  void require_head(HeadKind head, const char* verb) const;
  static void check_temperature(double temperature);
  void prepare();  // before the first use of the weights
  void check_abort() const;

  EngineOptions options_;
  at::Device device_;
  ParameterStore store_;
  Sharding sharding_;
  std::unique_ptr<SequenceGroup> sequence_;  // null where each rank has micro-batches of its own
  Transformer transformer_;
  bool prepared_ = false;
  // The group that an export in buckets gathered last.
  struct KeptGroup {
    TensorKind kind;
    size_t group;
    at::Tensor whole;
  };
  std::optional<KeptGroup> kept_;
  int64_t agreements_ = 0;  // calls of agree()
  int64_t weights_version_ = 0;
  int64_t optimizer_steps_ = 0;
  int64_t schedule_steps_ = 0;

  std::atomic<bool> aborted_{false};
  mutable std::mutex abort_mutex_;
  std::string abort_reason_;
};

}  // namespace troupe
