// The parameters of a model in flat buffers, one set of buffers per group, with gradients and moments beside
// them.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "optim/adamw.h"
#include "parameters/flat_buffer.h"
#include "parameters/parameter_layout.h"
#include "parameters/state_buffer.h"
#include "parameters/state_kinds.h"

namespace troupe {

// One parameter, or the part of it that is placed here: views into its group's flat buffers.
struct Parameter {
  ParameterInfo info;
  size_t group = 0;
  InitialValue initial = InitialValue::kZero;
  Placement placement;
  std::vector<int64_t> matrices;  // see ParameterSpec
  int64_t start = 0;              // in the flat buffer
  at::Tensor master;              // in ParameterGroup::dtype; undefined in a sharded store
  at::Tensor grad;                // float32; undefined for inference and where frozen
  at::Tensor compute;             // compute dtype; the master itself where that has it, and of a buffer
};

// Elements [begin, begin + count) of the slice of a flat buffer that is held here, which `copies`
// neighbouring ranks hold.
struct SliceRun {
  int64_t begin = 0;
  int64_t count = 0;
  int64_t copies = 1;
};

// Part `index` of `count` equal parts of every flat buffer.
struct ShardSlice {
  int64_t index = 0;
  int64_t count = 1;
};

// A group of parameters. All its buffers are flat, so that optimiser and collectives see few large tensors.
struct ParameterGroup : GroupSpec {
  // Of param, also where it is on other ranks: that of masters where trained, float32 of a buffer. What is
  // frozen is kept as it is computed with, rounded once when it comes: nothing is ever added to it.
  at::ScalarType dtype = at::kFloat;
  // The slice that is owned: param, and compute where the compute dtype is another. Only where trained the
  // gradient, float32, and the moments, in dtype.
  StateBuffer param, compute, grad, exp_avg, exp_avg_sq;
  // What Parameter::compute and grad are views of in a store that is sharded or computes alone: of the whole
  // group, in memory only around their use (fsdp/sharding.h, engine/decoding_copy.h).
  FlatBuffer full_compute, full_grad;
  int64_t whole_size = 0;  // elements of the whole group's flat buffer, with its padding

  bool trained() const { return grad.defined(); }
  // What is computed with.
  StateBuffer& weights() { return compute.defined() ? compute : param; }
  std::array<StateBuffer*, 5> state() { return {&param, &compute, &grad, &exp_avg, &exp_avg_sq}; }
  // The slice for the optimiser; its memory must be there (StateBuffer::fetch). With Muon exp_avg_sq is that
  // of ParameterStore::elements() alone, one run behind the other.
  AdamWBuffers buffers() const {
    return {param.tensor(), grad.tensor(), exp_avg.tensor(), exp_avg_sq.tensor(), compute.tensor()};
  }
};

class ParameterStore {
 public:
  // training: allocate gradients and optimiser moments (zeroed) of the groups that are trainable. slice: of
  // every buffer, what is held here; expert_slice: of those of groups that only some ranks have
  // (GroupSpec::expert_rank). offload: what is kept on the host. master_dtype: of what is trained, and of its
  // moments. muon: the weights of linear layers have no second one.
  ParameterStore(ParameterLayout layout, at::Device device, at::ScalarType compute_dtype, bool training,
                 uint64_t seed, ShardSlice slice = {}, const StateKinds& offload = {},
                 ShardSlice expert_slice = {}, at::ScalarType master_dtype = at::kFloat, bool muon = false);
  // To compute with alone: a parameter has no master, and its `compute` is a view of full_compute, which
  // begins without memory.
  ParameterStore(ParameterLayout layout, at::Device device, at::ScalarType compute_dtype);

  const std::vector<Parameter>& all() const { return parameters_; }
  std::vector<ParameterGroup>& groups() { return groups_; }
  const std::vector<ParameterGroup>& groups() const { return groups_; }

  // Of a group's flat buffer, what is held here.
  ShardSlice slice(size_t group) const {
    if (groups_[group].buffer) return {};
    return groups_[group].expert_rank ? expert_slice_ : slice_;
  }
  const Parameter* find(const std::string& name) const;  // nullptr when there is none
  const Parameter& at(const std::string& name) const;    // kInvalidArgument when there is none
  // Of the weight `name`, in the order of the sites; none for most.
  const std::vector<AdapterParameters>& adapters(const std::string& name) const;
  // Those that are here: base, then buffers, experts of this rank, and adapters, where it has any.
  std::vector<size_t> groups_of_layer(int64_t layer) const;
  // Whether a group's parameters are written by an export of `kind`; the same on all ranks of a pipeline
  // stage, and true on one stage alone.
  bool exports(TensorKind kind, size_t group) const;
  // The group whose adapters are on weights of `group`, if there is one.
  std::optional<size_t> adapters_of(size_t group) const;
  // Adds a group's adapters to its flat parameters, in place: W + scale B A, all of them float32.
  void merge(size_t group, const at::Tensor& flat, const at::Tensor& adapters) const;
  // The same for the elements from `begin` on that `part` has, bit for bit.
  void merge(size_t group, int64_t begin, const at::Tensor& part, const at::Tensor& adapters) const;
  // The slice of a group's flat buffer that is held here, where it is kept; of second moments with Muon those
  // of elements(). kInvalidArgument when it has none of this kind.
  const at::Tensor& owned(TensorKind kind, size_t group) const;
  // With Muon, of the slice of a group: what belongs to no weight of a linear layer.
  std::vector<SliceRun> elements(size_t group) const;
  // All of the slice of a group as owned() has it, and zeros where there is nothing of this kind.
  at::Tensor slice_of(TensorKind kind, size_t group) const;
  // A parameter in the flat buffer of its whole group.
  static at::Tensor view(const Parameter& parameter, const at::Tensor& flat);
  // Of the slice of a group: what this rank counts in sums over all ranks, padding included, and where each
  // copy finds a part of the gradient, so that it must be summed over them. Neighbours that hold copies have
  // the same runs of them.
  std::vector<SliceRun> counted(size_t group) const;
  std::vector<SliceRun> summed(size_t group) const;
  // From here on rows and columns are those of whole parameters.
  //
  // The part of rows [row, row + rows) of a parameter that is held here at least in part; may be empty.
  RowRange owned_rows(TensorKind kind, const Parameter& parameter, int64_t row, int64_t rows) const;
  // Sets rows [row, row + values.size(0)) of a parameter, as far as they are held here; of a matrix the
  // columns from `column` on that `values` has.
  void assign(TensorKind kind, const Parameter& parameter, int64_t row, const at::Tensor& values,
              int64_t column = 0);

  // Fills every parameter that no import has touched with its InitialValue, each from a stream of its own.
  void initialize_missing();
  void mark_imported(const std::string& name) { imported_[name] = true; }
  // Copies masters to the compute copies (a no-op where there are none).
  void refresh_compute();
  void refresh_compute(size_t group);
  void zero_grad();
  // Of what is held here for good.
  StateBytes bytes() const;
  // Where these parts are kept from now on. kInvalidArgument for parts that an inference-only store lacks.
  void keep(const StateKinds& kinds, bool on_host);

 private:
  // Takes the layout's groups and parameters; elements by group.
  std::vector<int64_t> take(ParameterLayout layout);
  void allocate(at::Device device, at::ScalarType compute_dtype, at::ScalarType master_dtype,
                const std::vector<int64_t>& sizes, const StateKinds& offload);
  // How much further an element of the parameter lies in the slice than in what is kept of this kind.
  int64_t left_out_before(TensorKind kind, const Parameter& parameter) const;
  template <typename Predicate>
  std::vector<SliceRun> runs_of(size_t group, Predicate&& predicate) const;

  std::string family_;
  bool training_ = false;
  bool muon_ = false;
  uint64_t seed_ = 0;
  ShardSlice slice_, expert_slice_;
  std::vector<Parameter> parameters_;
  std::vector<ParameterGroup> groups_;
  std::map<std::string, size_t> index_;
  std::map<std::string, bool> imported_;
  std::map<std::string, std::vector<AdapterParameters>> adapters_;  // by weight
};

}  // namespace troupe
