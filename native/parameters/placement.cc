// Placements from blocks.
#include "parameters/placement.h"

#include <algorithm>
#include <utility>

namespace troupe {

Placement place(std::vector<int64_t> shape, size_t dimension, std::vector<CutBlock> blocks) {
  Placement placement{std::move(shape), dimension, std::move(blocks), {}};
  int64_t local = 0, whole = 0;
  for (const CutBlock& block : placement.blocks) {
    const int64_t first = std::min(block.size, block.index * block.per);
    const int64_t last = std::min(block.size, first + block.per);
    placement.pieces.push_back({local, whole + first, last - first, block.copies, block.copy, block.summed});
    local += block.per;
    whole += block.size;
  }
  return placement;
}

int64_t Placement::local_extent() const {
  int64_t extent = 0;
  for (const CutBlock& block : blocks) extent += block.per;
  return extent;
}

std::vector<int64_t> local_shape(const Placement& placement) {
  std::vector<int64_t> shape = placement.shape;
  shape[placement.dimension] = placement.local_extent();
  return shape;
}

}  // namespace troupe
