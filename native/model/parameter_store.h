#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "fsdp/flat_buffer.h"
#include "fsdp/state_buffer.h"
#include "optim/adamw.h"

namespace troupe {

// One parameter: views into its group's flat buffers.
struct Parameter {
  ParameterInfo info;
  size_t group = 0;
  int64_t start = 0;   // in the flat buffer
  at::Tensor master;   // float32; undefined in a sharded store
  at::Tensor grad;     // float32; undefined for inference and where frozen
  at::Tensor compute;  // compute dtype; the master itself in float32
};

// Rows [begin, end).
struct RowRange {
  int64_t begin = 0;
  int64_t end = 0;
};

// Part `index` of `count` equal parts of every flat buffer.
struct ShardSlice {
  int64_t index = 0;
  int64_t count = 1;
};

// Parameters that live and travel together: embeddings, one group per block, final norm and head; the
// adapters of a block, and the value head that is trained beside them. All buffers are flat, so that
// optimiser and collectives see few large tensors.
struct ParameterGroup {
  std::string name;
  // The slice that is owned: float32, and compute in the compute dtype where that is another. Gradient and
  // moments only where trained.
  StateBuffer param, compute, grad, exp_avg, exp_avg_sq;
  // What Parameter::compute and grad are views of in a sharded store: of the whole group, in memory only
  // around their use (fsdp/sharding.h).
  FlatBuffer full_compute, full_grad;

  bool trained() const { return grad.defined(); }
  // What is computed with.
  StateBuffer& weights() { return compute.defined() ? compute : param; }
  std::array<StateBuffer*, 5> state() { return {&param, &compute, &grad, &exp_avg, &exp_avg_sq}; }
  // The slice for the optimiser; its memory must be there (StateBuffer::fetch).
  AdamWBuffers buffers() const {
    return {param.tensor(), grad.tensor(), exp_avg.tensor(), exp_avg_sq.tensor(), compute.tensor()};
  }
};

// One adapter on a weight: the names of its parameters and the rows from `row` on that it adds to.
struct AdapterParameters {
  std::string a, b;
  int64_t row = 0;
  double scale = 1;
};

class ParameterStore {
 public:
  // training: allocate gradients and optimiser moments (zeroed). slice: of every buffer, what is held here.
  // With lora there are adapters, and everything but them and the value head is frozen: as for inference.
  // offload: what is kept on the host.
  ParameterStore(const ModelConfig& config, at::Device device, at::ScalarType compute_dtype, bool training,
                 uint64_t seed, ShardSlice slice = {}, const std::optional<LoraOptions>& lora = std::nullopt,
                 const StateKinds& offload = {});

  const std::vector<Parameter>& all() const { return parameters_; }
  std::vector<ParameterGroup>& groups() { return groups_; }
  const std::vector<ParameterGroup>& groups() const { return groups_; }

  const Parameter* find(const std::string& name) const;  // nullptr when there is none
  const Parameter& at(const std::string& name) const;    // kInvalidArgument when there is none
  // Of the weight `name`, in the order of the sites; none for most.
  const std::vector<AdapterParameters>& adapters(const std::string& name) const;
  // Base, then adapters where it has any.
  std::vector<size_t> groups_of_layer(int64_t layer) const;
  // Whether a group's parameters are written by an export of `kind`; the same on every rank.
  bool exports(TensorKind kind, size_t group) const;
  // The group whose adapters are on weights of `group`, if there is one.
  std::optional<size_t> adapters_of(size_t group) const;
  // Adds a group's adapters to its flat float32 parameters, in place: W + scale B A.
  void merge(size_t group, const at::Tensor& flat, const at::Tensor& adapters) const;
  // The slice of a group's flat buffer that is held here, where it is kept. kInvalidArgument when it has none
  // of this kind.
  const at::Tensor& owned(TensorKind kind, size_t group) const;
  // A parameter in the flat buffer of its whole group.
  static at::Tensor view(const Parameter& parameter, const at::Tensor& flat);
  // The part of rows [row, row + rows) of a parameter that is held here at least in part; may be empty.
  RowRange owned_rows(TensorKind kind, const Parameter& parameter, int64_t row, int64_t rows) const;
  // Sets rows [row, row + values.size(0)) of a parameter, as far as they are held here; of a matrix the
  // columns from `column` on that `values` has.
  void assign(TensorKind kind, const Parameter& parameter, int64_t row, const at::Tensor& values,
              int64_t column = 0);

  // Fills every parameter that no import has touched: matrices from N(0, 0.02) with a stream per
  // parameter, norms with the identity, biases with 0; adapters as PEFT does, A from
  // U(-1/sqrt(in), 1/sqrt(in)) (Kaiming, a = sqrt(5)) and B with 0, so that they begin by adding nothing.
  void initialize_missing();
  void mark_imported(const std::string& name) { imported_[name] = true; }
  // Copies masters to the compute copies (a no-op in float32).
  void refresh_compute();
  void refresh_compute(size_t group);
  void zero_grad();
  // Of what is held here for good.
  StateBytes bytes() const;
  // Where these parts are kept from now on. kInvalidArgument for parts that an inference-only store lacks.
  void keep(const StateKinds& kinds, bool on_host);

 private:
  void add(ParameterInfo info, std::vector<int64_t>& sizes);
  bool trains(const std::string& group) const;
  void allocate(at::Device device, at::ScalarType compute_dtype, const std::vector<int64_t>& sizes,
                const StateKinds& offload);
  std::optional<size_t> find_group(const std::string& name) const;

  ModelConfig config_;
  bool training_;
  uint64_t seed_;
  ShardSlice slice_;
  std::optional<LoraOptions> lora_;
  std::vector<Parameter> parameters_;
  std::vector<ParameterGroup> groups_;
  std::map<std::string, size_t> index_;
  std::map<std::string, bool> imported_;
  std::map<std::string, std::vector<AdapterParameters>> adapters_;  // by weight
};

}  // namespace troupe
