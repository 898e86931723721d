// Allocation, initial values and slices of the flat buffers.
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

int64_t element_count(const std::vector<int64_t>& shape) {
  int64_t count = 1;
  for (const int64_t extent : shape) count *= extent;
  return count;
}

}  // namespace

ParameterStore::ParameterStore(ParameterLayout layout, at::Device device, at::ScalarType compute_dtype,
                               bool training, uint64_t seed, ShardSlice slice, const StateKinds& offload,
                               ShardSlice expert_slice, at::ScalarType master_dtype)
    : training_(training), seed_(seed), slice_(slice), expert_slice_(expert_slice) {
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
    sizes[spec.group] = round_up(start + element_count(spec.info.shape), kAlignment);
    index_[spec.info.name] = parameters_.size();
    parameters_.push_back(
        {std::move(spec.info), spec.group, spec.initial, std::move(spec.placement), start, {}, {}, {}});
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
    group.param = state(group.dtype, false, offload.parameters);
    if (trained) {
      if (compute_dtype != group.dtype) group.compute = state(compute_dtype, false, offload.parameters);
      group.grad = state(at::kFloat, true, offload.gradients);
      group.exp_avg = state(group.dtype, true, offload.moments);
      group.exp_avg_sq = state(group.dtype, true, offload.moments);
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
  const std::vector<int64_t>& shape = parameter.info.shape;
  return flat.narrow(0, parameter.start, element_count(shape)).view(shape);
}

template <typename Predicate>
std::vector<SliceRun> ParameterStore::runs_of(size_t group, Predicate&& predicate) const {
  const int64_t own = groups_[group].param.tensor().numel(), own_begin = slice(group).index * own;
  std::vector<SliceRun> runs;
  for (const Parameter& parameter : parameters_) {
    if (parameter.group != group) continue;
    parameter.placement.for_each_run([&](int64_t local, int64_t, int64_t count, const Piece& piece) {
      if (!predicate(piece)) return;
      const int64_t from = std::max(parameter.start + local, own_begin);
      const int64_t to = std::min(parameter.start + local + count, own_begin + own);
      if (from < to) runs.push_back({from - own_begin, to - from, piece.copies});
    });
  }
  return runs;
}

std::vector<SliceRun> ParameterStore::summed(size_t group) const {
  return runs_of(group, [](const Piece& piece) { return piece.summed; });
}

std::vector<SliceRun> ParameterStore::counted(size_t group) const {
  std::vector<SliceRun> runs;
  int64_t begin = 0;
  for (const SliceRun& other : runs_of(group, [](const Piece& piece) { return piece.copy > 0; })) {
    if (begin < other.begin) runs.push_back({begin, other.begin - begin});
    begin = other.begin + other.count;
  }
  const int64_t end = groups_[group].param.tensor().numel();
  if (begin < end) runs.push_back({begin, end - begin});
  return runs;
}

RowRange ParameterStore::owned_rows(TensorKind kind, const Parameter& parameter, int64_t row,
                                    int64_t rows) const {
  if (!groups_[parameter.group].here) return {row, row};
  const int64_t own = owned(kind, parameter.group).numel();
  const int64_t row_size = element_count(parameter.info.shape) / parameter.info.shape[0];
  const int64_t from =
      slice(parameter.group).index * own - parameter.start;  // of what is held, in what is placed here
  const int64_t first = std::max<int64_t>(0, from) / row_size;
  const int64_t last = (std::max<int64_t>(0, from + own) + row_size - 1) / row_size;
  const Placement& placement = parameter.placement;
  if (placement.dimension == 1) {  // its rows are whole ones, less wide
    const int64_t begin = std::max(row, first);
    return {begin, std::max(begin, std::min(row + rows, last))};
  }
  RowRange range{row + rows, row};
  for (const Piece& piece : placement.pieces) {
    const int64_t begin = std::max(row, piece.whole + std::max<int64_t>(0, first - piece.local));
    const int64_t end = std::min(row + rows, piece.whole + std::min(piece.count, last - piece.local));
    if (begin >= end) continue;
    range = {std::min(range.begin, begin), std::max(range.end, end)};
  }
  return range.begin < range.end ? range : RowRange{row, row};
}

void ParameterStore::assign(TensorKind kind, const Parameter& parameter, int64_t row,
                            const at::Tensor& values, int64_t column) {
  if (!groups_[parameter.group].here) return;
  const at::Tensor& own = owned(kind, parameter.group);
  const int64_t own_begin = slice(parameter.group).index * own.numel();
  const int64_t row_size = element_count(parameter.info.shape) / parameter.info.shape[0];
  const at::Tensor source = values.contiguous().view({-1});
  if (simulated(own)) return;
  const auto put = [&](int64_t begin, int64_t done, int64_t count) {
    begin += parameter.start;
    const int64_t from = std::max(begin, own_begin);
    const int64_t to = std::min(begin + count, own_begin + own.numel());
    if (from < to)
      own.narrow(0, from - own_begin, to - from).copy_(source.narrow(0, done + from - begin, to - from));
  };
  const int64_t rows = values.size(0);
  const int64_t width = source.numel() / rows;
  const Placement& placement = parameter.placement;
  for (const Piece& piece : placement.pieces) {
    const bool by_rows = placement.dimension == 0;
    // What the piece has of the values: along its dimension, in the whole.
    const int64_t from = std::max(by_rows ? row : column, piece.whole);
    const int64_t to = std::min(by_rows ? row + rows : column + width, piece.whole + piece.count);
    if (from >= to) continue;
    const int64_t local = piece.local + from - piece.whole;
    if (!by_rows) {
      for (int64_t r = 0; r < rows; ++r) {
        put((row + r) * row_size + local, r * width + from - column, to - from);
      }
    } else if (width == row_size) {  // whole rows lie together
      put(local * row_size, (from - row) * width, (to - from) * width);
    } else {
      for (int64_t r = from; r < to; ++r) {
        put((local + r - from) * row_size + column, (r - row) * width, width);
      }
    }
  }
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
