#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "core/engine.h"
#include "optim/adamw.h"

namespace troupe {

// One parameter: views into its group's flat buffers.
struct Parameter {
  ParameterInfo info;
  size_t group = 0;
  at::Tensor master;   // float32
  at::Tensor grad;     // float32; undefined for inference
  at::Tensor compute;  // compute dtype; the master itself in float32
};

// Parameters that live (and later travel) together: embeddings, one group per block, final norm and
// head. All buffers are flat, so that optimiser and collectives see few large tensors.
struct ParameterGroup {
  std::string name;
  AdamWBuffers buffers;
};

class ParameterStore {
 public:
  // training: allocate gradients and optimiser moments (zeroed).
  ParameterStore(const ModelConfig& config, at::Device device, at::ScalarType compute_dtype, bool training,
                 uint64_t seed);

  const std::vector<Parameter>& all() const { return parameters_; }
  std::vector<ParameterGroup>& groups() { return groups_; }

  const Parameter* find(const std::string& name) const;  // nullptr when there is none
  const Parameter& at(const std::string& name) const;    // kInvalidArgument when there is none
  at::Tensor tensor(TensorKind kind, const Parameter& parameter) const;

  // Fills every parameter that no import has touched: matrices from N(0, 0.02) with a stream per
  // parameter, norms with the identity, biases with 0.
  void initialize_missing();
  void mark_imported(const std::string& name) { imported_[name] = true; }
  // Copies masters to the compute copies (a no-op in float32).
  void refresh_compute();
  void zero_grad();

 private:
  ModelConfig config_;
  bool training_;
  uint64_t seed_;
  std::vector<Parameter> parameters_;
  std::vector<ParameterGroup> groups_;
  std::map<std::string, size_t> index_;
  std::map<std::string, bool> imported_;
};

}  // namespace troupe
