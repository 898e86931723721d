// A tower for images on ranks that share the matrices of its decoder or the rows of micro-batches, and in a
// pipeline.
#include "base/parallel.h"
#include "batch/row_parts.h"
#include "check.h"
#include "engine/engine.h"
#include "model/image_patches.h"
#include "model/stage_layout.h"
#include "model/transformer.h"
#include "model/vision_merger.h"
#include "ranks.h"
#include "small_model.h"
#include "small_tower.h"
#include "ulysses/sequence_group.h"

using namespace troupe;
using namespace troupe::test;

namespace {

constexpr int64_t kImageToken = kVocabulary - 1, kSide = 32, kImageTokens = 64;

ModelConfig model() {
  ModelConfig c = small("qwen3");
  c.max_positions = 256;
  give_windows(c, {0, 0, 0});
  c.vision = small_tower(kImageToken);
  return c;
}

// With a norm behind the patches, bicubic positions and a merger with a gate.
ModelConfig gated_model() {
  ModelConfig c = model();
  VisionConfig& v = *c.vision;
  v.norm = NormKind::kRms;
  v.gated_mlp = v.patch_norm = v.cubic_positions = true;
  v.activation = Activation::kSilu;
  v.qkv_bias = v.layer_bias = false;
  v.gated_merger_size = 12;
  v.deepstack_layers.clear();
  return c;
}

// Sequences of 144 rows of which some have an image in rows 60 to 123 of theirs, then text alone.
PackedTokens rows(const std::vector<bool>& with_image = {true, true, true}) {
  constexpr int64_t kText = 60, kLength = kText + kImageTokens + 21;
  TokenBatch batch;
  std::vector<int32_t> tokens, offsets{0};
  const auto sequences = static_cast<int64_t>(with_image.size());
  for (int64_t i = 0; i < sequences; ++i) {
    const bool any = with_image[static_cast<size_t>(i)];
    for (int64_t t = 0; t < kLength; ++t) {
      const bool image = any && t >= kText && t < kText + kImageTokens;
      tokens.push_back(static_cast<int32_t>(image ? kImageToken : (7 * t + 11 * i) % kImageToken));
    }
    offsets.push_back(static_cast<int32_t>(tokens.size()));
    batch.images.of_sequence.emplace_back();
    if (!any) continue;
    const at::Tensor pixels = at::arange(kSide * kSide * 3).mul(5 + 2 * i).remainder(251).to(at::kByte);
    batch.images.of_sequence.back() = {static_cast<int64_t>(batch.images.all.size())};
    batch.images.all.push_back(make_image(kSide, kSide, pixels, "test"));
  }
  batch.tokens = at::tensor(tokens, at::kInt);
  batch.seq_offsets = at::tensor(offsets, at::kInt);
  batch.prompt_lens = at::full({sequences}, kText + kImageTokens + 1, at::kInt);
  const ImageTokens images = image_tokens(*model().vision);
  const BatchLayout layout = check_layout(batch, kVocabulary, 256, &images);
  return gather(batch, layout, pack(layout, 0, sequences, 4096).front(), 512);
}

// The ranks of one that has a part of the rows, or of the matrices.
struct Place {
  const Exchange* exchange = nullptr;
  const SequenceGroup* sequence = nullptr;
  const ContextGroup* context = nullptr;

  PackedTokens part(const PackedTokens& whole) const {
    if (sequence != nullptr) return consecutive_rows(whole, sequence->rank(), sequence->size());
    if (context != nullptr) return balanced_rows(whole, context->rank(), context->size());
    return whole;
  }
};

struct Gradients {
  at::Tensor hidden;               // of the predictions
  at::Tensor predictions;          // which of the whole's these are; undefined: all
  int64_t computed = 0;            // tokens of images
  std::vector<std::string> names;  // of parameters that are on every rank
  std::vector<at::Tensor> values;
};

Gradients tower_gradients(const Place& place, bool checkpointing, const PackedTokens& whole = rows(),
                          const ModelConfig& config = model()) {
  ParameterStore store(decoder_layout(config, std::nullopt, part_of(place.exchange)), at::kCPU, at::kFloat,
                       /*training=*/true, /*seed=*/7);
  store.initialize_missing();
  Transformer transformer(config, store, at::kCPU, at::kFloat, nullptr, place.sequence, std::nullopt,
                          place.exchange, nullptr, place.context);
  Stage& stage = transformer.stages().front();
  const PackedTokens packed = place.part(whole);
  ActivationOffload offload(at::kCPU);
  StagePass pass(true, checkpointing, checkpointing ? &offload : nullptr);
  const at::Tensor hidden = stage.forward(&packed, {}, pass);
  Gradients found;
  found.predictions = packed.predictions;
  found.hidden = hidden.narrow(0, 0, packed.predict_rows.size(0)).clone();
  found.computed = pass.image_parts.own_tokens;
  const int64_t all = whole.predict_rows.size(0);
  const at::Tensor d_whole = at::arange(all * config.hidden_size, at::kFloat).sin().view({all, -1});
  const at::Tensor d_hidden = at::zeros_like(hidden);
  d_hidden.narrow(0, 0, found.hidden.size(0))
      .copy_(found.predictions.defined() ? d_whole.index_select(0, found.predictions) : d_whole);
  stage.enter_head_backward(pass);
  stage.backward(d_hidden, pass);
  for (const Parameter& parameter : store.all()) {
    if (!store.groups()[parameter.group].before_layers || parameter.info.name == "embed.weight") continue;
    found.names.push_back(parameter.info.name);
    found.values.push_back(parameter.grad.clone());
  }
  return found;
}

}  // namespace

TEST(every_rank_finds_the_whole_gradient_of_its_tower) {
  set_num_threads(1);
  // The second of two ranks begins in the second image.
  const PackedTokens packed = rows();
  CHECK(packed.images[1].row < 256 && packed.images[1].row + kImageTokens > 256);
  for (const ModelConfig& config : {model(), gated_model()}) {
    const Gradients one = tower_gradients({}, false, packed, config);
    const bool gated = config.vision->gated_merger_size > 0;
    CHECK(one.names.size() == (gated ? 3 + 1 + 2 * 6 + 8 : 2 + 1 + 2 * 12 + 3 * 6));
    for (const bool sequence_parallel : {false, true}) {
      std::vector<Gradients> ranks(2);
      check_all(2, [&](Communicator& comm) {
        const Exchange exchange(comm, sequence_parallel);
        ranks[static_cast<size_t>(comm.rank())] =
            tower_gradients({&exchange}, sequence_parallel, packed, config);
      });
      CHECK(ranks[0].hidden.equal(ranks[1].hidden));
      CHECK((ranks[0].hidden - one.hidden).abs().max().item<double>() < 1e-5);
      for (size_t i = 0; i < one.names.size(); ++i) {
        const at::Tensor &first = ranks[0].values[i], &expected = one.values[i];
        CHECK(expected.abs().max().item<double>() > 0);
        report(first.equal(ranks[1].values[i]), __FILE__, __LINE__, "same bits: " + one.names[i]);
        const double apart = ((first - expected).norm() / expected.norm()).item<double>();
        report(apart < 1e-4, __FILE__, __LINE__, one.names[i] + ": " + std::to_string(apart));
      }
    }
  }
}

// By differences: a step along the gradient of each parameter changes a loss by as much as its square says.
TEST(gradients_of_a_merger_with_a_gate_are_those_of_its_features) {
  set_num_threads(1);
  const ModelConfig config = gated_model();
  ParameterStore store(decoder_layout(config), at::kCPU, at::kFloat, /*training=*/true, /*seed=*/3);
  store.initialize_missing();
  // Larger than they begin, so that rounding is small beside what a step changes.
  for (const Parameter& parameter : store.all())
    if (parameter.info.shape.size() > 1) parameter.compute.mul_(10);
  const std::unique_ptr<VisionMerger> merger = last_merger(store, config);
  const at::Tensor x = at::arange(4 * 37 * 16, at::kFloat).mul(0.37).sin().view({-1, 16});
  const at::Tensor dy = at::arange(37 * config.hidden_size, at::kFloat).mul(0.7).cos().view({37, -1});
  const auto loss = [&](const at::Tensor& rows) {
    return (merger->forward(rows, nullptr).to(at::kDouble) * dy).sum().item<double>();
  };
  MergerSaved saved;
  CHECK(merger->forward(x, &saved).equal(merger->forward(x, nullptr)));
  const at::Tensor dx = merger->backward(dy, saved);
  const auto compare = [&](const at::Tensor& value, const at::Tensor& gradient, const std::string& name) {
    const at::Tensor step = gradient * (1e-3 / gradient.norm().item<double>());
    const at::Tensor before = value.clone();
    value.add_(step);
    const double above = loss(x);
    value.copy_(before).sub_(step);
    const double below = loss(x);
    value.copy_(before);
    const double slope = (above - below) / 2e-3, expected = gradient.norm().item<double>();
    report(std::abs(slope / expected - 1) < 0.02, __FILE__, __LINE__,
           name + ": " + std::to_string(slope) + " beside " + std::to_string(expected));
  };
  compare(x, dx, "rows");
  int64_t compared = 0;
  for (const Parameter& parameter : store.all()) {
    if (parameter.info.name.rfind("vision.merger.", 0) != 0) continue;
    compare(parameter.compute, parameter.grad, parameter.info.name);
    ++compared;
  }
  CHECK(compared == 8);
}

// Parts of the gradient, whose sum is the whole: each image is computed by one of the ranks, and its tokens
// are rows of any.
TEST(ranks_that_share_rows_share_the_images) {
  set_num_threads(1);
  struct Case {
    int64_t ulysses, cp, tp;
    std::vector<bool> with_image;
    bool gated = false;
  };
  const std::vector<bool> all{true, true, true}, first{true, false, false}, last{false, true};
  for (const Case& c : std::vector<Case>{{2, 1, 1, all},
                                         {2, 1, 1, first},  // its rows are of one rank
                                         {2, 1, 1, last},
                                         {4, 1, 1, all},  // one rank computes none
                                         {1, 2, 1, all},
                                         {1, 2, 1, first},
                                         {1, 4, 1, all},
                                         {1, 2, 2, all},
                                         {2, 1, 1, all, true},
                                         {1, 2, 2, all, true},
                                         {1, 2, 2, last}}) {
    const PackedTokens whole = rows(c.with_image);
    const ModelConfig config = c.gated ? gated_model() : model();
    const Gradients one = tower_gradients({}, false, whole, config);
    const int64_t parts = c.ulysses * c.cp, size = parts * c.tp;
    std::vector<Gradients> ranks(static_cast<size_t>(size));
    check_all(size, [&](Communicator& world) {
      const int64_t rank = world.rank(), of = rank / c.tp;
      std::vector<int64_t> sharing, peers;
      for (int64_t part = 0; part < parts; ++part) sharing.push_back(part * c.tp + rank % c.tp);
      for (int64_t t = 0; t < c.tp; ++t) peers.push_back(of * c.tp + t);
      const auto rows_comm = world.split("rows" + std::to_string(rank % c.tp), sharing);
      const auto tp_comm = world.split("matrices" + std::to_string(of), peers);
      const Exchange exchange(*tp_comm, true);
      const ContextGroup context(*rows_comm);
      std::optional<SequenceGroup> sequence;
      if (c.ulysses > 1) sequence.emplace(world, c.ulysses, config.num_heads);
      ranks[static_cast<size_t>(rank)] = tower_gradients(
          {c.tp > 1 ? &exchange : nullptr, sequence ? &*sequence : nullptr, c.cp > 1 ? &context : nullptr},
          c.cp > 2, whole, config);
    });
    int64_t computed = 0;
    for (int64_t rank = 0; rank < size; ++rank) {
      const Gradients& own = ranks[static_cast<size_t>(rank)];
      const at::Tensor expected = one.hidden.index_select(0, own.predictions);
      CHECK(c.tp > 1 || own.hidden.equal(expected));
      CHECK(own.hidden.numel() == 0 || (own.hidden - expected).abs().max().item<double>() < 1e-5);
      if (rank % c.tp == 0) computed += own.computed;
    }
    CHECK(computed == one.computed);
    for (size_t i = 0; i < one.names.size(); ++i) {
      at::Tensor sum = at::zeros_like(one.values[i]);
      for (int64_t part = 0; part < parts; ++part) {
        const at::Tensor& own = ranks[static_cast<size_t>(part * c.tp)].values[i];
        for (int64_t t = 1; t < c.tp; ++t)
          CHECK(own.equal(ranks[static_cast<size_t>(part * c.tp + t)].values[i]));
        sum.add_(own);
      }
      const double apart = ((sum - one.values[i]).norm() / one.values[i].norm()).item<double>();
      report(apart < 1e-4, __FILE__, __LINE__, one.names[i] + ": " + std::to_string(apart));
    }
  }
}

// Of the three images two are one rank's: it sends as much as a rank sends, twice.
TEST(bytes_of_features_and_their_gradients) {
  set_num_threads(1);
  std::vector<int64_t> sent;
  for (const bool images : {false, true}) {
    PackedTokens whole = rows();
    if (!images) whole.images.clear();
    check_all(2, [&](Communicator& comm) {
      const ContextGroup context(comm);
      tower_gradients({nullptr, nullptr, &context}, false, whole);
      if (comm.rank() == 0) sent.push_back(comm.log().bytes_sent());
    });
  }
  const ModelConfig config = model();
  CHECK(sent[1] - sent[0] == 2 * 4 * 2 * kImageTokens * config.hidden_size * 3);
}

// Counted once, written once, and by nobody but the first stage.
TEST(a_tower_is_a_copy_on_every_rank_of_the_first_stage) {
  const ModelConfig config = model();
  const std::vector<StageRange> parts{{0, 2, true, false}, {2, 3, false, true}};
  for (int64_t rank = 0; rank < 2; ++rank) {
    const ParameterLayout layout = decoder_layout(config, std::nullopt, {.tp = 2, .tp_rank = rank});
    for (const ParameterSpec& spec : layout.parameters) {
      if (spec.info.name.rfind("vision.", 0) != 0) continue;
      CHECK(spec.info.shape == spec.placement.shape);
      for (const Piece& piece : spec.placement.pieces)
        CHECK(piece.copies == 2 && piece.copy == rank && !piece.summed);
      for (int64_t stage = 0; stage < 2; ++stage) {
        const GroupSpec group = layout_at_stage(layout, parts, 2, stage).groups[spec.group];
        CHECK(group.stage == 0 && group.here == (stage == 0) && !group.copy);
      }
    }
  }
}

TEST(layouts_without_it_are_refused) {
  const auto refused = [](const EngineOptions& options, const std::string& part) {
    std::string found;
    try {
      create_engine(options);
    } catch (const Error& error) {
      found = error.what();
    }
    report(found.find(part) != std::string::npos, __FILE__, __LINE__, "refused: " + found);
  };
  EngineOptions options;
  options.model = model();
  options.max_tokens = 512;
  options.pipeline.stages = 2;
  options.pipeline.first_layers = 1;
  refused(options,
          "behind the first 2 layers: expected all of these in the first part of the pipeline, got 1");
  options.pipeline = {};
  options.parallel.cp = 4;
  give_delta(options.model, {true, false, true}, DeltaMatrices::kJoined);
  options.model.vision->rope_axes = {0, 1};
  refused(options, "tp x cp x ulysses to divide the 2 key heads of the linear attention");
}

// Tiles of 128 rows hold whole tokens of images.
TEST(a_merge_that_tears_tokens_apart_is_refused) {
  ModelConfig c = model();
  validate(c);
  for (const int64_t side : {3, 0, -1, -2}) {
    c.vision->merge_size = side;
    CHECK_THROWS(validate(c), "vision.merge_size whose square divides 128, got " + std::to_string(side));
  }
}

TEST(features_of_inner_layers_beside_a_merger_with_a_gate_are_refused) {
  ModelConfig c = gated_model();
  validate(c);
  c.vision->deepstack_layers = {0};
  CHECK_THROWS(validate(c), "vision.gated_merger_size >= 0, and 0 beside vision.deepstack_layers, got 12");
}

TEST_MAIN()
