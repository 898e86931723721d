// Which rows the blocks of the gated delta rule scan, and the states between them.
#include "kernels/cuda/gated_delta_rule.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "base/upload.h"

namespace troupe::kernels::cuda {

namespace {

using ops::DeltaRows;
using ops::DeltaSpec;
using ops::Segments;

// Segments without prefix that others have, by number among these; the others that have one, those of one
// prefix side by side.
struct Prefixes {
  std::vector<int64_t> number, branches;  // of each segment, -1: none has it; segments with a prefix
  std::vector<int64_t> first;             // of the branches of each prefix, and behind the last
  int64_t count() const { return static_cast<int64_t>(first.size()) - 1; }

  explicit Prefixes(const Segments& segments) : number(segments.size(), -1) {
    for (const ops::Segment& segment : segments) {
      if (segment.prefix < 0 || number[static_cast<size_t>(segment.prefix)] >= 0) continue;
      first.push_back(static_cast<int64_t>(branches.size()));
      number[static_cast<size_t>(segment.prefix)] = static_cast<int64_t>(first.size()) - 1;
      for (size_t other = 0; other < segments.size(); ++other)
        if (segments[other].prefix == segment.prefix) branches.push_back(static_cast<int64_t>(other));
    }
    first.push_back(static_cast<int64_t>(branches.size()));
  }
};

class Items {
 public:
  // backward: with scratch for it.
  Items(const DeltaSpec& spec, bool backward) : spec_(spec), backward_(backward) {}

  void add(int64_t row, int64_t count, int64_t before, int64_t after) {
    items_.push_back({row, count, before, after, scratch_});
    if (backward_) scratch_ += spec_.key_heads * delta_scratch(count, spec_.key_dim);
  }
  bool empty() const { return items_.empty(); }
  int64_t scratch() const { return scratch_; }
  ScanLaunch launch(const DeltaRows& rows, const at::Tensor& states, const at::Tensor& out) {
    const auto count = static_cast<int64_t>(items_.size());
    const at::Tensor all = at::empty({count, 5}, at::kLong);
    std::copy(items_.begin(), items_.end(), static_cast<ScanItem*>(all.mutable_data_ptr()));
    on_device_ = upload(all, rows.x.device());
    return {spec_,
            static_cast<const ScanItem*>(on_device_.const_data_ptr()),
            count,
            rows.x.const_data_ptr<float>(),
            rows.decay.const_data_ptr<float>(),
            rows.beta.const_data_ptr<float>(),
            states.defined() ? states.mutable_data_ptr<float>() : nullptr,
            states.defined() ? states.stride(0) : 0,
            out.defined() ? out.mutable_data_ptr<float>() : nullptr};
  }

 private:
  DeltaSpec spec_;
  bool backward_;
  std::vector<ScanItem> items_;
  int64_t scratch_ = 0;
  at::Tensor on_device_;
};

at::Tensor states_of(const DeltaSpec& spec, int64_t count, const at::TensorOptions& options) {
  return at::empty({count, spec.value_heads, spec.key_dim, spec.value_dim}, options);
}

}  // namespace

void gated_delta_forward(const DeltaSpec& spec, const DeltaRows& rows, const Segments& segments,
                         const at::Tensor& out) {
  const Prefixes prefixes(segments);
  const at::Tensor states = states_of(spec, prefixes.count(), out.options());
  Items roots(spec, false), branches(spec, false);
  for (size_t i = 0; i < segments.size(); ++i) {
    const ops::Segment& segment = segments[i];
    if (segment.prefix < 0) {
      roots.add(segment.begin, segment.size(), -1, prefixes.number[i]);
    } else {
      branches.add(segment.begin, segment.size(), prefixes.number[static_cast<size_t>(segment.prefix)], -1);
    }
  }
  for (Items* items : {&roots, &branches})
    if (!items->empty()) launch_scan(items->launch(rows, states, out));
  const int64_t real = ops::real_rows(segments);
  if (real < out.size(0)) out.narrow(0, real, out.size(0) - real).zero_();
}

void gated_delta_step(const DeltaSpec& spec, const DeltaRows& rows, const std::vector<ops::StateRun>& runs,
                      const at::Tensor& states, const at::Tensor& out) {
  Items items(spec, false);
  for (const ops::StateRun& run : runs) items.add(run.row, run.count, run.begins ? -1 : run.slot, run.slot);
  if (!items.empty()) launch_scan(items.launch(rows, states, out));
}

void gated_delta_backward(const DeltaSpec& spec, const DeltaRows& rows, const Segments& segments,
                          const at::Tensor& dout, const DeltaRows& gradients) {
  for (const at::Tensor& gradient : {gradients.x, gradients.decay, gradients.beta}) gradient.zero_();
  const Prefixes prefixes(segments);
  const int64_t shared = prefixes.count(), parts = static_cast<int64_t>(prefixes.branches.size());
  const at::Tensor states = states_of(spec, shared, dout.options());
  // By the states behind the prefixes, and by those before the branches.
  const at::Tensor d_states = states_of(spec, shared + parts, dout.options());
  Items again(spec, false), roots(spec, true), branches(spec, true);
  for (size_t i = 0; i < segments.size(); ++i) {
    if (segments[i].prefix >= 0) continue;
    const int64_t number = prefixes.number[i];
    if (number >= 0) again.add(segments[i].begin, segments[i].size(), -1, number);
    roots.add(segments[i].begin, segments[i].size(), -1, number);
  }
  for (int64_t i = 0; i < parts; ++i) {
    const ops::Segment& segment = segments[static_cast<size_t>(prefixes.branches[static_cast<size_t>(i)])];
    branches.add(segment.begin, segment.size(), prefixes.number[static_cast<size_t>(segment.prefix)],
                 shared + i);
  }
  const auto run = [&](Items& items) {
    if (items.empty()) return;
    const at::Tensor scratch = at::empty({items.scratch()}, dout.options());
    launch_scan_backward({items.launch(rows, states, {}), dout.const_data_ptr<float>(),
                          gradients.x.mutable_data_ptr<float>(), gradients.decay.mutable_data_ptr<float>(),
                          gradients.beta.mutable_data_ptr<float>(), d_states.mutable_data_ptr<float>(),
                          scratch.mutable_data_ptr<float>()});
  };
  if (!again.empty()) launch_scan(again.launch(rows, states, {}));
  d_states.narrow(0, shared, parts).zero_();
  run(branches);
  for (int64_t i = 0; i < shared; ++i) {
    const int64_t begin = prefixes.first[static_cast<size_t>(i)],
                  end = prefixes.first[static_cast<size_t>(i) + 1];
    at::Tensor sum = d_states[i];
    at::sum_out(sum, d_states.narrow(0, shared + begin, end - begin), {0});
  }
  run(roots);
}

}  // namespace troupe::kernels::cuda
