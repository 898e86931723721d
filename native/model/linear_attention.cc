// Passes over all rows of a micro-batch, and steps from kept states.
#include "model/linear_attention.h"

#include <ATen/ATen.h>

#include <cstring>
#include <utility>

#include "base/parallel.h"
#include "base/simulated.h"
#include "base/upload.h"
#include "kernels/gated_delta_reference.h"
#include "model/gated_delta_net.h"
#include "model/mamba2.h"

namespace troupe {

namespace {

constexpr int64_t kHistory = kernels::kConvWidth - 1;
// Rows of a step that a thread takes at a time.
constexpr int64_t kStepTile = 8;

at::Tensor rows_of(const at::Tensor& t, int64_t begin, int64_t end) {
  return t.narrow(0, begin, end - begin);
}

const char* row_at(const at::Tensor& rows, int64_t row) {
  return static_cast<const char*>(rows.const_data_ptr()) +
         row * rows.stride(0) * static_cast<int64_t>(rows.element_size());
}
// Of conv of LinearStates.
char* kept_at(const at::Tensor& conv, int64_t slot, int64_t row) {
  return static_cast<char*>(conv.mutable_data_ptr()) +
         (slot * conv.stride(0) + row * conv.stride(1)) * static_cast<int64_t>(conv.element_size());
}

int64_t tiles_of(const at::Tensor& rows) {
  return on_cpu_threads(rows.device()) ? (rows.size(0) + kRowTile - 1) / kRowTile : 1;
}

}  // namespace

LinearAttention::LinearAttention(const ParameterStore& store, const ModelConfig& config,
                                 const std::string& name)
    : config_(*config.linear),
      spec_{config_.key_heads, config_.value_heads, config_.key_dim, config_.value_dim,
            config_.rule == LinearRule::kGatedDelta} {
  const auto take = [&](const char* leaf) -> Trained {
    const Parameter& parameter = store.at(name + leaf);
    return {parameter.compute, parameter.grad};
  };
  convolutions_ = {{config_.channels(), take(".conv.weight"), {}}};
  if (config_.conv_bias) convolutions_[0].bias = take(".conv.bias");
  small_.norm = take(".norm.weight");
  small_.a_log = take(".a_log");
  small_.dt_bias = take(".dt_bias");
  if (config_.has_skip()) small_.skip = take(".skip");
}

LinearAttention::LinearAttention(const LinearAttention& all, int64_t rank, int64_t ranks)
    : config_(all.config_.own_heads(ranks)), spec_(all.spec_) {
  spec_.key_heads = config_.key_heads;
  spec_.value_heads = config_.value_heads;
  const auto own = [&](const Trained& of) {
    const int64_t count = of.value.defined() ? of.value.size(0) / ranks : 0;
    return of.rows(rank * count, count);
  };
  // That of Gated DeltaNet is the same for every head.
  small_.norm = config_.rule == LinearRule::kMamba2 ? own(all.small_.norm) : all.small_.norm;
  small_.a_log = own(all.small_.a_log);
  small_.dt_bias = own(all.small_.dt_bias);
  small_.skip = own(all.small_.skip);
  int64_t first = 0;
  for (const int64_t block : all.config_.channel_blocks()) {
    const int64_t count = block / ranks;
    const Convolution& whole = all.convolutions_[0];
    convolutions_.push_back({count, whole.weight.rows(first + rank * count, count),
                             whole.bias.rows(first + rank * count, count)});
    first += block;
  }
}

at::Tensor LinearAttention::conv_weight() const {
  std::vector<at::Tensor> parts;
  for (const Convolution& part : convolutions_)
    parts.push_back(ops::conv_weight(part.weight.value, part.bias.value));
  return parts.size() == 1 ? parts[0] : at::cat(parts, 1);
}

void LinearAttention::add_to_convolutions(const at::Tensor& gradient) const {
  int64_t first = 0;
  for (const Convolution& part : convolutions_) {
    const at::Tensor own = gradient.narrow(1, first, part.channels);
    part.weight.add(own.narrow(0, 0, kernels::kConvWidth).t());
    part.bias.add(own[kernels::kConvWidth]);
    first += part.channels;
  }
}

ops::DeltaRows LinearAttention::inputs(const at::Tensor& mixed, const ops::ConvTaps& taps,
                                       const at::Tensor& weight, const at::Tensor& convolved) const {
  const ops::DeltaRows rows = ops::DeltaRows::make(spec_, mixed.size(0), mixed.options());
  for_each_row_tile(mixed.size(0), kRowTile, mixed.device(), [&](int64_t begin, int64_t end) {
    const at::Tensor x = convolved.defined() ? rows_of(convolved, begin, end)
                                             : at::empty({end - begin, config_.channels()}, mixed.options());
    ops::causal_conv_forward(channels(mixed), weight, taps, begin, end, x);
    prepare(x, rows_of(mixed, begin, end), rows.rows(begin, end - begin));
  });
  return rows;
}

at::Tensor LinearAttention::forward(const at::Tensor& mixed, const ops::Segments& segments,
                                    at::Tensor* rule) const {
  const int64_t total = mixed.size(0);
  const ops::ConvTaps taps(segments, total);
  const ops::DeltaRows rows = inputs(mixed, taps, conv_weight(), {});
  const at::Tensor given = at::empty({total, config_.values()}, rows.x.options());
  ops::gated_delta_forward(spec_, rows, segments, given);
  const at::Tensor out = at::empty({total, config_.values()}, mixed.options());
  for_each_row_tile(total, kRowTile, mixed.device(), [&](int64_t begin, int64_t end) {
    finish(rows_of(given, begin, end), rows.rows(begin, end - begin), rows_of(mixed, begin, end),
           rows_of(out, begin, end));
  });
  if (rule != nullptr) *rule = given;
  return out;
}

at::Tensor LinearAttention::backward(const at::Tensor& mixed, const at::Tensor& rule, const at::Tensor& d_out,
                                     const ops::Segments& segments) const {
  const int64_t total = mixed.size(0), tiles = tiles_of(mixed);
  const ops::ConvTaps taps(segments, total);
  const at::Tensor weight = conv_weight(), d_mixed = at::empty_like(mixed);
  // What the tiles find of the small parameters' gradients.
  const auto parts = [&](const Trained& of) {
    return of.value.defined() ? at::zeros({tiles, of.value.size(0)}, rule.options()) : at::Tensor();
  };
  const SmallGradients sums{parts(small_.norm), parts(small_.a_log), parts(small_.dt_bias),
                            parts(small_.skip)};
  const at::Tensor d_rule = at::empty_like(rule);
  for_each_row_tile(total, kRowTile, mixed.device(), [&](int64_t begin, int64_t end) {
    finish_backward(rows_of(d_out, begin, end), rows_of(rule, begin, end), rows_of(mixed, begin, end),
                    rows_of(d_rule, begin, end), rows_of(d_mixed, begin, end), sums.of(begin / kRowTile));
  });

  const at::Tensor convolved = at::empty({total, config_.channels()}, mixed.options());
  const ops::DeltaRows rows = inputs(mixed, taps, weight, convolved);
  const ops::DeltaRows gradients = ops::DeltaRows::make(spec_, total, mixed.options());
  ops::gated_delta_backward(spec_, rows, segments, d_rule, gradients);
  for_each_row_tile(total, kRowTile, mixed.device(), [&](int64_t begin, int64_t end) {
    const int64_t count = end - begin;
    prepare_backward(
        {rows_of(convolved, begin, end), rows_of(mixed, begin, end), rows.rows(begin, count),
         rows_of(d_rule, begin, end), gradients.rows(begin, count), rows_of(d_mixed, begin, end)},
        sums.of(begin / kRowTile));
  });
  small_.norm.add(sums.norm.sum(0));
  small_.a_log.add(sums.a_log.sum(0));
  small_.dt_bias.add(sums.dt_bias.sum(0));
  if (sums.skip.defined()) small_.skip.add(sums.skip.sum(0));
  add_to_convolutions(
      ops::causal_conv_backward(channels(mixed), weight, taps, gradients.x, channels(d_mixed)));
  return d_mixed;
}

// Row `row` of a run and those before it go into each row's convolution; negative ones are kept ones.
template <typename Body>
void LinearAttention::for_each_tap(const std::vector<ops::StateRun>& runs, Body&& body) {
  for (const ops::StateRun& run : runs) {
    for (int64_t i = 0; i < run.count * kernels::kConvWidth; ++i) {
      const int64_t source = i / kernels::kConvWidth + i % kernels::kConvWidth - kHistory;
      if (source >= 0 || !run.begins) body(run, run.row * kernels::kConvWidth + i, source);
    }
  }
}

at::Tensor LinearAttention::convolve(const at::Tensor& mixed, const std::vector<ops::StateRun>& runs,
                                     const at::Tensor& conv) const {
  const int64_t total = mixed.size(0), cols = config_.channels();
  const at::Tensor x = channels(mixed), weight = conv_weight();
  const at::Tensor y = at::zeros({total, cols}, mixed.options());
  if (simulated(mixed)) return y;
  const auto count = static_cast<size_t>(total * kernels::kConvWidth);
  if (!ops::has_delta_kernels(mixed)) {
    // Rows of the step, then all that are kept, then none.
    const at::Tensor all = at::cat({x, conv.reshape({-1, cols})});
    std::vector<int64_t> index(count, all.size(0));
    for_each_tap(runs, [&](const ops::StateRun& run, int64_t tap, int64_t source) {
      index[static_cast<size_t>(tap)] =
          source >= 0 ? run.row + source : total + (run.slot + 1) * kHistory + source;
    });
    const at::Tensor taps = upload(at::tensor(index, at::kLong).view({total, -1}), mixed.device());
    ops::reference::causal_conv_forward(all, weight, taps, y);
    return y;
  }
  const at::Tensor zeros = at::zeros({cols}, mixed.options());
  std::vector<const void*> taps(count, zeros.const_data_ptr());
  for_each_tap(runs, [&](const ops::StateRun& run, int64_t tap, int64_t source) {
    taps[static_cast<size_t>(tap)] =
        source >= 0 ? row_at(x, run.row + source) : kept_at(conv, run.slot, kHistory + source);
  });
  for_each_row_tile(total, kStepTile, mixed.device(), [&](int64_t begin, int64_t end) {
    ops::causal_conv_forward(
        {taps.begin() + begin * kernels::kConvWidth, taps.begin() + end * kernels::kConvWidth}, weight,
        rows_of(y, begin, end));
  });
  return y;
}

void LinearAttention::keep_rows(const at::Tensor& mixed, const std::vector<ops::StateRun>& runs,
                                const std::vector<StateSnapshot>& snapshots, const at::Tensor& conv) const {
  if (simulated(mixed)) return;
  // Of so many rows of a run the last ones. Snapshots come first: they read what runs replace.
  struct Kept {
    const ops::StateRun& run;
    int64_t count, slot;
  };
  std::vector<Kept> all_kept;
  for (const StateSnapshot& snapshot : snapshots)
    all_kept.push_back({runs[snapshot.run], snapshot.count, snapshot.slot});
  for (const ops::StateRun& run : runs) all_kept.push_back({run, run.count, run.slot});
  const at::Tensor x = channels(mixed);
  if (!ops::has_delta_kernels(mixed)) {
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
      return upload(at::tensor(index, at::kLong), mixed.device());
    };
    at::Tensor(rows).index_copy_(0, there(to), all.index_select(0, there(from)));
    return;
  }
  const auto bytes = static_cast<size_t>(config_.channels()) * mixed.element_size();
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

// Pieces of a run come one behind the other, those of different runs together.
void LinearAttention::scan(const ops::DeltaRows& rows, std::vector<ops::StateRun> runs,
                           std::vector<StateSnapshot> snapshots, const at::Tensor& rule,
                           const at::Tensor& out) const {
  while (!snapshots.empty()) {
    std::vector<ops::StateRun> pieces = runs;
    std::vector<StateSnapshot> now, later;
    for (const StateSnapshot& snapshot : snapshots) {
      const bool first = now.empty() || now.back().run != snapshot.run;
      if (first) pieces[snapshot.run].count = snapshot.count;
      (first ? now : later).push_back(snapshot);
    }
    ops::gated_delta_step(spec_, rows, pieces, rule, out);
    for (const StateSnapshot& snapshot : now)
      rule.select(0, snapshot.slot).copy_(rule.select(0, runs[snapshot.run].slot));
    // What is left: a piece that was cut off has gone on from its own slot.
    std::vector<ops::StateRun> rest;
    std::vector<size_t> place(runs.size());
    for (size_t i = 0; i < runs.size(); ++i) {
      place[i] = rest.size();
      const int64_t done = pieces[i].count;
      if (done < runs[i].count)
        rest.push_back({runs[i].row + done, runs[i].count - done, runs[i].slot, false});
    }
    for (StateSnapshot& snapshot : later) {
      snapshot.count -= pieces[snapshot.run].count;
      snapshot.run = place[snapshot.run];
    }
    runs = std::move(rest);
    snapshots = std::move(later);
  }
  ops::gated_delta_step(spec_, rows, runs, rule, out);
}

void LinearAttention::step(const at::Tensor& mixed, const std::vector<ops::StateRun>& runs,
                           const std::vector<StateSnapshot>& snapshots, const LinearStates& states,
                           const at::Tensor& out) const {
  const int64_t total = mixed.size(0);
  const at::Tensor convolved = convolve(mixed, runs, states.conv);
  keep_rows(mixed, runs, snapshots, states.conv);
  const ops::DeltaRows rows = ops::DeltaRows::make(spec_, total, mixed.options());
  for_each_row_tile(total, kStepTile, mixed.device(), [&](int64_t begin, int64_t end) {
    prepare(rows_of(convolved, begin, end), rows_of(mixed, begin, end), rows.rows(begin, end - begin));
  });
  const at::Tensor given = at::zeros({total, config_.values()}, rows.x.options());
  scan(rows, runs, snapshots, states.rule, given);
  for_each_row_tile(total, kStepTile, mixed.device(), [&](int64_t begin, int64_t end) {
    finish(rows_of(given, begin, end), rows.rows(begin, end - begin), rows_of(mixed, begin, end),
           rows_of(out, begin, end));
  });
}

std::unique_ptr<LinearAttention> linear_attention(const ParameterStore& store, const ModelConfig& config,
                                                  const std::string& prefix) {
  const std::string name = prefix + linear_attention_name(*config.linear);
  if (config.linear->rule == LinearRule::kMamba2) return std::make_unique<Mamba2>(store, config, name);
  return std::make_unique<GatedDeltaNet>(store, config, name);
}

}  // namespace troupe
