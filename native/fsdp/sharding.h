// A store's parameters over the ranks of a communicator, and the collectives that bring them together.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "fsdp/muon_step.h"
#include "fsdp/sharding_options.h"
#include "megatron/mesh.h"
#include "parameters/parameter_access.h"
#include "parameters/parameter_store.h"

namespace troupe {

// kAborted: what a rank says that does not begin because another one cannot.
inline constexpr const char* kRefusedElsewhere =
    "[engine] another rank has refused its part of this call; its own error says why";

// The parameters of one store, sharded over the ranks of a communicator (perhaps this one alone), and the
// collectives that gather and reduce them; what is kept on the host comes to the device here. Gradients are
// summed over ranks in float32, in the order of the ranks: within a replica as GradientReduction says, where
// what is sent may be bfloat16 (reduce_dtype), between replicas once per mini-batch.
//
// After a collective has failed nothing is freed here: see Communicator.
class Sharding final : public ParameterAccess {
 public:
  // Every rank at the same time, with the same options: over mesh.dp_cp(), and what only some ranks of
  // mesh.ep() have (GroupSpec::expert_rank) over mesh.expert_dp(). The ranks of mesh.tp() hold the other
  // parts of the matrices (parameters/placement.h), each the shards of its own.
  Sharding(ParameterStore& store, const Mesh& mesh, const ShardingOptions& options);

  void acquire(size_t group, const char* phase) override;
  void release(size_t group) override;
  void prefetch(size_t group, const char* phase) override;
  void acquire_gradient(size_t group) override;
  void release_gradient(size_t group) override;
  void settle_gradients() override;

  // For verbs that use all parameters at once: but for those of layers from `layers` on, which predict
  // further tokens.
  void acquire_all(const char* phase, int64_t layers);
  // The end of a verb: no parameter stays gathered.
  void release_all();

  // The start of a mini-batch: no gradients.
  void clear_gradients();
  // Before sum_gradients(): the gradients of this rank are of no use, and so are the sums of all. Their norm
  // will be NaN on every rank, whatever the others found.
  void spoil_gradients();
  // The end of one: the gradients are those of all ranks, also of parameters of which several ranks hold
  // copies and each has found a part.
  void sum_gradients();
  // After it: the gradients of a group that rank `peer` of `comm` has, too, are the sum of both. Both at the
  // same time.
  void sum_with(size_t group, Communicator& comm, int64_t peer);
  // sqrt of the sum of squares of all gradients of all ranks and of all `stages` of a pipeline, copies
  // counted once; the same on every rank.
  double grad_norm(Communicator& stages);
  // One step of the optimiser, group by group; the masters have changed.
  void step(const OptimizerOptions& options, const StepSize& size);
  // The start of a verb: the largest of each rank's counts, element by element, over `all` ranks of the
  // engine. A rank that cannot begin (`refuses`) gives as many counts as the others, and none of them waits
  // for it: they throw kAborted.
  std::vector<int64_t> agree(Communicator& all, const std::vector<int64_t>& counts, bool refuses = false);
  // The whole flat buffer of a kind, in the dtype that it is kept in, on every rank.
  at::Tensor gather(TensorKind kind, size_t group);

  // Ranks that hold the same shard of a group, and which of them this one is.
  int64_t copies(size_t group) const { return replicas(group).size(); }
  int64_t copy(size_t group) const { return replicas(group).rank(); }
  // Ranks of data parallelism.
  int64_t size() const { return dense_.all->size(); }
  // By the communicators that are its own: parts of the given one.
  int64_t bytes_sent() const;
  void abort(const std::string& reason);

 private:
  // Ranks that hold a part of the model in common.
  struct Spread {
    std::shared_ptr<Communicator> all;
    // the ranks whose shards make up one replica of the state with this one's
    std::shared_ptr<Communicator> shards;
    std::shared_ptr<Communicator> replicas;  // the ranks that hold the same shard in the other replicas
    int64_t bytes_sent() const;
    void abort(const std::string& reason) const;
  };
  // shard_count neighbours of `all` for each replica. name: of the splits.
  static Spread spread(std::shared_ptr<Communicator> all, int64_t shard_count, const std::string& name);
  const Spread& of(size_t group) const { return store_.groups()[group].expert_rank ? experts_ : dense_; }

  CollectiveLabel label(const char* phase, size_t group) const;
  // Whether this rank holds a shard of the group, so that it must be gathered.
  bool sharded(size_t group) const { return !store_.groups()[group].buffer && of(group).shards->size() > 1; }
  // The ranks that hold what this one holds of a group.
  const Communicator& replicas(size_t group) const {
    return store_.groups()[group].buffer ? *dense_.all : *of(group).replicas;
  }
  void bring(size_t group, const char* phase);
  Pending start_gather(size_t group, const char* phase);
  void reshard(size_t group);
  // Begins to sum the group's gradient over ranks, behind those of the block before it.
  void reduce(size_t group);
  void split_copies();
  // Sums of those parts of gradients that `comm`'s ranks all have copies of.
  void sum_copies(Communicator& comm);
  // [] float64 where the gradient lies.
  at::Tensor squares_of(size_t group, const at::Tensor& grad) const;

  ParameterStore& store_;
  ShardingOptions options_;
  Spread dense_;
  Spread experts_;  // of groups that only some ranks have; dense_ without expert parallelism
  std::shared_ptr<Communicator> ep_;
  std::shared_ptr<Communicator> tp_;
  // ranks of tp_ that hold the same pieces of some parameters
  std::vector<std::shared_ptr<Communicator>> copies_;
  struct Uses {
    int64_t parameters = 0, gradients = 0;  // leases that have not ended
    bool gathered = false;
  };
  std::vector<Uses> uses_;           // by group
  std::map<size_t, Pending> ahead_;  // gathers of prefetched groups
  // A group's gradient on its way to the shards. What is sent of it and the parts of other ranks stay until
  // it has come, so that those of one block at a time are under way, while one more computes its own.
  struct Reduction {
    size_t group;
    at::Tensor sum;  // [shard]
    Pending pending;
    at::Tensor sent;  // the whole gradient, or in a narrower dtype what it was rounded to
  };
  std::deque<Reduction> reducing_;
  bool next_block_ = false;  // a gradient has been acquired since these were released
};

}  // namespace troupe
