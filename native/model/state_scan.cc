// Passes over all rows of a micro-batch, and steps from kept states.
#include "model/state_scan.h"

#include <ATen/ATen.h>

#include <utility>

#include "base/parallel.h"

namespace troupe {

namespace {

at::Tensor rows_of(const at::Tensor& t, int64_t begin, int64_t end) {
  return t.narrow(0, begin, end - begin);
}

int64_t tiles_of(const at::Tensor& rows) {
  return on_cpu_threads(rows.device()) ? (rows.size(0) + kRowTile - 1) / kRowTile : 1;
}

}  // namespace

StateScan::StateScan(const ParameterStore& store, const LinearAttentionConfig& config,
                     const std::string& name)
    : LinearAttention(config),
      spec_{config_.key_heads, config_.value_heads, config_.key_dim, config_.value_dim,
            config_.rule == LinearRule::kGatedDelta},
      convolution_(store, name + ".conv", config_.conv_bias, /*silu=*/true) {
  const auto take = [&](const char* leaf) -> Trained {
    const Parameter& parameter = store.at(name + leaf);
    return {parameter.compute, parameter.grad};
  };
  small_.norm = take(".norm.weight");
  small_.a_log = take(".a_log");
  small_.dt_bias = take(".dt_bias");
  if (config_.has_skip()) small_.skip = take(".skip");
}

StateScan::StateScan(const StateScan& all, int64_t rank, int64_t ranks)
    : LinearAttention(all.config_.own_heads(ranks)),
      spec_(all.spec_),
      convolution_(all.convolution_, all.config_.channel_blocks(), rank, ranks) {
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
}

ops::DeltaRows StateScan::inputs(const at::Tensor& mixed, const ops::ConvTaps& taps,
                                 const ops::ConvWeight& weight, const at::Tensor& convolved) const {
  const ops::DeltaRows rows = ops::DeltaRows::make(spec_, mixed.size(0), mixed.options());
  for_each_row_tile(mixed.size(0), kRowTile, mixed.device(), [&](int64_t begin, int64_t end) {
    const at::Tensor x = convolved.defined() ? rows_of(convolved, begin, end)
                                             : at::empty({end - begin, config_.channels()}, mixed.options());
    ops::causal_conv_forward(channels(mixed), weight, taps, begin, end, x);
    prepare(x, rows_of(mixed, begin, end), rows.rows(begin, end - begin));
  });
  return rows;
}

at::Tensor StateScan::forward(const at::Tensor& mixed, const ops::Segments& segments,
                              at::Tensor* kept) const {
  const int64_t total = mixed.size(0);
  const ops::ConvTaps taps(segments, total);
  const ops::DeltaRows rows = inputs(mixed, taps, convolution_.weight(), {});
  const at::Tensor given = at::empty({total, config_.values()}, rows.x.options());
  ops::gated_delta_forward(spec_, rows, segments, given);
  const at::Tensor out = at::empty({total, config_.values()}, mixed.options());
  for_each_row_tile(total, kRowTile, mixed.device(), [&](int64_t begin, int64_t end) {
    finish(rows_of(given, begin, end), rows.rows(begin, end - begin), rows_of(mixed, begin, end),
           rows_of(out, begin, end));
  });
  if (kept != nullptr) *kept = given;
  return out;
}

at::Tensor StateScan::backward(const at::Tensor& mixed, const at::Tensor& kept, const at::Tensor& d_out,
                               const ops::Segments& segments) const {
  const int64_t total = mixed.size(0), tiles = tiles_of(mixed);
  const ops::ConvTaps taps(segments, total);
  const ops::ConvWeight weight = convolution_.weight();
  const at::Tensor d_mixed = at::empty_like(mixed);
  // What the tiles find of the small parameters' gradients.
  const auto parts = [&](const Trained& of) {
    return of.value.defined() ? at::zeros({tiles, of.value.size(0)}, kept.options()) : at::Tensor();
  };
  const SmallGradients sums{parts(small_.norm), parts(small_.a_log), parts(small_.dt_bias),
                            parts(small_.skip)};
  const at::Tensor d_rule = at::empty_like(kept);
  for_each_row_tile(total, kRowTile, mixed.device(), [&](int64_t begin, int64_t end) {
    finish_backward(rows_of(d_out, begin, end), rows_of(kept, begin, end), rows_of(mixed, begin, end),
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
  convolution_.add(ops::causal_conv_backward(channels(mixed), weight, taps, gradients.x, channels(d_mixed)));
  return d_mixed;
}

// Pieces of a run come one behind the other, those of different runs together.
void StateScan::scan(const ops::DeltaRows& rows, std::vector<ops::StateRun> runs,
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

void StateScan::step(const at::Tensor& mixed, const std::vector<ops::StateRun>& runs,
                     const std::vector<StateSnapshot>& snapshots, const LinearStates& states,
                     const at::Tensor& out) const {
  const int64_t total = mixed.size(0);
  const at::Tensor x = channels(mixed), convolved = convolution_.step(x, runs, states.conv);
  CausalConvolution::keep(x, runs, snapshots, states.conv);
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

}  // namespace troupe
