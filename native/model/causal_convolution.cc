// Weights of the convolution, and its steps.
#include "model/causal_convolution.h"

#include <ATen/ATen.h>

#include <cstring>

#include "base/parallel.h"
#include "base/simulated.h"
#include "base/upload.h"
#include "kernels/gated_delta_reference.h"

namespace troupe {

namespace {

constexpr int64_t kHistory = kernels::kConvWidth - 1;

const char* row_at(const at::Tensor& rows, int64_t row) {
  return static_cast<const char*>(rows.const_data_ptr()) +
         row * rows.stride(0) * static_cast<int64_t>(rows.element_size());
}
// Of conv of LinearStates.
char* kept_at(const at::Tensor& conv, int64_t slot, int64_t row) {
  return static_cast<char*>(conv.mutable_data_ptr()) +
         (slot * conv.stride(0) + row * conv.stride(1)) * static_cast<int64_t>(conv.element_size());
}

// Row `row` of a run and those before it go into each row's convolution; negative ones are kept ones.
template <typename Body>
void for_each_tap(const std::vector<ops::StateRun>& runs, Body&& body) {
  for (const ops::StateRun& run : runs) {
    for (int64_t i = 0; i < run.count * kernels::kConvWidth; ++i) {
      const int64_t source = i / kernels::kConvWidth + i % kernels::kConvWidth - kHistory;
      if (source >= 0 || !run.begins) body(run, run.row * kernels::kConvWidth + i, source);
    }
  }
}

}  // namespace

CausalConvolution::CausalConvolution(const ParameterStore& store, const std::string& name, bool bias,
                                     bool silu)
    : silu_(silu) {
  const auto take = [&](const char* leaf) -> Trained {
    const Parameter& parameter = store.at(name + leaf);
    return {parameter.compute, parameter.grad};
  };
  parts_ = {{take(".weight"), bias ? take(".bias") : Trained{}}};
}

CausalConvolution::CausalConvolution(const CausalConvolution& all, const std::vector<int64_t>& blocks,
                                     int64_t rank, int64_t ranks)
    : silu_(all.silu_) {
  const Part& whole = all.parts_[0];
  int64_t first = 0;
  for (const int64_t block : blocks) {
    const int64_t count = block / ranks, begin = first + rank * count;
    parts_.push_back({whole.weight.rows(begin, count), whole.bias.rows(begin, count)});
    first += block;
  }
}

ops::ConvWeight CausalConvolution::weight() const {
  std::vector<at::Tensor> taps;
  for (const Part& part : parts_) taps.push_back(ops::conv_taps(part.weight.value, part.bias.value));
  return {taps.size() == 1 ? taps[0] : at::cat(taps, 1), silu_};
}

void CausalConvolution::add(const at::Tensor& gradient) const {
  int64_t first = 0;
  for (const Part& part : parts_) {
    const at::Tensor own = gradient.narrow(1, first, part.channels());
    const int64_t width = part.weight.value.size(1);
    part.weight.add(own.narrow(0, kernels::kConvWidth - width, width).t());
    part.bias.add(own[kernels::kConvWidth]);
    first += part.channels();
  }
}

at::Tensor CausalConvolution::step(const at::Tensor& x, const std::vector<ops::StateRun>& runs,
                                   const at::Tensor& conv) const {
  const int64_t total = x.size(0), cols = x.size(1);
  const ops::ConvWeight weight = this->weight();
  const at::Tensor y = at::zeros({total, cols}, x.options());
  if (simulated(x)) return y;
  const auto count = static_cast<size_t>(total * kernels::kConvWidth);
  if (!ops::has_delta_kernels(x)) {
    // Rows of the step, then all that are kept, then none.
    const at::Tensor all = at::cat({x, conv.reshape({-1, cols})});
    std::vector<int64_t> index(count, all.size(0));
    for_each_tap(runs, [&](const ops::StateRun& run, int64_t tap, int64_t source) {
      index[static_cast<size_t>(tap)] =
          source >= 0 ? run.row + source : total + (run.slot + 1) * kHistory + source;
    });
    const at::Tensor taps = upload(at::tensor(index, at::kLong).view({total, -1}), x.device());
    ops::reference::causal_conv_forward(all, weight, taps, y);
    return y;
  }
  const at::Tensor zeros = at::zeros({cols}, x.options());
  std::vector<const void*> taps(count, zeros.const_data_ptr());
  for_each_tap(runs, [&](const ops::StateRun& run, int64_t tap, int64_t source) {
    taps[static_cast<size_t>(tap)] =
        source >= 0 ? row_at(x, run.row + source) : kept_at(conv, run.slot, kHistory + source);
  });
  for_each_row_tile(total, kStepTile, x.device(), [&](int64_t begin, int64_t end) {
    ops::causal_conv_forward(
        {taps.begin() + begin * kernels::kConvWidth, taps.begin() + end * kernels::kConvWidth}, weight,
        y.narrow(0, begin, end - begin));
  });
  return y;
}

void CausalConvolution::keep(const at::Tensor& x, const std::vector<ops::StateRun>& runs,
                             const std::vector<StateSnapshot>& snapshots, const at::Tensor& conv) {
  if (simulated(x)) return;
  // Of so many rows of a run the last ones. Snapshots come first: they read what runs replace.
  struct Kept {
    const ops::StateRun& run;
    int64_t count, slot;
  };
  std::vector<Kept> all_kept;
  for (const StateSnapshot& snapshot : snapshots)
    all_kept.push_back({runs[snapshot.run], snapshot.count, snapshot.slot});
  for (const ops::StateRun& run : runs) all_kept.push_back({run, run.count, run.slot});
  if (!ops::has_delta_kernels(x)) {
    const int64_t total = x.size(0), cols = x.size(1);
    const at::Tensor rows = conv.view({-1, cols});
    const at::Tensor all = at::cat({x, rows, at::zeros({1, cols}, x.options())});
    std::vector<int64_t> from, to;
    for (const auto& [run, count, slot] : all_kept) {
      for (int64_t i = 0; i < kHistory; ++i) {
        const int64_t source = count - kHistory + i;
        from.push_back(source >= 0  ? run.row + source
                       : run.begins ? all.size(0) - 1
                                    : total + (run.slot + 1) * kHistory + source);
        to.push_back(slot * kHistory + i);
      }
    }
    const auto there = [&](const std::vector<int64_t>& index) {
      return upload(at::tensor(index, at::kLong), x.device());
    };
    at::Tensor(rows).index_copy_(0, there(to), all.index_select(0, there(from)));
    return;
  }
  const auto bytes = static_cast<size_t>(x.size(1)) * x.element_size();
  for (const auto& [run, count, slot] : all_kept) {
    if (run.begins && count < kHistory) conv.select(0, slot).zero_();
    const int64_t before = run.begins ? slot : run.slot;
    for (int64_t i = 0; i < kHistory; ++i) {  // ascending: what is read has not been written
      const int64_t source = count - kHistory + i;
      std::memcpy(kept_at(conv, slot, i),
                  source >= 0 ? row_at(x, run.row + source) : kept_at(conv, before, kHistory + source),
                  bytes);
    }
  }
}

}  // namespace troupe
