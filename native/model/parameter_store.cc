#include "model/parameter_store.h"

#include <ATen/CPUGeneratorImpl.h>

#include "core/error.h"
#include "core/parallel.h"
#include "core/zero_pages.h"
#include "model/parameters.h"

namespace troupe {

namespace {

// Every parameter starts on a cache-line boundary of its flat buffer.
constexpr int64_t kAlignment = 16;
constexpr double kInitStd = 0.02;

int64_t element_count(const std::vector<int64_t>& shape) {
  int64_t count = 1;
  for (const int64_t extent : shape) count *= extent;
  return count;
}

// "layers.3.attn.out.weight" -> "layers.3"; embeddings -> "embed"; the rest -> "head".
std::string group_of(const std::string& name) {
  if (name.rfind("layers.", 0) == 0) return name.substr(0, name.find('.', 7));
  return name.find("embed") != std::string::npos ? "embed" : "head";
}

}  // namespace

ParameterStore::ParameterStore(const ModelConfig& config, at::Device device, at::ScalarType compute_dtype,
                               bool training, uint64_t seed)
    : config_(config), training_(training), seed_(seed) {
  std::vector<int64_t> starts;
  std::vector<int64_t> sizes;
  for (ParameterInfo& info : parameter_layout(config)) {
    const std::string group = group_of(info.name);
    if (groups_.empty() || groups_.back().name != group) {
      groups_.push_back({group, {}});
      sizes.push_back(0);
    }
    starts.push_back(sizes.back());
    sizes.back() = round_up(sizes.back() + element_count(info.shape), kAlignment);
    index_[info.name] = parameters_.size();
    parameters_.push_back({std::move(info), groups_.size() - 1, {}, {}, {}});
  }

  const auto fp32 = at::TensorOptions().dtype(at::kFloat).device(device);
  for (size_t g = 0; g < groups_.size(); ++g) {
    AdamWBuffers& buffers = groups_[g].buffers;
    buffers.param = at::zeros({sizes[g]}, fp32);
    if (compute_dtype != at::kFloat) buffers.compute = at::zeros({sizes[g]}, fp32.dtype(compute_dtype));
    if (training) {
      buffers.grad = zero_pages(sizes[g], device);
      buffers.exp_avg = zero_pages(sizes[g], device);
      buffers.exp_avg_sq = zero_pages(sizes[g], device);
    }
  }
  for (size_t p = 0; p < parameters_.size(); ++p) {
    Parameter& parameter = parameters_[p];
    const AdamWBuffers& buffers = groups_[parameter.group].buffers;
    const int64_t count = element_count(parameter.info.shape);
    const auto view = [&](const at::Tensor& flat) {
      return flat.defined() ? flat.narrow(0, starts[p], count).view(parameter.info.shape) : at::Tensor();
    };
    parameter.master = view(buffers.param);
    parameter.grad = view(buffers.grad);
    parameter.compute = buffers.compute.defined() ? view(buffers.compute) : parameter.master;
  }
}

const Parameter* ParameterStore::find(const std::string& name) const {
  const auto found = index_.find(name);
  return found == index_.end() ? nullptr : &parameters_[found->second];
}

const Parameter& ParameterStore::at(const std::string& name) const {
  const Parameter* parameter = find(name);
  require(parameter != nullptr, ErrorCode::kInvalidArgument, "[model] a ", config_.family,
          " of this shape has no parameter '", name, "'");
  return *parameter;
}

at::Tensor ParameterStore::tensor(TensorKind kind, const Parameter& parameter) const {
  if (kind == TensorKind::kParam) return parameter.master;
  require(training_, ErrorCode::kInvalidArgument,
          "[model] an inference-only engine (optim: null) has no gradients ", "or optimiser state");
  if (kind == TensorKind::kGrad) return parameter.grad;
  const AdamWBuffers& buffers = groups_[parameter.group].buffers;
  const at::Tensor& flat = kind == TensorKind::kExpAvg ? buffers.exp_avg : buffers.exp_avg_sq;
  const int64_t start = parameter.master.storage_offset() - buffers.param.storage_offset();
  return flat.narrow(0, start, parameter.master.numel()).view(parameter.info.shape);
}

void ParameterStore::initialize_missing() {
  for (size_t p = 0; p < parameters_.size(); ++p) {
    const Parameter& parameter = parameters_[p];
    const std::string& name = parameter.info.name;
    if (imported_[name]) continue;
    imported_[name] = true;
    if (parameter.info.shape.size() >= 2) {
      auto generator = at::make_generator<at::CPUGeneratorImpl>(seed_ * 0x9E3779B97F4A7C15ULL + p);
      at::Tensor values = at::empty(parameter.info.shape, at::kFloat);
      parameter.master.copy_(values.normal_(0, kInitStd, generator));
    } else if (name.find("norm.weight") != std::string::npos) {
      parameter.master.fill_(config_.norm_unit_offset ? 0.0 : 1.0);
    }
  }
  refresh_compute();
}

void ParameterStore::refresh_compute() {
  for (ParameterGroup& group : groups_) {
    if (group.buffers.compute.defined()) group.buffers.compute.copy_(group.buffers.param);
  }
}

void ParameterStore::zero_grad() {
  for (ParameterGroup& group : groups_) {
    if (group.buffers.grad.defined()) group.buffers.grad.zero_();
  }
}

}  // namespace troupe
