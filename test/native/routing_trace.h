#pragma once

#include <ATen/ATen.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "batch/routed_experts.h"
#include "long_training.h"
#include "model/expert_routing.h"
#include "random_layout.h"

// Updates of a drawn case with the experts that its routers chose before each, and whether a choice that
// differs between two engines is one that rounding can make.
namespace troupe::test {

struct RoutingTrace {
  LogProbResult before;
  std::vector<Metrics> metrics;                  // of every update
  std::vector<at::Tensor> choices;               // before it; undefined without experts
  std::vector<std::vector<at::Tensor>> weights;  // before it
};

// Sets parameters; every rank at the same time.
inline void set_weights(Engine& engine, const std::vector<std::string>& names,
                        const std::vector<at::Tensor>& values) {
  WeightBucket bucket{"float32", {}};
  std::vector<at::Tensor> bytes;
  for (size_t i = 0; i < names.size(); ++i) {
    const int64_t rows = values[i].size(0);
    bucket.chunks.push_back({names[i], 0, rows, false, names[i], 0, rows});
    bytes.push_back(values[i].contiguous().view({-1}).view(at::kByte));
  }
  engine.import_weights(bucket, at::cat(bytes));
}

// given: the choices of every update; none: the routers'. Before the first update the old log-probs are the
// engine's own.
inline RoutingTrace trace(Engine& engine, const RandomLayout& drawn, size_t updates,
                          const std::vector<at::Tensor>& given = {}) {
  RoutingTrace all;
  for (size_t update = 0; update < updates; ++update) {
    TokenBatch tokens = drawn.tokens;
    if (!given.empty()) tokens.routed_experts = given[update];
    const LogProbResult now =
        engine.compute_log_prob(tokens, 0.9, true, false, false, drawn.options.model.moe.has_value());
    if (update == 0) all.before = now;
    all.choices.push_back(now.routed_experts);
    all.weights.emplace_back();
    for (const ParameterInfo& info : engine.parameters())
      all.weights.back().push_back(engine.get_tensor(TensorKind::kParam, info.name));
    const at::Tensor& old = update == 0 ? now.log_probs : drawn.old;
    const PolicyBatch batch{tokens, drawn.mask, old, drawn.advantages, {}, {}, {}};
    all.metrics.push_back(engine.update_policy(batch, drawn.mini, drawn.policy, 0.9)[0]);
  }
  return all;
}

// Of the ranks of its layout; all of them must find the same. Without metrics where a rank has thrown.
inline RoutingTrace trace_together(
    const RandomLayout& drawn, size_t updates, const std::vector<at::Tensor>& given = {},
    const std::function<void(Engine&)>& prepare = [](Engine&) {}) {
  std::vector<RoutingTrace> ranks(static_cast<size_t>(drawn.ranks()));
  on_ranks(drawn.ranks(), [&](int64_t rank, const std::shared_ptr<Communicator>& comm) {
    const auto engine = create_engine(drawn.options, comm);
    prepare(*engine);
    ranks[static_cast<size_t>(rank)] = trace(*engine, drawn, updates, given);
  });
  for (const RoutingTrace& rank : ranks) CHECK(rank.metrics == ranks[0].metrics);
  return ranks[0];
}

// What routers make of the drawn batch with given weights in one process: by sequence and layer with experts
// the logarithms of their probabilities [T, E], which are logits but for a constant of each row.
inline std::vector<std::vector<at::Tensor>> router_logits(const RandomLayout& drawn,
                                                          const std::vector<at::Tensor>& weights) {
  SmallModel model(drawn.options.model);
  for (size_t i = 0; i < weights.size(); ++i) {
    at::Tensor master = model.store.all()[i].master;
    master.copy_(weights[i].view_as(master));
  }
  model.store.refresh_compute();
  const BatchLayout layout = check_layout(drawn.tokens, model.config.vocab_size, model.config.max_positions);
  std::vector<std::vector<at::Tensor>> all;
  for (int64_t i = 0; i < layout.size(); ++i) {
    const MicroBatch micro = pack(layout, i, i + 1, 4096)[0];
    const PackedTokens packed =
        gather(drawn.tokens, layout, micro, padded_rows(micro, {kRowTile, 4096, false}));
    StagePass pass(true);
    model.transformer.stages().front().forward(&packed, {}, pass);
    all.emplace_back();
    for (int64_t layer = 0; layer < model.config.num_layers; ++layer) {
      if (!model.config.is_moe_layer(layer)) continue;
      const ExpertRouting& routing = pass.blocks[static_cast<size_t>(layer)].moe.routing;
      all.back().push_back(routing.scores.narrow(0, 0, packed.real_rows).log());
    }
  }
  return all;
}

// A token that two engines send to different experts.
struct OtherChoice {
  int64_t sequence, position, layer;  // among those with experts
  double margin;  // by how much the first one's logits prefer its own choice to the other's
  double apart;   // how far the logits of both are from each other there
  // A rounding in a layer before, or of a token before, can have moved it: the others explain this one.
  bool follows;

  // What is decided by less than the two know of it.
  bool undecided() const { return margin <= 2 * (apart + 1e-5); }
  std::string text() const {
    return "sequence " + std::to_string(sequence) + ", position " + std::to_string(position) + ", layer " +
           std::to_string(layer) + ": margin " + std::to_string(margin * 1e6) + "e-6, logits apart by " +
           std::to_string(apart * 1e6) + "e-6";
  }
};

// Those before update `update`, in the order of sequences, layers and positions.
inline std::vector<OtherChoice> other_choices(const RandomLayout& drawn, const RoutingTrace& first,
                                              const RoutingTrace& second, size_t update) {
  const RoutingShape shape = routing_shape(drawn.options.model);
  if (shape.layers == 0 || first.choices[update].equal(second.choices[update])) return {};
  const auto ours = router_logits(drawn, first.weights[update]);
  const auto theirs = router_logits(drawn, second.weights[update]);
  const auto chosen = [&](const RoutingTrace& trace) {
    return trace.choices[update].view({-1, shape.layers, shape.top_k}).to(at::kLong);
  };
  const at::Tensor all_ours = chosen(first), all_theirs = chosen(second);
  std::vector<OtherChoice> found;
  for (size_t i = 0; i < ours.size(); ++i) {
    const auto sequence = static_cast<int64_t>(i);
    const int64_t start = drawn.tokens.seq_offsets[sequence].item<int64_t>();
    bool any = false;
    for (int64_t layer = 0; layer < shape.layers; ++layer) {
      const at::Tensor logits = ours[i][static_cast<size_t>(layer)];
      const at::Tensor apart = (logits - theirs[i][static_cast<size_t>(layer)]).abs().amax(1);
      const bool follows = any;
      for (int64_t position = 0; position < logits.size(0); ++position) {
        const at::Tensor own =
            at::zeros({shape.experts}, at::kBool).index_fill_(0, all_ours[start + position][layer], 1);
        const at::Tensor other =
            at::zeros({shape.experts}, at::kBool).index_fill_(0, all_theirs[start + position][layer], 1);
        if (own.equal(other)) continue;
        any = true;
        const at::Tensor lost = logits[position].masked_select(own & ~other);
        const at::Tensor gained = logits[position].masked_select(other & ~own);
        found.push_back({sequence, position, layer, (lost.max() - gained.min()).item<double>(),
                         apart[position].item<double>(), follows});
      }
    }
  }
  return found;
}

}  // namespace troupe::test
