// Allocation and initial values of the flat buffers, and adapters added to them.
#include "parameters/parameter_store.h"

#include <ATen/CPUGeneratorImpl.h>

#include "base/error.h"
#include "base/parallel.h"
#include "base/simulated.h"

namespace troupe {

namespace {

// Every parameter starts on a cache-line boundary of its flat buffer.
constexpr int64_t kAlignment = 16;
constexpr double kInitStd = 0.02;

}  // namespace

ParameterStore::ParameterStore(ParameterLayout layout, at::Device device, at::ScalarType compute_dtype,
                               bool training, uint64_t seed, ShardSlice slice, const StateKinds& offload,
                               ShardSlice expert_slice, at::ScalarType master_dtype, bool muon)
    : training_(training), muon_(muon), seed_(seed), slice_(slice), expert_slice_(expert_slice) {
  allocate(device, compute_dtype, master_dtype, take(std::move(layout)), offload);
}

ParameterStore::ParameterStore(ParameterLayout layout, at::Device device, at::ScalarType compute_dtype) {
  const std::vector<int64_t> sizes = take(std::move(layout));
  for (size_t g = 0; g < groups_.size(); ++g) {
    ParameterGroup& group = groups_[g];
    group.whole_size = round_up(sizes[g], kAlignment);
    group.full_compute = FlatBuffer(group.whole_size, group.buffer ? at::kFloat : compute_dtype, device);
  }
  for (Parameter& parameter : parameters_)
    parameter.compute = view(parameter, groups_[parameter.group].full_compute.tensor());
}

std::vector<int64_t> ParameterStore::take(ParameterLayout layout) {
  family_ = std::move(layout.family);
  adapters_ = std::move(layout.adapters);
  for (GroupSpec& spec : layout.groups)
    groups_.push_back({std::move(spec), at::kFloat, {}, {}, {}, {}, {}, {}, {}, 0});
  std::vector<int64_t> sizes(groups_.size(), 0);
  for (ParameterSpec& spec : layout.parameters) {
    const int64_t start = sizes[spec.group];
    sizes[spec.group] = round_up(start + spec.info.size(), kAlignment);
    index_[spec.info.name] = parameters_.size();
    parameters_.push_back({std::move(spec.info),
                           spec.group,
                           spec.initial,
                           std::move(spec.placement),
                           std::move(spec.matrices),
                           start,
                           {},
                           {},
                           {}});
  }
  return sizes;
}

void ParameterStore::allocate(at::Device device, at::ScalarType compute_dtype, at::ScalarType master_dtype,
                              const std::vector<int64_t>& sizes, const StateKinds& offload) {
  for (size_t g = 0; g < groups_.size(); ++g) {
    const int64_t count = slice(g).count, whole = round_up(sizes[g], kAlignment * count);
    const int64_t own = whole / count;
    ParameterGroup& group = groups_[g];
    const bool trained = training_ && group.trainable && !group.buffer;
    group.whole_size = whole;
    group.dtype = group.buffer ? at::kFloat : trained ? master_dtype : compute_dtype;
    if (!group.here) continue;
    // An engine that has not been updated yet has neither gradients nor moments in its memory.
    const auto state = [&](at::ScalarType dtype, bool lazily, bool on_host) {
      return StateBuffer(own, dtype, device, lazily, on_host);
    };
    const auto second_moments = [&] {
      int64_t held = own;
      if (muon_) {
        held = 0;
        for (const SliceRun& run : elements(g)) held += run.count;
      }
      return StateBuffer(held, group.dtype, device, true, offload.moments);
    };
    group.param = state(group.dtype, false, offload.parameters);
    if (trained) {
      if (compute_dtype != group.dtype) group.compute = state(compute_dtype, false, offload.parameters);
      group.grad = state(at::kFloat, true, offload.gradients);
      group.exp_avg = state(group.dtype, true, offload.moments);
      group.exp_avg_sq = second_moments();
    }
    if (count > 1) {
      group.full_compute = FlatBuffer(whole, compute_dtype, device);
      if (trained) group.full_grad = FlatBuffer(whole, at::kFloat, device);
    }
  }
  for (Parameter& parameter : parameters_) {
    const ParameterGroup& group = groups_[parameter.group];
    if (!group.here) continue;
    if (slice(parameter.group).count > 1) {
      parameter.compute = view(parameter, group.full_compute.tensor());
      parameter.grad = view(parameter, group.full_grad.tensor());
    } else {
      parameter.master = view(parameter, group.param.tensor());
      parameter.grad = view(parameter, group.grad.tensor());
      parameter.compute =
          group.compute.defined() ? view(parameter, group.compute.tensor()) : parameter.master;
    }
  }
}

const Parameter* ParameterStore::find(const std::string& name) const {
  const auto found = index_.find(name);
  return found == index_.end() ? nullptr : &parameters_[found->second];
}

const Parameter& ParameterStore::at(const std::string& name) const {
  const Parameter* parameter = find(name);
  require(parameter != nullptr, ErrorCode::kInvalidArgument, "[model] a ", family_,
          " of this shape has no parameter '", name, "'");
  return *parameter;
}

const std::vector<AdapterParameters>& ParameterStore::adapters(const std::string& name) const {
  static const std::vector<AdapterParameters> none;
  const auto found = adapters_.find(name);
  return found == adapters_.end() ? none : found->second;
}

std::vector<size_t> ParameterStore::groups_of_layer(int64_t layer) const {
  std::vector<size_t> found;
  for (size_t g = 0; g < groups_.size(); ++g) {
    if (groups_[g].layer == layer && groups_[g].here) found.push_back(g);
  }
  return found;
}

std::optional<size_t> ParameterStore::adapters_of(size_t group) const {
  for (size_t g = 0; g < groups_.size(); ++g) {
    if (groups_[g].adapts == group) return g;
  }
  return std::nullopt;
}

bool ParameterStore::exports(TensorKind kind, size_t group) const {
  const ParameterGroup& held = groups_[group];
  if (!held.here || held.copy) return false;
  if (kind == TensorKind::kMerged) return !held.adapts;
  return held.trainable && (kind == TensorKind::kParam || !held.buffer);
}

void ParameterStore::merge(size_t group, const at::Tensor& flat, const at::Tensor& adapters) const {
  for (const Parameter& parameter : parameters_) {
    if (parameter.group != group) continue;
    const at::Tensor weight = view(parameter, flat);
    for (const AdapterParameters& adapter : this->adapters(parameter.info.name)) {
      const at::Tensor a = view(at(adapter.a), adapters);
      const at::Tensor b = view(at(adapter.b), adapters);
      weight.narrow(0, adapter.row, b.size(0)).add_(at::mm(b, a), adapter.scale);
    }
  }
}

void ParameterStore::merge(size_t group, int64_t begin, const at::Tensor& part,
                           const at::Tensor& adapters) const {
  for (const Parameter& parameter : parameters_) {
    if (parameter.group != group) continue;
    for (const AdapterParameters& adapter : this->adapters(parameter.info.name)) {
      const at::Tensor a = view(at(adapter.a), adapters);
      const at::Tensor b = view(at(adapter.b), adapters);
      const int64_t width = a.size(1);
      const int64_t first = parameter.start + adapter.row * width;
      const int64_t from = std::max(begin, first);
      const int64_t to = std::min(begin + part.numel(), first + b.size(0) * width);
      if (from >= to) continue;
      // All rows are added to, as where they all are here: a sum of other rows could round otherwise.
      const at::Tensor rows = at::zeros({b.size(0), width}, part.options());
      const at::Tensor own = part.narrow(0, from - begin, to - from);
      const at::Tensor within = rows.view({-1}).narrow(0, from - first, to - from);
      within.copy_(own);
      rows.add_(at::mm(b, a), adapter.scale);
      own.copy_(within);
    }
  }
}

const at::Tensor& ParameterStore::owned(TensorKind kind, size_t group) const {
  const ParameterGroup& held = groups_[group];
  require(held.here, ErrorCode::kInternal, "[model] the parameters of ", held.name, " are on another rank");
  if (kind == TensorKind::kParam) return held.param.kept();
  require(training_, ErrorCode::kInvalidArgument,
          "[model] an inference-only engine (optim: null) has no gradients ", "or optimiser state");
  require(held.trained(), ErrorCode::kInvalidArgument, "[model] the parameters of ", held.name,
          held.buffer ? " are a buffer, which is not trained" : " are frozen: only adapters are trained");
  require(kind != TensorKind::kMerged, ErrorCode::kInvalidArgument,
          "[model] merged parameters can be exported only");
  if (kind == TensorKind::kGrad) return held.grad.kept();
  return kind == TensorKind::kExpAvg ? held.exp_avg.kept() : held.exp_avg_sq.kept();
}

at::Tensor ParameterStore::view(const Parameter& parameter, const at::Tensor& flat) {
  if (!flat.defined()) return flat;
  return flat.narrow(0, parameter.start, parameter.info.size()).view(parameter.info.shape);
}

void ParameterStore::initialize_missing() {
  for (size_t p = 0; p < parameters_.size(); ++p) {
    const Parameter& parameter = parameters_[p];
    if (!groups_[parameter.group].here) continue;
    bool& imported = imported_[parameter.info.name];
    if (imported) continue;
    imported = true;
    if (parameter.initial == InitialValue::kZero) continue;  // as allocated
    // Each parameter has a stream of its own, so what lies elsewhere need not be drawn.
    const RowRange here = owned_rows(TensorKind::kParam, parameter, 0, parameter.placement.shape[0]);
    if (here.begin == here.end) continue;
    const at::Device device = owned(TensorKind::kParam, parameter.group).device();
    if (device.is_meta()) {
      at::empty(parameter.placement.shape,
                at::device(on_cpu_threads(device) ? device : at::kCPU).dtype(at::kFloat));
      continue;
    }
    at::Tensor values = at::ones(parameter.placement.shape, at::kFloat);
    auto generator = at::make_generator<at::CPUGeneratorImpl>(seed_ * 0x9E3779B97F4A7C15ULL + p);
    if (parameter.initial == InitialValue::kNormal) {
      values.normal_(0, kInitStd, generator);
    } else if (parameter.initial == InitialValue::kUniform) {
      const double bound = 1 / std::sqrt(static_cast<double>(parameter.placement.shape[1]));
      values.uniform_(-bound, bound, generator);
    }
    assign(TensorKind::kParam, parameter, 0, values);
  }
  refresh_compute();
}

void ParameterStore::refresh_compute() {
  for (size_t group = 0; group < groups_.size(); ++group) refresh_compute(group);
}

void ParameterStore::refresh_compute(size_t group) {
  const ParameterGroup& held = groups_[group];
  if (held.compute.defined()) held.compute.kept().copy_(held.param.kept());
}

void ParameterStore::zero_grad() {
  for (ParameterGroup& group : groups_) group.grad.clear();
}

StateBytes ParameterStore::bytes() const {
  StateBytes bytes;
  const auto count = [&](const StateBuffer& buffer, int64_t HeldBytes::*part) {
    HeldBytes& where = buffer.on_host() ? bytes.host : bytes;
    where.*part += buffer.bytes();
  };
  for (const ParameterGroup& group : groups_) {
    count(group.param, &HeldBytes::parameters);
    count(group.compute, &HeldBytes::parameters);
    count(group.grad, &HeldBytes::gradients);
    count(group.exp_avg, &HeldBytes::moments);
    count(group.exp_avg_sq, &HeldBytes::moments);
  }
  return bytes;
}

void ParameterStore::keep(const StateKinds& kinds, bool on_host) {
  require(training_ || !(kinds.gradients || kinds.moments), ErrorCode::kInvalidArgument,
          "[model] an inference-only engine (optim: null) has no gradients or optimiser state to move");
  for (ParameterGroup& group : groups_) {
    const std::array<bool, 5> moved = {kinds.parameters, kinds.parameters, kinds.gradients, kinds.moments,
                                       kinds.moments};
    const std::array<StateBuffer*, 5> state = group.state();
    for (size_t i = 0; i < state.size(); ++i) {
      if (!moved[i]) continue;
      if (on_host) {
        state[i]->keep_on_host();
      } else {
        state[i]->keep_on_device();
      }
    }
  }
}

}  // namespace troupe
