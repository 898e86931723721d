// Spans and positions of images, and their hash.
#include "batch/images.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cstring>
#include <string>

#include "base/error.h"

namespace troupe {

namespace {

constexpr ErrorCode kBad = ErrorCode::kInvalidArgument;

// The finaliser of splitmix64 (Steele, Lea, Flood, "Fast splittable pseudorandom number generators", 2014).
uint64_t mixed(uint64_t x) {
  x += 0x9e3779b97f4a7c15;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

uint64_t hash_of(const Image& image) {
  const auto* bytes = image.pixels.const_data_ptr<uint8_t>();
  const auto size = static_cast<size_t>(image.pixels.numel());
  uint64_t hash = mixed(static_cast<uint64_t>(image.height) << 32 | static_cast<uint64_t>(image.width));
  for (size_t i = 0; i < size; i += sizeof(uint64_t)) {
    uint64_t word = 0;
    std::memcpy(&word, bytes + i, std::min(sizeof(uint64_t), size - i));
    hash = mixed(hash ^ word);
  }
  return hash;
}

}  // namespace

Image make_image(int64_t height, int64_t width, const at::Tensor& pixels, const std::string& what) {
  require(height >= 1 && width >= 1 && pixels.numel() / 3 / width == height &&
              pixels.numel() == height * width * 3,
          kBad, what, ": expected the 3 bytes of ", height, " x ", width, " pixels, got ", pixels.numel());
  Image image{height, width, pixels.view({height, width, 3}), 0};
  image.hash = hash_of(image);
  return image;
}

bool same_image(const Image& a, const Image& b) {
  if (a.pixels.is_same(b.pixels)) return true;
  return a.hash == b.hash && a.height == b.height && a.width == b.width && at::equal(a.pixels, b.pixels);
}

std::vector<ImageSpan> image_spans(const int32_t* prompt, int64_t length,
                                   const std::vector<const Image*>& images, const ImageTokens& tokens,
                                   const std::string& what) {
  std::vector<ImageSpan> spans;
  int64_t wanted = 0;
  for (const Image* image : images) {
    require(image->height % tokens.side == 0 && image->width % tokens.side == 0, kBad, what, ": image ",
            spans.size(), " has ", image->height, " x ", image->width, " pixels, expected multiples of the ",
            tokens.side, " that a token stands for");
    spans.push_back({0, image->height / tokens.side, image->width / tokens.side});
    wanted += spans.back().size();
  }
  const int64_t there = std::count(prompt, prompt + length, tokens.id);
  require(there == wanted, kBad, what, ": expected ", wanted, " tokens with id ", tokens.id, " for its ",
          images.size(), " images, got ", there);
  int64_t position = 0;
  for (size_t i = 0; i < spans.size(); ++i) {
    ImageSpan& span = spans[i];
    position = std::find(prompt + position, prompt + length, tokens.id) - prompt;
    span.position = position;
    const auto others = [&](int32_t token) { return token != tokens.id; };
    const int64_t end = std::min(span.end(), length);
    const int64_t run = std::find_if(prompt + position, prompt + end, others) - prompt - position;
    require(run == span.size(), kBad, what, ": expected ", span.size(), " tokens with id ", tokens.id,
            " in a row for image ", i, ", got ", run);
    position = span.end();
  }
  return spans;
}

void rotary_positions(const std::vector<ImageSpan>& images, int64_t from, int64_t to, int32_t* time,
                      int32_t* row, int32_t* column) {
  int64_t shift = 0, position = from;
  const auto set = [&](int64_t at, int64_t t, int64_t r, int64_t c) {
    time[at - from] = static_cast<int32_t>(t);
    row[at - from] = static_cast<int32_t>(r);
    column[at - from] = static_cast<int32_t>(c);
  };
  const auto text_until = [&](int64_t end) {
    for (; position < end; ++position) set(position, position + shift, position + shift, position + shift);
  };
  for (const ImageSpan& span : images) {
    if (span.position >= to) break;
    text_until(span.position);
    const int64_t begin = span.position + shift;
    for (; position < std::min(span.end(), to); ++position) {
      const int64_t i = position - span.position;
      set(position, begin, begin + i / span.width, begin + i % span.width);
    }
    shift += std::max(span.height, span.width) - span.size();
  }
  text_until(to);
}

std::vector<const Image*> ImageBatch::of(int64_t sequence) const {
  std::vector<const Image*> images;
  if (of_sequence.empty()) return images;
  for (const int64_t image : of_sequence[static_cast<size_t>(sequence)])
    images.push_back(&all[static_cast<size_t>(image)]);
  return images;
}

}  // namespace troupe
