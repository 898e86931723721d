// Images among the rows of a decoder.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "batch/image_parts.h"
#include "model/block.h"
#include "model/vision_tower.h"

namespace troupe {

// Rows that are tokens of images, and what a tower made of these.
struct ImageRows {
  at::Tensor rows;  // [tokens] int64, each once; undefined: there are none
  ImageFeatures features;
  at::Tensor places;  // [tokens] int64: where they lie by ImageParts; undefined in a generation

  // own [T] int64, on the CPU: which rows of a micro-batch these are, in which images[i].row is the first one
  // of image i. features: of all places.
  static ImageRows of(const std::vector<PlacedImage>& images, const ImageParts& parts,
                      const ImageFeatures& features, const at::Tensor& own);

  bool any() const { return rows.defined(); }
  // Into the embeddings x [T, H].
  void place(const at::Tensor& x) const;
  // To the output x [T, H] of a layer.
  void add(int64_t layer, const at::Tensor& x) const;
  // Whether add() does something there.
  bool adds(int64_t layer) const { return any() && layer < static_cast<int64_t>(features.deepstack.size()); }
  // Of the gradient d [T, H], what belongs to these rows.
  at::Tensor gradient(const at::Tensor& d) const { return d.index_select(0, rows); }
};

// Tables of rows that turn by several positions each: number f of row r of the result is that of row
// positions[axes[f]][r] of `table` (VisionConfig::rope_axes). positions [3, n] int32, on the device of the
// tables.
RotaryTable rows_that_turn(const RotaryTable& table, const at::Tensor& positions,
                           const std::vector<int64_t>& axes);

}  // namespace troupe
