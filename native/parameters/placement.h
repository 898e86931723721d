// Which part of a parameter one rank of several holds.
#pragma once

#include <cstdint>
#include <vector>

namespace troupe {

// Part of an extent that is cut by itself (of a fused matrix q, k and v, or gate and up), and the share of it
// that a rank holds: indices [index * per, (index + 1) * per), as far as there are so many.
struct CutBlock {
  int64_t size = 0;
  int64_t per = 0;
  int64_t index = 0;
  int64_t copies = 1;   // neighbouring ranks that hold the same share
  int64_t copy = 0;     // which of them this one is; the first counts it in norms and writes it
  bool summed = false;  // each of them finds a part of its gradient
};

// Indices [whole, whole + count) along one dimension of a whole parameter, which lie at [local, local +
// count) of what a rank holds.
struct Piece {
  int64_t local = 0;
  int64_t whole = 0;
  int64_t count = 0;
  int64_t copies = 1;
  int64_t copy = 0;
  bool summed = false;
};

// Pieces of a parameter along one dimension: of a fused matrix several ranges of rows (q, k and v; gate and
// up), of a row-parallel weight a range of columns, of a parameter that is not cut one piece that is all of
// it. Where a size does not divide, the last ranks hold less and have zeros behind it, so that all of them
// hold tensors of one shape. Parameters have one or two dimensions.
struct Placement {
  std::vector<int64_t> shape;  // of the whole
  size_t dimension = 0;        // along which it is cut
  std::vector<CutBlock> blocks;
  std::vector<Piece> pieces;  // of the blocks, in their order

  // Along the dimension, of what the rank holds.
  int64_t local_extent() const;
  // Elements of a row of the whole.
  int64_t width() const { return shape.size() < 2 ? 1 : shape[1]; }
  // Calls body(local, whole, count, piece) for runs of elements that lie together in row-major order, both in
  // what the rank holds and in the whole.
  template <typename Body>
  void for_each_run(Body&& body) const {
    const int64_t columns = width(), own_columns = local_extent();
    for (const Piece& piece : pieces) {
      if (dimension == 0) {
        body(piece.local * columns, piece.whole * columns, piece.count * columns, piece);
        continue;
      }
      for (int64_t row = 0; piece.count > 0 && row < shape[0]; ++row) {
        body(row * own_columns + piece.local, row * columns + piece.whole, piece.count, piece);
      }
    }
  }
};

// The blocks one behind the other: the extent along `dimension` is the sum of their sizes in `shape`, that of
// the whole, and the sum of `per` in what the rank holds.
Placement place(std::vector<int64_t> shape, size_t dimension, std::vector<CutBlock> blocks);
std::vector<int64_t> local_shape(const Placement& placement);

}  // namespace troupe
