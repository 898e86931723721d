// Images as the rows of a tower: patches, learned positions, rotary tables.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "batch/images.h"
#include "kernels/attention.h"
#include "model/model_config.h"

namespace troupe {

// Rows of patches, one image behind another, each padded with zeros to whole tiles of rows (kRowTile), so
// that a tile has rows of one image alone. The patches that one token stands for lie together, row by row;
// tokens in the order of ImageSpan, or, of a tower with windows, of the windows and within each of them. All
// on the CPU, T rows.
struct ImagePatches {
  at::Tensor values;       // [T, channels * frames * patch rows * patch columns] float32, normalised
  ops::Segments segments;  // one for each image, without its padding
  ops::Segments windows;   // those of each image; none without windows
  // Interpolation in the square of learned positions: so many of them for each row and their weights, in
  // which what is padded has none. Four, bilinear with corners on corners, or 16
  // (VisionConfig::cubic_positions), bicubic with centres on centres; none without learned positions.
  std::vector<at::Tensor> positions;  // [T] int64
  std::vector<at::Tensor> weights;    // [T] float32
  at::Tensor cos, sin;    // [T, head_dim / 2] float32: the first half by row, the second by column
  at::Tensor token_rows;  // [tokens] int64, in the order of ImageSpan: which of T / merge_size^2 rows
};

// images: at least one. Of pixels without memory (base/simulated.h) the arrays are made, and nothing is
// written.
ImagePatches image_patches(const VisionConfig& config, const std::vector<Image>& images);

// Of `config`: what its tokens stand for.
ImageTokens image_tokens(const VisionConfig& config);

}  // namespace troupe
