// Learned positions of patches, interpolated to the grids of their images.
#include "model/image_patches.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "check.h"

using namespace troupe;
using namespace troupe::test;

namespace {

constexpr int64_t kSide = 5, kWidth = 3, kPatch = 2;

VisionConfig tower(bool cubic) {
  return {.num_layers = 1,
          .hidden_size = 8,
          .num_heads = 2,
          .intermediate_size = 8,
          .patch_size = kPatch,
          .temporal_patch_size = 1,
          .merge_size = 1,
          .position_side = kSide,
          .cubic_positions = cubic,
          .rope_inv_freq = {1},
          .pixel_mean = {0.5, 0.5, 0.5},
          .pixel_std = {0.5, 0.5, 0.5}};
}

// Of the patches of one image row by row, in a square of learned positions [side^2, kWidth].
at::Tensor interpolated(bool cubic, const at::Tensor& positions, int64_t height, int64_t width) {
  const at::Tensor pixels = at::zeros({height * width * kPatch * kPatch * 3}, at::kByte);
  const Image image = make_image(height * kPatch, width * kPatch, pixels, "test");
  const ImagePatches patches = image_patches(tower(cubic), {image});
  CHECK(patches.positions.size() == (cubic ? 16u : 4u));
  CHECK(patches.positions.size() == patches.weights.size());
  at::Tensor sum = at::zeros({patches.values.size(0), kWidth}, at::kDouble);
  for (size_t tap = 0; tap < patches.positions.size(); ++tap)
    sum += positions.index_select(0, patches.positions[tap]) * patches.weights[tap].unsqueeze(1);
  // What an image is padded with has no position.
  CHECK(sum.narrow(0, height * width, sum.size(0) - height * width).abs().max().item<double>() == 0);
  return sum.narrow(0, 0, height * width);
}

// Coordinates between -1 and 1 of `size` places: with corners on corners, or centres on centres.
at::Tensor places(int64_t size, bool corners) {
  const at::Tensor index = at::arange(size, at::kDouble);
  return corners ? 2 * index / std::max<int64_t>(size - 1, 1) - 1 : (2 * index + 1) / size - 1;
}

}  // namespace

// Grids that are smaller and larger than the square of positions, and as large as it is.
TEST(positions_are_interpolated_as_grid_sample_of_pytorch_does_it) {
  const at::Tensor positions =
      at::arange(kSide * kSide * kWidth, at::kDouble).mul(1.7).sin().view({-1, kWidth});
  const at::Tensor square = positions.view({1, kSide, kSide, kWidth}).permute({0, 3, 1, 2});
  for (const bool cubic : {false, true}) {
    for (const auto& [height, width] :
         std::vector<std::pair<int64_t, int64_t>>{{5, 5}, {1, 1}, {2, 9}, {12, 3}, {7, 31}}) {
      const at::Tensor row = places(height, !cubic).view({-1, 1}).expand({height, width});
      const at::Tensor column = places(width, !cubic).view({1, -1}).expand({height, width});
      const at::Tensor grid = at::stack({column, row}, -1).unsqueeze(0);
      const int64_t mode = cubic ? 2 : 0, border = 1;
      const at::Tensor expected = at::grid_sampler(square, grid, mode, border, /*align_corners=*/!cubic);
      const at::Tensor found = interpolated(cubic, positions, height, width);
      const double apart =
          (found - expected[0].permute({1, 2, 0}).reshape({-1, kWidth})).abs().max().item<double>();
      report(apart < 2e-6, __FILE__, __LINE__,
             std::to_string(height) + " x " + std::to_string(width) + ": " + std::to_string(apart));
    }
  }
}

TEST_MAIN()
