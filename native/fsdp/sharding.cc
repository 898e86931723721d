// Gathering, reducing and stepping of sharded groups.
#include "fsdp/sharding.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <limits>
#include <set>

#include "base/counting_allocator.h"
#include "base/error.h"
#include "base/range.h"
#include "base/simulated.h"

namespace troupe {

namespace {

constexpr int64_t kCopiesBucket = int64_t{16} << 20;  // elements that are summed together

}  // namespace

Sharding::Sharding(ParameterStore& store, const Mesh& mesh, const ShardingOptions& options)
    : store_(store),
      options_(options),
      dense_(spread(mesh.dp_cp(), options.shard_count, "")),
      experts_(mesh.ep()->size() > 1 ? spread(mesh.expert_dp(), options.expert_shard_count, "experts/")
                                     : dense_),
      ep_(mesh.ep()),
      tp_(mesh.tp()),
      uses_(store.groups().size()) {
  split_copies();
}

Sharding::Spread Sharding::spread(std::shared_ptr<Communicator> all, int64_t shard_count,
                                  const std::string& name) {
  const int64_t rank = all->rank();
  const int64_t first = rank / shard_count * shard_count;
  // Every member of a split has the same name for it, and engines are made in the same order on all ranks.
  const std::string prefix = "engine" + std::to_string(all->log().collectives()) + "/" + name;
  const auto subgroup = [&](const char* kind, int64_t start, int64_t count,
                            int64_t stride) -> std::shared_ptr<Communicator> {
    if (count == all->size()) return all;
    std::vector<int64_t> ranks;
    for (int64_t i = 0; i < count; ++i) ranks.push_back(start + i * stride);
    return all->split(prefix + kind + std::to_string(start), ranks);
  };
  Spread spread{all, subgroup("shards", first, shard_count, 1),
                subgroup("replicas", rank - first, all->size() / shard_count, shard_count)};
  if (shard_count != 1 && shard_count != all->size()) all->barrier({"start", "engine"});
  return spread;
}

int64_t Sharding::Spread::bytes_sent() const {
  int64_t bytes = 0;
  if (shards != all) bytes += shards->log().bytes_sent();
  if (replicas != all) bytes += replicas->log().bytes_sent();
  return bytes;
}

void Sharding::Spread::abort(const std::string& reason) const {
  for (const auto& comm : {all, shards, replicas}) comm->abort(reason);
}

void Sharding::split_copies() {
  if (tp_->size() == 1) return;
  std::set<int64_t> counts;
  for (const Parameter& parameter : store_.all()) {
    for (const Piece& piece : parameter.placement.pieces) {
      if (piece.summed) counts.insert(piece.copies);
    }
  }
  const std::string prefix = "engine" + std::to_string(tp_->log().collectives()) + "/copies";
  bool split = false;
  for (const int64_t count : counts) {
    if (count == tp_->size()) {
      copies_.push_back(tp_);
      continue;
    }
    std::vector<int64_t> ranks;
    for (int64_t i = 0; i < count; ++i) ranks.push_back(tp_->rank() / count * count + i);
    copies_.push_back(tp_->split(prefix + std::to_string(count) + "from" + std::to_string(ranks[0]), ranks));
    split = true;
  }
  if (split) tp_->barrier({"start", "copies"});
}

int64_t Sharding::bytes_sent() const {
  int64_t bytes = dense_.bytes_sent();
  if (experts_.all != dense_.all) bytes += experts_.bytes_sent();
  for (const auto& copies : copies_) {
    if (copies != tp_) bytes += copies->log().bytes_sent();
  }
  return bytes;
}

void Sharding::abort(const std::string& reason) {
  dense_.abort(reason);
  experts_.abort(reason);
  for (const auto& copies : copies_) copies->abort(reason);
}

CollectiveLabel Sharding::label(const char* phase, size_t group) const {
  return {phase, store_.groups()[group].name};
}

Pending Sharding::start_gather(size_t group, const char* phase) {
  ParameterGroup& g = store_.groups()[group];
  g.weights().fetch();
  g.full_compute.allocate();
  return of(group).shards->all_gather_async(g.full_compute.tensor(), g.weights().tensor(),
                                            label(phase, group));
}

void Sharding::acquire(size_t group, const char* phase) {
  ++uses_[group].parameters;
  bring(group, phase);
}

void Sharding::bring(size_t group, const char* phase) {
  if (uses_[group].gathered || !store_.groups()[group].here) return;
  StateBuffer& own = store_.groups()[group].weights();
  if (sharded(group)) {
    const auto ahead = ahead_.find(group);
    Pending pending = ahead != ahead_.end() ? ahead->second : start_gather(group, phase);
    pending.wait();
    ahead_.erase(group);
    own.give_back(false);
  } else {
    own.fetch();
  }
  uses_[group].gathered = true;
}

void Sharding::prefetch(size_t group, const char* phase) {
  if (!options_.prefetch || !sharded(group) || uses_[group].gathered || ahead_.count(group) > 0) return;
  ahead_.emplace(group, start_gather(group, phase));
}

void Sharding::release(size_t group) {
  if (--uses_[group].parameters > 0) return;
  if (options_.strategy != ShardingStrategy::kShardGradOp) reshard(group);
}

void Sharding::reshard(size_t group) {
  ParameterGroup& g = store_.groups()[group];
  g.full_compute.release();
  g.weights().give_back(false);
  uses_[group].gathered = false;
}

void Sharding::acquire_gradient(size_t group) {
  ParameterGroup& g = store_.groups()[group];
  if (!g.trained() || ++uses_[group].gradients > 1) return;
  if (!sharded(group)) return g.grad.fetch();
  next_block_ = true;
  const auto same = [group](const Reduction& one) { return one.group == group; };
  if (std::any_of(reducing_.begin(), reducing_.end(), same)) settle_gradients();
  if (options_.reduction == GradientReduction::kMiniBatch && g.full_grad.allocated()) return;
  g.full_grad.allocate();
  g.full_grad.tensor().zero_();
}

void Sharding::release_gradient(size_t group) {
  ParameterGroup& g = store_.groups()[group];
  if (!g.trained() || --uses_[group].gradients > 0) return;
  if (!sharded(group)) {
    g.grad.give_back(true);
  } else if (options_.reduction == GradientReduction::kMicroBatch) {
    reduce(group);
  }
}

void Sharding::reduce(size_t group) {
  if (next_block_) settle_gradients();
  next_block_ = false;
  ParameterGroup& g = store_.groups()[group];
  const at::Tensor sum = at::empty_like(g.grad.tensor());
  at::Tensor sent = g.full_grad.tensor();
  if (options_.reduce_dtype != sent.scalar_type()) {
    const AllocateFor part(MemoryPart::kGathered);
    sent = sent.to(options_.reduce_dtype);
    g.full_grad.release();
  }
  reducing_.push_back(
      {group, sum, of(group).shards->reduce_scatter_async(sum, sent, label("backward", group)), sent});
  if (!options_.overlap_reduction) settle_gradients();
}

void Sharding::settle_gradients() {
  while (!reducing_.empty()) {  // one that failed stays, those before it are not added again
    Reduction& one = reducing_.front();
    ParameterGroup& g = store_.groups()[one.group];
    one.pending.wait();
    g.grad.fetch();
    g.grad.tensor().add_(one.sum);
    g.grad.give_back(true);
    g.full_grad.release();
    reducing_.pop_front();
  }
}

void Sharding::acquire_all(const char* phase, int64_t layers) {
  for (size_t group = 0; group < uses_.size(); ++group) {
    if (store_.groups()[group].layer.value_or(0) < layers) bring(group, phase);
  }
}

void Sharding::release_all() {
  // Groups that a verb has left behind when it failed.
  for (auto& [group, pending] : ahead_) pending.wait();
  ahead_.clear();
  settle_gradients();
  for (size_t group = 0; group < uses_.size(); ++group) {
    reshard(group);
    // An optimiser step that failed has fetched more: the next one would go on with that, whatever has come
    // to the host since then.
    for (StateBuffer* buffer : store_.groups()[group].state()) buffer->give_back(false);
  }
  uses_.assign(uses_.size(), {});
}

void Sharding::clear_gradients() {
  for (ParameterGroup& group : store_.groups()) group.full_grad.release();
  store_.zero_grad();
}

void Sharding::spoil_gradients() {
  for (ParameterGroup& group : store_.groups()) {
    if (!group.trained()) continue;
    group.grad.fetch();
    group.grad.tensor().narrow(0, 0, 1).fill_(std::numeric_limits<float>::quiet_NaN());
    return group.grad.give_back(true);
  }
}

void Sharding::sum_gradients() {
  settle_gradients();
  for (size_t group = 0; group < uses_.size(); ++group) {
    ParameterGroup& g = store_.groups()[group];
    if (!g.trained()) continue;
    if (g.full_grad.allocated()) reduce(group);
    settle_gradients();
    if (of(group).replicas->size() == 1) continue;
    g.grad.fetch();
    of(group).replicas->all_reduce(g.grad.tensor(), ReduceOp::kSum, label("backward", group));
    g.grad.give_back(true);
  }
  for (const auto& copies : copies_) sum_copies(*copies);
}

void Sharding::sum_copies(Communicator& comm) {
  const auto runs_of = [&](size_t group) {
    std::vector<SliceRun> runs;
    if (store_.groups()[group].trained()) runs = store_.summed(group);
    std::erase_if(runs, [&](const SliceRun& run) { return run.copies != comm.size(); });
    return runs;
  };
  for (size_t first = 0; first < uses_.size();) {
    std::vector<std::vector<SliceRun>> runs;  // of the groups that make up one bucket
    int64_t count = 0;
    for (size_t group = first; group < uses_.size() && count < kCopiesBucket; ++group) {
      runs.push_back(runs_of(group));
      for (const SliceRun& run : runs.back()) count += run.count;
    }
    const size_t end = first + runs.size();
    const auto each = [&](const at::Tensor& bucket, bool changed, const auto& body) {
      int64_t at = 0;
      for (size_t group = first; group < end; ++group) {
        StateBuffer& grad = store_.groups()[group].grad;
        if (runs[group - first].empty()) continue;
        grad.fetch();
        for (const SliceRun& run : runs[group - first]) {
          body(bucket.narrow(0, at, run.count), grad.tensor().narrow(0, run.begin, run.count));
          at += run.count;
        }
        grad.give_back(changed);
      }
    };
    if (count > 0) {
      const auto any = std::find_if(runs.begin(), runs.end(), [](const auto& own) { return !own.empty(); });
      const StateBuffer& like = store_.groups()[first + static_cast<size_t>(any - runs.begin())].grad;
      const at::Tensor bucket = at::empty({count}, like.tensor().options());
      each(bucket, false, [](const at::Tensor& part, const at::Tensor& grad) { part.copy_(grad); });
      comm.all_reduce(bucket, ReduceOp::kSum, {"backward", "copies of parameters"});
      each(bucket, true, [](const at::Tensor& part, const at::Tensor& grad) { grad.copy_(part); });
    }
    first = end;
  }
}

void Sharding::sum_with(size_t group, Communicator& comm, int64_t peer) {
  ParameterGroup& g = store_.groups()[group];
  if (!g.trained()) return;
  g.grad.fetch();
  const at::Tensor& own = g.grad.tensor();
  const at::Tensor other = at::empty_like(own);
  const CollectiveLabel what = label("backward", group);
  const bool first = comm.rank() < peer;
  if (!first) comm.send(own, peer, what);
  comm.recv(other, peer, what);
  if (first) comm.send(own, peer, what);
  own.add_(other);
  g.grad.give_back(true);
}

at::Tensor Sharding::squares_of(size_t group, const at::Tensor& grad) const {
  if (tp_->size() == 1) return sum_of_squares(grad);
  at::Tensor sum = sum_of_squares(grad.narrow(0, 0, 0));
  for (const SliceRun& run : store_.counted(group))
    sum.add_(sum_of_squares(grad.narrow(0, run.begin, run.count)));
  return sum;
}

double Sharding::grad_norm(Communicator& stages) {
  const Range range("grad_norm");
  // On the device until the end: the host waits once, not for every group.
  at::Device device = at::kCPU;
  for (const ParameterGroup& g : store_.groups()) {
    if (g.grad.defined() && !simulated(g.grad.tensor())) device = g.grad.tensor().device();
  }
  at::Tensor squares =
      at::zeros({static_cast<int64_t>(uses_.size())}, at::TensorOptions().dtype(at::kDouble).device(device));
  at::Tensor of_experts = at::zeros_like(squares);
  for (size_t group = 0; group < uses_.size(); ++group) {
    ParameterGroup& g = store_.groups()[group];
    if (!g.grad.defined() || g.copy) continue;
    g.grad.fetch();
    (g.expert_rank ? of_experts : squares)
        .select(0, static_cast<int64_t>(group))
        .copy_(squares_of(group, g.grad.tensor()));
    g.grad.give_back(false);
  }
  const CollectiveLabel what{"optimizer", "gradient norm"};
  dense_.shards->all_reduce(squares, ReduceOp::kSum, what);
  if (ep_->size() > 1) {
    experts_.shards->all_reduce(of_experts, ReduceOp::kSum, what);
    ep_->all_reduce(of_experts, ReduceOp::kSum, what);
    squares.add_(of_experts);
  }
  tp_->all_reduce(squares, ReduceOp::kSum, what);
  stages.all_reduce(squares, ReduceOp::kSum, what);  // each group is in one stage alone
  const at::Tensor all = squares.cpu();
  double sum = 0;
  for (int64_t group = 0; group < all.numel(); ++group) sum += all.const_data_ptr<double>()[group];
  return std::sqrt(sum);
}

void Sharding::step(const OptimizerOptions& options, const StepSize& size) {
  const Range range(options.muon ? "muon" : "adamw");
  for (size_t g = 0; g < store_.groups().size(); ++g) {
    ParameterGroup& group = store_.groups()[g];
    if (!group.trained()) continue;
    for (StateBuffer* buffer : group.state()) buffer->fetch();
    if (options.muon) {
      muon_step(store_, g, options, size, *of(g).shards, *tp_);
    } else {
      const int64_t first = store_.slice(g).index * group.param.tensor().numel();
      adamw_step(group.buffers(), options, size.lr, size.grad_scale, size.step,
                 {static_cast<int64_t>(g), first});
    }
    for (StateBuffer* buffer : group.state()) buffer->give_back(buffer != &group.grad);
  }
  for (Uses& uses : uses_) uses.gathered = false;
}

std::vector<int64_t> Sharding::agree(Communicator& all, const std::vector<int64_t>& counts, bool refuses) {
  std::vector<int64_t> said{refuses ? 1 : 0};
  said.insert(said.end(), counts.begin(), counts.end());
  const at::Tensor largest = at::tensor(said, at::kLong);
  all.all_reduce(largest, ReduceOp::kMax, {"start", "micro-batch counts"});
  release_all();  // what a verb that failed on this rank alone has left
  const int64_t* values = largest.const_data_ptr<int64_t>();
  require(refuses || values[0] == 0, ErrorCode::kAborted, kRefusedElsewhere);
  return {values + 1, values + largest.numel()};
}

at::Tensor Sharding::gather(TensorKind kind, size_t group) {
  const at::Tensor own = store_.slice_of(kind, group);
  if (!sharded(group)) return own;
  const at::Tensor full = at::empty({own.numel() * of(group).shards->size()}, own.options());
  of(group).shards->all_gather(full, own, label("gather", group));
  return full;
}

}  // namespace troupe
