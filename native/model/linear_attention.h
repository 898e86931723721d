// The token mixer of a layer without attention, whose cost grows with rows, not with their square.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "kernels/attention.h"
#include "model/linear_states.h"
#include "model/model_config.h"
#include "parameters/parameter_store.h"

namespace troupe {

// From rows of an input projection to what the output projection takes: the only part of a layer that looks
// across rows. What each kind computes: state_scan.h, short_convolution.h.
//
// Legend: T rows; P columns of the input projection, Hv Dv of the result (LinearAttentionConfig).
class LinearAttention {
 public:
  virtual ~LinearAttention() = default;
  LinearAttention& operator=(const LinearAttention&) = delete;

  int64_t columns() const { return config_.columns(); }
  const LinearAttentionConfig& config() const { return config_; }
  // With the heads of one of `ranks` ranks, which have as many each: of their columns (column_blocks()) it
  // makes those of the result, and finds the gradients of what is theirs.
  virtual std::unique_ptr<LinearAttention> own_heads(int64_t rank, int64_t ranks) const = 0;

  // mixed [T, P] -> [T, Hv Dv]; rows behind the last segment give zeros. kept: where it is given, set to what
  // backward() takes, [T, Hv Dv].
  virtual at::Tensor forward(const at::Tensor& mixed, const ops::Segments& segments,
                             at::Tensor* kept) const = 0;
  // dmixed [T, P] from d_out [T, Hv Dv]; adds to the gradients of what is trained.
  virtual at::Tensor backward(const at::Tensor& mixed, const at::Tensor& kept, const at::Tensor& d_out,
                              const ops::Segments& segments) const = 0;
  // The same of rows that go on from kept states, bit for bit (on a CPU): mixed [n, P] with adjacent columns,
  // out [n, Hv Dv], of which the runs' rows are written. Replaces the states of the runs. snapshots: by run
  // and count.
  virtual void step(const at::Tensor& mixed, const std::vector<ops::StateRun>& runs,
                    const std::vector<StateSnapshot>& snapshots, const LinearStates& states,
                    const at::Tensor& out) const = 0;

 protected:
  // config: with the heads of this rank.
  explicit LinearAttention(const LinearAttentionConfig& config) : config_(config) {}
  LinearAttention(const LinearAttention&) = default;

  LinearAttentionConfig config_;
};

// Under layer `prefix` ("layers.0."), whose parameters are `prefix` + linear_attention_name() + ".*".
std::unique_ptr<LinearAttention> linear_attention(const ParameterStore& store, const ModelConfig& config,
                                                  const std::string& prefix);

}  // namespace troupe
