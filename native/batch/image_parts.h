// Images of a micro-batch over the ranks that share its rows.
#pragma once

#include <cstdint>
#include <vector>

#include "batch/packing.h"

namespace troupe {

// Which images a rank computes, and where the tokens of all of them lie when those of all ranks are side by
// side: `room` places for each rank, of which the first ones are taken.
struct ImageParts {
  std::vector<Image> own;
  int64_t own_tokens = 0;
  int64_t room = 0;            // tokens of the rank that has most
  int64_t places = 0;          // of all ranks
  std::vector<int64_t> first;  // [images] the place of its first token, which the others follow
};

// Part `index` of `count`: every image whole in one of them, the one that has fewest tokens when it is its
// turn, in the order of their sizes.
ImageParts image_parts(const std::vector<PlacedImage>& images, int64_t index, int64_t count);

}  // namespace troupe
