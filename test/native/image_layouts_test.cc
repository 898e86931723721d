// A tower for images on ranks that share the matrices of its decoder, and in a pipeline.
#include "base/parallel.h"
#include "check.h"
#include "engine/engine.h"
#include "model/image_patches.h"
#include "model/stage_layout.h"
#include "model/transformer.h"
#include "ranks.h"
#include "small_model.h"

using namespace troupe;
using namespace troupe::test;

namespace {

constexpr int64_t kImageToken = kVocabulary - 1, kSide = 32, kImageTokens = 64;

ModelConfig model() {
  ModelConfig c = small("qwen3");
  c.max_positions = 256;
  give_windows(c, {0, 0, 0});
  c.vision = VisionConfig{.num_layers = 2,
                          .hidden_size = 16,
                          .num_heads = 2,
                          .intermediate_size = 24,
                          .patch_size = 2,
                          .temporal_patch_size = 2,
                          .merge_size = 2,
                          .position_side = 4,
                          .rope_inv_freq = {1, 0.1},
                          .deepstack_layers = {0, 1},
                          .pixel_mean = {0.5, 0.5, 0.5},
                          .pixel_std = {0.5, 0.5, 0.5},
                          .image_token = kImageToken,
                          .rope_axes = {0, 1, 2, 0}};
  return c;
}

// Rows [256, 512), which are those of the second of two ranks, begin in the second image.
PackedTokens rows() {
  constexpr int64_t kSequences = 3, kText = 60, kLength = kText + kImageTokens + 21;
  TokenBatch batch;
  std::vector<int32_t> tokens, offsets{0};
  for (int64_t i = 0; i < kSequences; ++i) {
    for (int64_t t = 0; t < kLength; ++t) {
      const bool image = t >= kText && t < kText + kImageTokens;
      tokens.push_back(static_cast<int32_t>(image ? kImageToken : (7 * t + 11 * i) % kImageToken));
    }
    offsets.push_back(static_cast<int32_t>(tokens.size()));
    const at::Tensor pixels = at::arange(kSide * kSide * 3).mul(5 + 2 * i).remainder(251).to(at::kByte);
    batch.images.all.push_back(make_image(kSide, kSide, pixels, "test"));
    batch.images.of_sequence.push_back({static_cast<int32_t>(i)});
  }
  batch.tokens = at::tensor(tokens, at::kInt);
  batch.seq_offsets = at::tensor(offsets, at::kInt);
  batch.prompt_lens = at::full({kSequences}, kText + kImageTokens + 1, at::kInt);
  const ImageTokens images = image_tokens(*model().vision);
  const BatchLayout layout = check_layout(batch, kVocabulary, 256, &images);
  const PackedTokens packed = gather(batch, layout, pack(layout, 0, kSequences, 4096).front(), 512);
  CHECK(packed.images[1].row < 256 && packed.images[1].row + kImageTokens > 256);
  return packed;
}

struct Gradients {
  at::Tensor hidden;
  std::vector<std::string> names;  // of parameters that are on every rank
  std::vector<at::Tensor> values;
};

Gradients tower_gradients(const Exchange* exchange, bool checkpointing) {
  const ModelConfig config = model();
  ParameterStore store(decoder_layout(config, std::nullopt, part_of(exchange)), at::kCPU, at::kFloat,
                       /*training=*/true, /*seed=*/7);
  store.initialize_missing();
  Transformer transformer(config, store, at::kCPU, at::kFloat, nullptr, nullptr, std::nullopt, exchange);
  Stage& stage = transformer.stages().front();
  const PackedTokens packed = rows();
  StagePass pass(true, checkpointing);
  Gradients found;
  found.hidden = stage.forward(&packed, {}, pass);
  stage.enter_head_backward(pass);
  stage.backward(at::arange(found.hidden.numel(), at::kFloat).sin().view(found.hidden.sizes()), pass);
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
  const Gradients one = tower_gradients(nullptr, false);
  CHECK(one.names.size() == 2 + 1 + 2 * 12 + 3 * 6);
  for (const bool sequence_parallel : {false, true}) {
    std::vector<Gradients> ranks(2);
    check_all(2, [&](Communicator& comm) {
      const Exchange exchange(comm, sequence_parallel);
      ranks[static_cast<size_t>(comm.rank())] = tower_gradients(&exchange, sequence_parallel);
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
    for (const std::string& error : on_ranks(2, [&](Communicator& comm) {
           create_engine(options, std::shared_ptr<Communicator>(std::shared_ptr<void>(), &comm));
         }))
      report(error.find(part) != std::string::npos, __FILE__, __LINE__, error);
  };
  EngineOptions options;
  options.model = model();
  options.max_tokens = 512;
  options.pipeline.stages = 2;
  options.pipeline.first_layers = 1;
  refused(options,
          "behind the first 2 layers: expected all of these in the first part of the pipeline, got 1");
  options.pipeline = {};
  options.parallel.cp = 2;
  refused(options, "do not share the rows of a model that reads images: expected cp and ulysses of 1, got 2");
}

TEST_MAIN()
