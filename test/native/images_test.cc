#include "batch/images.h"

#include <ATen/ATen.h>

#include "batch/image_parts.h"
#include "batch/packing.h"
#include "check.h"

using namespace troupe;

namespace {

constexpr ImageTokens kTokens{9, 4};

Image image(int64_t height, int64_t width, int fill) {
  return make_image(height, width, at::full({height * width * 3}, fill, at::kByte), "test");
}

bool refuses(const std::function<void()>& body, const std::string& part) {
  try {
    body();
  } catch (const Error& error) {
    return std::string(error.what()).find(part) != std::string::npos;
  }
  return false;
}

// 3 of text, an image of 2 x 3 tokens, 2 of text, one of 3 x 1, 2 of text.
const std::vector<int32_t> kPrompt{1, 2, 3, 9, 9, 9, 9, 9, 9, 4, 5, 9, 9, 9, 6, 7};

std::vector<ImageSpan> spans() {
  const Image wide = image(8, 12, 1), tall = image(12, 4, 2);
  return image_spans(kPrompt.data(), static_cast<int64_t>(kPrompt.size()), {&wide, &tall}, kTokens, "prompt");
}

}  // namespace

TEST(images_lie_where_their_tokens_are) {
  const std::vector<ImageSpan> found = spans();
  CHECK(found.size() == 2);
  CHECK(found[0].position == 3 && found[0].height == 2 && found[0].width == 3);
  CHECK(found[1].position == 11 && found[1].height == 3 && found[1].width == 1);
}

// What get_rope_index of transformers 5.24 gives for these tokens; the text goes on behind.
TEST(rotary_positions_are_those_of_transformers) {
  const std::vector<int32_t> time{0, 1, 2, 3, 3, 3, 3, 3, 3, 6, 7, 8, 8, 8, 11, 12, 13, 14};
  const std::vector<int32_t> row{0, 1, 2, 3, 3, 3, 4, 4, 4, 6, 7, 8, 9, 10, 11, 12, 13, 14};
  const std::vector<int32_t> column{0, 1, 2, 3, 4, 5, 3, 4, 5, 6, 7, 8, 8, 8, 11, 12, 13, 14};
  const int64_t count = static_cast<int64_t>(time.size());
  for (int64_t from = 0; from < count; ++from) {
    for (int64_t to = from + 1; to <= count; ++to) {
      std::vector<int32_t> t(to - from), r(to - from), c(to - from);
      rotary_positions(spans(), from, to, t.data(), r.data(), c.data());
      CHECK(std::equal(t.begin(), t.end(), time.begin() + from));
      CHECK(std::equal(r.begin(), r.end(), row.begin() + from));
      CHECK(std::equal(c.begin(), c.end(), column.begin() + from));
    }
  }
}

TEST(prompts_that_do_not_fit_their_images_are_refused) {
  const Image wide = image(8, 12, 1), odd = image(8, 10, 1);
  const auto find = [](const std::vector<int32_t>& prompt, const std::vector<const Image*>& images) {
    image_spans(prompt.data(), static_cast<int64_t>(prompt.size()), images, kTokens, "prompt 3");
  };
  CHECK(refuses([&] { find({1, 9, 9}, {&wide}); }, "prompt 3: expected 6 tokens with id 9"));
  CHECK(refuses([&] { find({1, 9, 9}, {}); }, "expected 0 tokens with id 9 for its 0 images, got 2"));
  CHECK(refuses(
      [&] {
        find({9, 9, 9, 1, 9, 9, 9}, {&wide});
      },
      "6 tokens with id 9 in a row for image 0, got 3"));
  CHECK(refuses([&] { find({9, 9, 9, 9, 9, 9}, {&odd}); }, "8 x 10 pixels, expected multiples of the 4"));
  CHECK(refuses([&] { make_image(2, 2, at::zeros({13}, at::kByte), "image 1"); },
                "image 1: expected the 3 bytes of 2 x 2"));
}

TEST(images_are_told_apart) {
  CHECK(same_image(image(8, 12, 1), image(8, 12, 1)));
  CHECK(!same_image(image(8, 12, 1), image(8, 12, 2)));
  CHECK(image(8, 12, 1).hash != image(12, 8, 1).hash);
  CHECK(image(8, 12, 1).hash != image(8, 12, 2).hash);
}

TEST(images_of_one_hash_are_compared) {
  Image one = image(4, 8, 1), other = image(4, 8, 2);
  CHECK(same_image(one, image(4, 8, 1)) && !same_image(one, other));
  other.hash = one.hash;
  CHECK(!same_image(one, other));
}

// The rank with most tokens need not be the first.
TEST(every_rank_has_room_for_the_tokens_of_the_fullest) {
  std::vector<PlacedImage> images;
  for (const int64_t tokens : {3, 5, 4}) images.push_back({image(4, 8, 1), 0, tokens});
  for (const int64_t index : {0, 1}) {
    const ImageParts parts = image_parts(images, index, 2);
    CHECK(parts.room == 7 && parts.places == 14 && parts.own_tokens == (index == 0 ? 5 : 7));
    CHECK((parts.first == std::vector<int64_t>{7 + 4, 0, 7}));
  }
}

// Equal tokens and other images are another prompt; a prompt of two responses is computed once, with its
// image.
TEST(prompts_are_the_same_only_with_their_images) {
  const std::vector<int32_t> one{1, 9, 9, 2, 5, 6};
  TokenBatch batch;
  std::vector<int32_t> tokens;
  for (int i = 0; i < 3; ++i) tokens.insert(tokens.end(), one.begin(), one.end());
  batch.tokens = at::tensor(tokens, at::kInt);
  batch.seq_offsets = at::tensor({0, 6, 12, 18}, at::kInt);
  batch.prompt_lens = at::tensor({4, 4, 4}, at::kInt);
  batch.images.all = {image(4, 8, 1), image(4, 8, 2)};
  batch.images.of_sequence = {{0}, {1}, {0}};
  const BatchLayout layout = check_layout(batch, 10, 64, &kTokens);
  CHECK((layout.same_prompt == std::vector<int64_t>{0, 1, 0}));
  const std::vector<MicroBatch> micros = pack(layout, 0, 3, 64);
  CHECK(micros.size() == 1);
  const PackedTokens packed = gather(batch, layout, micros[0], 32);
  CHECK(packed.images.size() == 2);
  for (const PlacedImage& placed : packed.images) {
    CHECK(placed.tokens == 2);
    CHECK(packed.tokens[placed.row].item<int>() == 9 && packed.tokens[placed.row + 1].item<int>() == 9);
    CHECK(packed.rotary_positions[2][placed.row + 1].item<int>() == 2);
  }
  CHECK(refuses([&] { check_layout(batch, 10, 64); }, "the model reads text alone"));
}

// The largest first, each to the part that has fewest tokens.
TEST(images_are_spread_over_parts_by_their_tokens) {
  std::vector<PlacedImage> images;
  for (const int64_t tokens : {2, 7, 3, 4}) images.push_back({image(4, 4 * tokens, 1), 10, tokens});
  const std::vector<std::vector<int64_t>> widths{{28, 8}, {16, 12}};
  for (int64_t index = 0; index < 2; ++index) {
    const ImageParts parts = image_parts(images, index, 2);
    CHECK(parts.own.size() == 2);
    for (size_t i = 0; i < 2; ++i) CHECK(parts.own[i].width == widths[static_cast<size_t>(index)][i]);
    CHECK(parts.own_tokens == (index == 0 ? 9 : 7));
    CHECK(parts.room == 9 && parts.places == 18);
    CHECK((parts.first == std::vector<int64_t>{7, 0, 13, 9}));
  }
  const ImageParts alone = image_parts(images, 0, 1);
  CHECK(alone.own.size() == 4 && alone.own[1].width == 28 && alone.places == 16);
  CHECK((alone.first == std::vector<int64_t>{0, 2, 9, 12}));
  const ImageParts none = image_parts({images[0]}, 2, 3);
  CHECK(none.own.empty() && none.own_tokens == 0 && none.places == 6);
}

TEST_MAIN()
