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
                               bool training, uint64_t seed, ShardSlice slice)
    : config_(config), training_(training), seed_(seed), slice_(slice) {
  std::vector<int64_t> sizes;
  for (ParameterInfo& info : parameter_layout(config)) {
    const std::string group = group_of(info.name);
    if (groups_.empty() || groups_.back().name != group) {
      groups_.push_back({group, {}, {}, {}});
      sizes.push_back(0);
    }
    const int64_t start = sizes.back();
    sizes.back() = round_up(start + element_count(info.shape), kAlignment);
    index_[info.name] = parameters_.size();
    parameters_.push_back({std::move(info), groups_.size() - 1, start, {}, {}, {}});
  }

  const auto fp32 = at::TensorOptions().dtype(at::kFloat).device(device);
  const bool sharded = slice.count > 1;
  for (size_t g = 0; g < groups_.size(); ++g) {
    const int64_t whole = round_up(sizes[g], kAlignment * slice.count);
    const int64_t own = whole / slice.count;
    AdamWBuffers& buffers = groups_[g].buffers;
    buffers.param = at::zeros({own}, fp32);
    if (compute_dtype != at::kFloat) buffers.compute = at::zeros({own}, fp32.dtype(compute_dtype));
    if (training) {
      buffers.grad = zero_pages(own, device);
      buffers.exp_avg = zero_pages(own, device);
      buffers.exp_avg_sq = zero_pages(own, device);
    }
    if (sharded) {
      groups_[g].full_compute = FlatBuffer(whole, compute_dtype, device);
      if (training) groups_[g].full_grad = FlatBuffer(whole, at::kFloat, device);
    }
  }
  for (Parameter& parameter : parameters_) {
    const ParameterGroup& group = groups_[parameter.group];
    if (sharded) {
      parameter.compute = view(parameter, group.full_compute.tensor());
      parameter.grad = view(parameter, group.full_grad.tensor());
    } else {
      parameter.master = view(parameter, group.buffers.param);
      parameter.grad = view(parameter, group.buffers.grad);
      parameter.compute =
          group.buffers.compute.defined() ? view(parameter, group.buffers.compute) : parameter.master;
    }
  }
  for (ParameterGroup& group : groups_) {
    group.full_compute.release();
    group.full_grad.release();
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

const at::Tensor& ParameterStore::owned(TensorKind kind, size_t group) const {
  const AdamWBuffers& buffers = groups_[group].buffers;
  if (kind == TensorKind::kParam) return buffers.param;
  require(training_, ErrorCode::kInvalidArgument,
          "[model] an inference-only engine (optim: null) has no gradients ", "or optimiser state");
  if (kind == TensorKind::kGrad) return buffers.grad;
  return kind == TensorKind::kExpAvg ? buffers.exp_avg : buffers.exp_avg_sq;
}

at::Tensor ParameterStore::view(const Parameter& parameter, const at::Tensor& flat) {
  if (!flat.defined()) return flat;
  const std::vector<int64_t>& shape = parameter.info.shape;
  return flat.narrow(0, parameter.start, element_count(shape)).view(shape);
}

RowRange ParameterStore::owned_rows(TensorKind kind, const Parameter& parameter, int64_t row,
                                    int64_t rows) const {
  const int64_t own = owned(kind, parameter.group).numel();
  const int64_t row_size = element_count(parameter.info.shape) / parameter.info.shape[0];
  const int64_t from = slice_.index * own - parameter.start;  // of what is held, in the parameter
  const int64_t to = from + own;
  const int64_t begin = std::max(row, std::max<int64_t>(0, from) / row_size);
  const int64_t end = std::min(row + rows, (std::max<int64_t>(0, to) + row_size - 1) / row_size);
  return {begin, std::max(begin, end)};
}

void ParameterStore::assign(TensorKind kind, const Parameter& parameter, int64_t row,
                            const at::Tensor& values) {
  const at::Tensor& own = owned(kind, parameter.group);
  const int64_t own_begin = slice_.index * own.numel();
  const int64_t row_size = element_count(parameter.info.shape) / parameter.info.shape[0];
  const int64_t begin = parameter.start + row * row_size;
  const int64_t from = std::max(begin, own_begin);
  const int64_t to = std::min(begin + values.numel(), own_begin + own.numel());
  if (from >= to) return;
  own.narrow(0, from - own_begin, to - from)
      .copy_(values.contiguous().view({-1}).narrow(0, from - begin, to - from));
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
      assign(TensorKind::kParam, parameter, 0, values.normal_(0, kInitStd, generator));
    } else if (name.find("norm.weight") != std::string::npos) {
      const double identity = config_.norm_unit_offset ? 0 : 1;
      assign(TensorKind::kParam, parameter, 0, at::full(parameter.info.shape, identity, at::kFloat));
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

StateBytes ParameterStore::bytes() const {
  StateBytes bytes;
  const auto size = [](const at::Tensor& flat) {
    return flat.defined() ? static_cast<int64_t>(flat.nbytes()) : 0;
  };
  for (const ParameterGroup& group : groups_) {
    const AdamWBuffers& buffers = group.buffers;
    bytes.parameters += size(buffers.param) + size(buffers.compute);
    bytes.gradients += size(buffers.grad);
    bytes.moments += size(buffers.exp_avg) + size(buffers.exp_avg_sq);
  }
  return bytes;
}

}  // namespace troupe
