// Work items of the gated delta rule: a sequence with all that shares its prefix, a head, columns of its
// state.
#include "kernels/gated_delta_rule.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "base/parallel.h"
#include "base/simulated.h"
#include "kernels/cpu/isa.h"
#include "kernels/device_ops.h"
#include "kernels/gated_delta_reference.h"

TROUPE_DECLARE_TABLES(DeltaInputKernels, delta_input_table)
TROUPE_DECLARE_TABLES(DeltaKernels, delta_table)

namespace troupe {

const kernels::DeltaInputKernels& kernels::delta_input_kernels() {
  return TROUPE_PICK_TABLE(delta_input_table);
}

const kernels::DeltaKernels& kernels::delta_kernels() {
  return TROUPE_PICK_TABLE(delta_table);
}

namespace ops {

namespace {

using kernels::DeltaScan;
using kernels::kDeltaColumns;

int dtype_of(const at::Tensor& x) {
  return x.scalar_type() == at::kBFloat16 ? kernels::kBFloat16 : kernels::kFloat32;
}

// A segment without prefix, and those that have it as theirs.
struct Family {
  const Segment* root;
  std::vector<const Segment*> branches;
};

std::vector<Family> families_of(const Segments& segments) {
  std::vector<Family> families;
  std::vector<size_t> place(segments.size());
  for (size_t i = 0; i < segments.size(); ++i) {
    const Segment& segment = segments[i];
    if (segment.prefix >= 0) {
      families[place[static_cast<size_t>(segment.prefix)]].branches.push_back(&segment);
      continue;
    }
    place[i] = families.size();
    families.push_back({&segment, {}});
  }
  return families;
}

// Where one value head, and columns [column, column + columns) of its state, lie in rows.
class HeadColumns {
 public:
  HeadColumns(const DeltaSpec& spec, int64_t head, int64_t column)
      : spec_(spec), head_(head), column_(column) {}

  int64_t columns() const { return std::min(kDeltaColumns, spec_.value_dim - column_); }
  int64_t q(int64_t row) const { return row * spec_.width() + spec_.q() + key_head() * spec_.key_dim; }
  int64_t k(int64_t row) const { return row * spec_.width() + spec_.k() + key_head() * spec_.key_dim; }
  int64_t v(int64_t row) const { return row * spec_.width() + spec_.v() + head_ * spec_.value_dim + column_; }
  int64_t gate(int64_t row) const { return row * spec_.value_heads + head_; }
  int64_t out(int64_t row) const { return (row * spec_.value_heads + head_) * spec_.value_dim + column_; }
  // In the states of a slot.
  int64_t state() const { return head_ * spec_.key_dim * spec_.value_dim + column_; }

  // Of `count` rows, without states and output.
  DeltaScan scan(const DeltaRows& rows, int64_t row, int64_t count) const {
    const float* x = rows.x.const_data_ptr<float>();
    DeltaScan scan{};
    scan.erases = spec_.erases;
    scan.rows = count;
    scan.key_dim = spec_.key_dim;
    scan.columns = columns();
    scan.q = x + q(row);
    scan.k = x + k(row);
    scan.v = x + v(row);
    scan.stride = spec_.width();
    scan.decay = rows.decay.const_data_ptr<float>() + gate(row);
    scan.beta = rows.beta.const_data_ptr<float>() + gate(row);
    scan.gate_stride = spec_.value_heads;
    scan.out_stride = spec_.value_heads * spec_.value_dim;
    return scan;
  }

 private:
  int64_t key_head() const { return head_ / (spec_.value_heads / spec_.key_heads); }

  const DeltaSpec& spec_;
  int64_t head_, column_;
};

void forward_family(const HeadColumns& head, const DeltaRows& rows, const Family& family,
                    const at::Tensor& out, float* state) {
  const auto run = [&](const Segment& segment, const float* before, float* after) {
    DeltaScan scan = head.scan(rows, segment.begin, segment.size());
    scan.before = before;
    scan.after = after;
    scan.before_stride = scan.after_stride = kDeltaColumns;
    scan.out = out.mutable_data_ptr<float>() + head.out(segment.begin);
    kernels::delta_kernels().scan(scan);
  };
  run(*family.root, nullptr, family.branches.empty() ? nullptr : state);
  for (const Segment* branch : family.branches) run(*branch, state, nullptr);
}

// Buffers of one thread: states of kDeltaColumns columns, gradients by them, and what the kernel needs.
struct Scratch {
  std::vector<float> state, d_state, by_branch, kernel;
};

void backward_family(const HeadColumns& head, const DeltaRows& rows, const Family& family,
                     const at::Tensor& dout, const DeltaRows& gradients, Scratch& scratch) {
  const auto run = [&](const Segment& segment, const float* before, float* d_state) {
    const int64_t row = segment.begin;
    float* const dx = gradients.x.mutable_data_ptr<float>();
    kernels::DeltaScanBackward args{};
    args.scan = head.scan(rows, row, segment.size());
    args.scan.before = before;
    args.scan.before_stride = kDeltaColumns;
    args.dout = dout.const_data_ptr<float>() + head.out(row);
    args.dq = dx + head.q(row);
    args.dk = dx + head.k(row);
    args.dv = dx + head.v(row);
    args.dlog_decay = gradients.decay.mutable_data_ptr<float>() + head.gate(row);
    args.dbeta = gradients.beta.mutable_data_ptr<float>() + head.gate(row);
    args.d_state = d_state;
    args.scratch = scratch.kernel.data();
    kernels::delta_kernels().scan_backward(args);
  };
  std::fill(scratch.d_state.begin(), scratch.d_state.end(), 0.0f);
  if (!family.branches.empty()) {
    DeltaScan scan = head.scan(rows, family.root->begin, family.root->size());
    scan.after = scratch.state.data();
    scan.after_stride = kDeltaColumns;
    kernels::delta_kernels().scan(scan);
  }
  for (const Segment* branch : family.branches) {
    std::fill(scratch.by_branch.begin(), scratch.by_branch.end(), 0.0f);
    run(*branch, scratch.state.data(), scratch.by_branch.data());
    for (size_t i = 0; i < scratch.d_state.size(); ++i) scratch.d_state[i] += scratch.by_branch[i];
  }
  run(*family.root, nullptr, scratch.d_state.data());
}

int64_t column_blocks(const DeltaSpec& spec) {
  return (spec.value_dim + kDeltaColumns - 1) / kDeltaColumns;
}

}  // namespace

DeltaRows DeltaRows::make(const DeltaSpec& spec, int64_t rows, const at::TensorOptions& options) {
  const auto type = options.dtype(options.dtype() == at::kDouble ? at::kDouble : at::kFloat);
  return {at::empty({rows, spec.width()}, type), at::empty({rows, spec.value_heads}, type),
          at::empty({rows, spec.value_heads}, type)};
}

void delta_inputs(const DeltaSpec& spec, const at::Tensor& x, const DeltaGates& gates, const DeltaRows& out) {
  if (simulated(x)) return simulate_temporaries(x, 4);
  if (!has_delta_kernels(x)) return reference::delta_inputs(spec, x, gates, out);
  kernels::delta_input_kernels().inputs[dtype_of(x)]({spec,
                                                      x.size(0),
                                                      {x.const_data_ptr(), x.stride(0)},
                                                      {gates.b.const_data_ptr(), gates.b.stride(0)},
                                                      {gates.a.const_data_ptr(), gates.a.stride(0)},
                                                      gates.a_log.const_data_ptr(),
                                                      gates.dt_bias.const_data_ptr(),
                                                      static_cast<float>(gates.beta_scale),
                                                      out.x.mutable_data_ptr<float>(),
                                                      out.decay.mutable_data_ptr<float>(),
                                                      out.beta.mutable_data_ptr<float>()});
}

void delta_inputs_backward(const DeltaSpec& spec, const at::Tensor& x, const DeltaGates& gates,
                           const DeltaRows& gradients, const at::Tensor& db, const at::Tensor& da,
                           const at::Tensor& da_log, const at::Tensor& ddt_bias) {
  if (simulated(x)) return simulate_temporaries(x, 4);
  if (!has_delta_kernels(x))
    return reference::delta_inputs_backward(spec, x, gates, gradients, db, da, da_log, ddt_bias);
  kernels::delta_input_kernels().inputs_backward[dtype_of(x)]({spec,
                                                               x.size(0),
                                                               {x.const_data_ptr(), x.stride(0)},
                                                               {gates.b.const_data_ptr(), gates.b.stride(0)},
                                                               {gates.a.const_data_ptr(), gates.a.stride(0)},
                                                               gates.a_log.const_data_ptr(),
                                                               gates.dt_bias.const_data_ptr(),
                                                               static_cast<float>(gates.beta_scale),
                                                               gradients.x.mutable_data_ptr<float>(),
                                                               gradients.decay.const_data_ptr<float>(),
                                                               gradients.beta.const_data_ptr<float>(),
                                                               {db.mutable_data_ptr(), db.stride(0)},
                                                               {da.mutable_data_ptr(), da.stride(0)},
                                                               da_log.mutable_data_ptr<float>(),
                                                               ddt_bias.mutable_data_ptr<float>()});
}

void gated_delta_forward(const DeltaSpec& spec, const DeltaRows& rows, const Segments& segments,
                         const at::Tensor& out) {
  if (const auto* device = kernels::device_ops_for(out))
    return device->gated_delta_forward(spec, rows, segments, out);
  if (simulated(out)) return;
  if (!has_delta_kernels(out)) return reference::gated_delta_forward(spec, rows, segments, out);
  const std::vector<Family> families = families_of(segments);
  const int64_t blocks = column_blocks(spec), heads = spec.value_heads;
  parallel_items(static_cast<int64_t>(families.size()) * heads * blocks, [&](int64_t item) {
    std::vector<float> state(static_cast<size_t>(spec.key_dim * kDeltaColumns));
    forward_family(HeadColumns(spec, item / blocks % heads, item % blocks * kDeltaColumns), rows,
                   families[static_cast<size_t>(item / blocks / heads)], out, state.data());
  });
  const int64_t real = real_rows(segments);
  if (real < out.size(0)) out.narrow(0, real, out.size(0) - real).zero_();
}

// A key head's value heads, and their columns, add to its gradients in turn.
void gated_delta_backward(const DeltaSpec& spec, const DeltaRows& rows, const Segments& segments,
                          const at::Tensor& dout, const DeltaRows& gradients) {
  if (const auto* device = kernels::device_ops_for(dout))
    return device->gated_delta_backward(spec, rows, segments, dout, gradients);
  const std::vector<Family> families = families_of(segments);
  int64_t longest = 0;
  for (const Segment& segment : segments) longest = std::max(longest, segment.size());
  const int64_t items = static_cast<int64_t>(families.size()) * spec.key_heads;
  const int64_t size = spec.key_dim * kDeltaColumns, states = kernels::delta_scratch(longest, spec.key_dim);
  if (simulated(dout))
    return simulate_threads(items, [&] { at::empty({states + 3 * size}, dout.options()); });
  if (!has_delta_kernels(dout)) return reference::gated_delta_backward(spec, rows, segments, dout, gradients);
  for (const at::Tensor& gradient : {gradients.x, gradients.decay, gradients.beta}) gradient.zero_();
  parallel_items(items, [&](int64_t item) {
    Scratch scratch;
    for (std::vector<float>* state : {&scratch.state, &scratch.d_state, &scratch.by_branch})
      state->resize(static_cast<size_t>(size));
    scratch.kernel.resize(static_cast<size_t>(states));
    const int64_t groups = spec.value_heads / spec.key_heads, first = item % spec.key_heads * groups;
    for (int64_t head = first; head < first + groups; ++head) {
      for (int64_t column = 0; column < spec.value_dim; column += kDeltaColumns) {
        backward_family(HeadColumns(spec, head, column), rows,
                        families[static_cast<size_t>(item / spec.key_heads)], dout, gradients, scratch);
      }
    }
  });
}

void gated_delta_step(const DeltaSpec& spec, const DeltaRows& rows, const std::vector<StateRun>& runs,
                      const at::Tensor& states, const at::Tensor& out) {
  if (simulated(out)) return;
  if (const auto* device = kernels::device_ops_for(out))
    return device->gated_delta_step(spec, rows, runs, states, out);
  if (!has_delta_kernels(out)) return reference::gated_delta_step(spec, rows, runs, states, out);
  const int64_t blocks = column_blocks(spec), heads = spec.value_heads;
  auto* const all = states.mutable_data_ptr<float>();
  parallel_items(static_cast<int64_t>(runs.size()) * heads * blocks, [&](int64_t item) {
    const StateRun& run = runs[static_cast<size_t>(item / blocks / heads)];
    const HeadColumns head(spec, item / blocks % heads, item % blocks * kDeltaColumns);
    DeltaScan scan = head.scan(rows, run.row, run.count);
    scan.after = all + run.slot * states.stride(0) + head.state();
    scan.before = run.begins ? nullptr : scan.after;
    scan.before_stride = scan.after_stride = spec.value_dim;
    scan.out = out.mutable_data_ptr<float>() + head.out(run.row);
    kernels::delta_kernels().scan(scan);
  });
}

}  // namespace ops

}  // namespace troupe
