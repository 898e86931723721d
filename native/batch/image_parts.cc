// Images spread by their tokens.
#include "batch/image_parts.h"

#include <algorithm>
#include <numeric>

namespace troupe {

ImageParts image_parts(const std::vector<PlacedImage>& images, int64_t index, int64_t count) {
  std::vector<size_t> order(images.size());
  std::iota(order.begin(), order.end(), size_t{0});
  // Of one part the order of the rows stays, so that nothing has to be moved.
  if (count > 1) {
    std::stable_sort(order.begin(), order.end(),
                     [&](size_t a, size_t b) { return images[a].tokens > images[b].tokens; });
  }
  ImageParts parts;
  std::vector<int64_t> tokens(static_cast<size_t>(count), 0);
  std::vector<int64_t> part_of(images.size());
  parts.first.resize(images.size());
  for (const size_t i : order) {
    const auto fewest = std::min_element(tokens.begin(), tokens.end());
    part_of[i] = fewest - tokens.begin();
    if (part_of[i] == index) parts.own.push_back(images[i].image);
    parts.first[i] = *fewest;
    *fewest += images[i].tokens;
  }
  parts.own_tokens = tokens[static_cast<size_t>(index)];
  parts.room = *std::max_element(tokens.begin(), tokens.end());
  parts.places = parts.room * count;
  for (size_t i = 0; i < images.size(); ++i) parts.first[i] += part_of[i] * parts.room;
  return parts;
}

}  // namespace troupe
