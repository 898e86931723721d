#include <ATen/ATen.h>

#include <utility>

#include "check.h"
#include "model/image_patches.h"
#include "rollout_answers.h"
#include "small_tower.h"

// Prompts with images, which a rollout computes in chunks, gives up and finds.

using namespace troupe;
using namespace troupe::test;

namespace {

constexpr int64_t kImageToken = kVocabulary - 1, kSide = 32, kImageTokens = 64;

ModelConfig model_with_images() {
  ModelConfig c = long_model("qwen3");
  c.max_positions = 400;
  c.vision = small_tower(kImageToken);
  return c;
}

// `text` tokens before each of the images, and behind them.
RolloutRequest request_with(uint64_t id, const std::vector<int64_t>& images, int64_t text) {
  Tokens tokens;
  RolloutRequest r = request(id, {}, 6);
  const auto write = [&] {
    for (int64_t i = 0; i < text; ++i) tokens.push_back(static_cast<int32_t>(i * 7 % kImageToken));
  };
  for (const int64_t image : images) {
    write();
    tokens.insert(tokens.end(), kImageTokens, kImageToken);
    const at::Tensor pixels = at::arange(kSide * kSide * 3).mul(5 + 2 * image).remainder(251).to(at::kByte);
    r.images.push_back(make_image(kSide, kSide, pixels, "test"));
  }
  write();
  r.prompt = std::move(tokens);
  return r;
}

}  // namespace

TEST(other_images_say_other_things_and_each_the_same_in_chunks) {
  SmallModel model(model_with_images());
  std::vector<RolloutRequest> requests;
  for (uint64_t id = 0; id < 4; ++id) {
    requests.push_back(request_with(id, {static_cast<int64_t>(id / 2)}, 20));
    requests.back().seed = 5;
  }
  const Answers together = run(model.transformer, requests);
  CHECK(together.at(0) == together.at(1) && together.at(2) == together.at(3));
  CHECK(together.at(0).log_probs != together.at(2).log_probs);
  Rollout rollout(model.transformer, {.max_step_tokens = 30});
  CHECK(run(rollout, requests) == together);
}

// It has found the first of its images, is given up within the second, and then finds nothing.
TEST(what_is_preempted_within_an_image_is_computed_again_from_the_first) {
  SmallModel model(model_with_images());
  const RolloutRequest first = request_with(1, {3}, 20), both = request_with(2, {3, 4}, 20);
  const Answers alone = run(model.transformer, {both});
  Rollout rollout(model.transformer, {.max_step_tokens = 40});
  run(rollout, {first});
  rollout.submit(both);
  rollout.step();
  CHECK(rollout.park(/*preempt=*/true));
  const Answers answers = finish(rollout);
  CHECK(answers.at(2) == alone.at(2) && answers.at(2).cached == 96);
}

TEST_MAIN()
