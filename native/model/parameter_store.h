#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "core/engine.h"
#include "fsdp/flat_buffer.h"
#include "optim/adamw.h"

namespace troupe {

// One parameter: views into its group's flat buffers.
struct Parameter {
  ParameterInfo info;
  size_t group = 0;
  int64_t start = 0;   // in the flat buffer
  at::Tensor master;   // float32; undefined in a sharded store
  at::Tensor grad;     // float32; undefined for inference
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

// Parameters that live and travel together: embeddings, one group per block, final norm and head. All
// buffers are flat, so that optimiser and collectives see few large tensors.
struct ParameterGroup {
  std::string name;
  AdamWBuffers buffers;  // the slice that is owned
  // What Parameter::compute and grad are views of in a sharded store: of the whole group, in memory only
  // around their use (fsdp/sharding.h).
  FlatBuffer full_compute, full_grad;
};

class ParameterStore {
 public:
  // training: allocate gradients and optimiser moments (zeroed). slice: of every buffer, what is held here.
  ParameterStore(const ModelConfig& config, at::Device device, at::ScalarType compute_dtype, bool training,
                 uint64_t seed, ShardSlice slice = {});

  const std::vector<Parameter>& all() const { return parameters_; }
  std::vector<ParameterGroup>& groups() { return groups_; }
  const std::vector<ParameterGroup>& groups() const { return groups_; }

  const Parameter* find(const std::string& name) const;  // nullptr when there is none
  const Parameter& at(const std::string& name) const;    // kInvalidArgument when there is none
  // The slice of a group's flat buffer that is held here.
  const at::Tensor& owned(TensorKind kind, size_t group) const;
  // A parameter in the flat buffer of its whole group.
  static at::Tensor view(const Parameter& parameter, const at::Tensor& flat);
  // The part of rows [row, row + rows) of a parameter that is held here at least in part; may be empty.
  RowRange owned_rows(TensorKind kind, const Parameter& parameter, int64_t row, int64_t rows) const;
  // Sets rows [row, row + values.size(0)) of a parameter, as far as they are held here.
  void assign(TensorKind kind, const Parameter& parameter, int64_t row, const at::Tensor& values);

  // Fills every parameter that no import has touched: matrices from N(0, 0.02) with a stream per
  // parameter, norms with the identity, biases with 0.
  void initialize_missing();
  void mark_imported(const std::string& name) { imported_[name] = true; }
  // Copies masters to the compute copies (a no-op in float32).
  void refresh_compute();
  void zero_grad();
  // Of what is held here for good.
  StateBytes bytes() const;

 private:
  ModelConfig config_;
  bool training_;
  uint64_t seed_;
  ShardSlice slice_;
  std::vector<Parameter> parameters_;
  std::vector<ParameterGroup> groups_;
  std::map<std::string, size_t> index_;
  std::map<std::string, bool> imported_;
};

}  // namespace troupe
