// Pixels into rows, in the order of transformers' image processor of Qwen2-VL.
#include "model/image_patches.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "base/parallel.h"
#include "base/simulated.h"

namespace troupe {

namespace {

// Places among the learned positions of one axis, and how much each counts: of `index` among `size` patches.
struct Taps {
  std::array<int64_t, 4> place;
  std::array<float, 4> weight;
};

// The first two.
Taps linear_taps(int64_t index, int64_t size, int64_t side) {
  // float32, as transformers has it.
  const float source =
      static_cast<float>(index * (side - 1)) / static_cast<float>(std::max<int64_t>(size - 1, 1));
  const float below = std::floor(source);
  const auto first = static_cast<int64_t>(below);
  const float beyond = source - below;
  return {{first, std::min(first + 1, side - 1)}, {1 - beyond, beyond}};
}

// All four: cubic convolution (Keys, 1981) with a = -0.75; beyond the edges lies what is at them. As
// grid_sample of PyTorch has it with align_corners false.
Taps cubic_taps(int64_t index, int64_t size, int64_t side) {
  constexpr double kA = -0.75;
  const auto near = [](double d) { return ((kA + 2) * d - (kA + 3)) * d * d + 1; };
  const auto far = [](double d) { return ((kA * d - 5 * kA) * d + 8 * kA) * d - 4 * kA; };
  const double source =
      (static_cast<double>(index) + 0.5) / static_cast<double>(size) * static_cast<double>(side) - 0.5;
  const double below = std::floor(source), beyond = source - below;
  const std::array<double, 4> weights{far(1 + beyond), near(beyond), near(1 - beyond), far(2 - beyond)};
  Taps taps{};
  for (size_t tap = 0; tap < 4; ++tap) {
    const int64_t place = static_cast<int64_t>(below) + static_cast<int64_t>(tap) - 1;
    taps.place[tap] = std::clamp<int64_t>(place, 0, side - 1);
    taps.weight[tap] = static_cast<float>(weights[tap]);
  }
  return taps;
}

// The tokens of an image in the order of its windows: squares of `side` tokens from the upper left corner on,
// those at the lower and right edges smaller, row by row, and so the tokens in each. windows: takes how many
// tokens each has. side 0: one window is all of the image.
std::vector<int64_t> in_windows(int64_t height, int64_t width, int64_t side, std::vector<int64_t>& windows) {
  std::vector<int64_t> tokens;
  const int64_t tall = side > 0 ? side : height, wide = side > 0 ? side : width;
  for (int64_t top = 0; top < height; top += tall) {
    for (int64_t left = 0; left < width; left += wide) {
      const int64_t bottom = std::min(top + tall, height), right = std::min(left + wide, width);
      for (int64_t row = top; row < bottom; ++row)
        for (int64_t column = left; column < right; ++column) tokens.push_back(row * width + column);
      windows.push_back((bottom - top) * (right - left));
    }
  }
  return tokens;
}

}  // namespace

ImageTokens image_tokens(const VisionConfig& config) {
  return {static_cast<int32_t>(config.image_token), config.patch_size * config.merge_size};
}

ImagePatches image_patches(const VisionConfig& config, const std::vector<Image>& images) {
  const int64_t patch = config.patch_size, merge = config.merge_size, frames = config.temporal_patch_size;
  const int64_t area = patch * patch, merged = merge * merge, side = config.position_side;
  ImagePatches all;
  int64_t rows = 0;
  std::vector<int64_t> token_rows;
  std::vector<std::vector<int64_t>> tokens;  // of each image, in the order of its rows
  for (const Image& image : images) {
    const int64_t height = image.height / patch / merge, width = image.width / patch / merge;
    std::vector<int64_t> windows;
    tokens.push_back(in_windows(height, width, config.window_side, windows));
    const int64_t first = rows / merged, count = merged * height * width;
    all.segments.push_back({rows, rows + count, -1});
    int64_t begin = rows;
    for (const int64_t window : windows) {
      if (config.window_side > 0) all.windows.push_back({begin, begin + merged * window, -1});
      begin += merged * window;
    }
    token_rows.resize(token_rows.size() + tokens.back().size());
    int64_t* const of_image = token_rows.data() + token_rows.size() - tokens.back().size();
    for (size_t i = 0; i < tokens.back().size(); ++i)
      of_image[tokens.back()[i]] = first + static_cast<int64_t>(i);
    rows += round_up(count, kRowTile);
  }
  all.token_rows = at::tensor(token_rows, at::kLong);
  const bool without_pixels = simulated(images.front().pixels);
  const auto zeros = [&](at::IntArrayRef shape, at::ScalarType type) {
    if (!without_pixels) return at::zeros(shape, type);
    // Beside a GPU they lie on the host, where nobody touches their pages.
    return at::empty(shape, at::device(SimulateGpu::active() ? at::kCPU : at::kMeta).dtype(type));
  };
  all.values = zeros({rows, config.patch_values()}, at::kFloat);
  const auto taps = config.cubic_positions ? cubic_taps : linear_taps;
  const size_t reach = config.cubic_positions ? 4 : 2;
  for (size_t tap = 0; side > 0 && tap < reach * reach; ++tap) {
    all.positions.push_back(zeros({rows}, at::kLong));
    all.weights.push_back(zeros({rows}, at::kFloat));
  }
  const int64_t axis = config.head_dim() / 4;
  const at::Tensor angles = zeros({rows, 2 * axis}, at::kDouble);
  double* angle = without_pixels ? nullptr : angles.data_ptr<double>();
  // As transformers' fast processors fuse the scaling of bytes with mean and deviation: in float32.
  std::array<float, 3> mean, deviation;
  for (size_t channel = 0; channel < 3; ++channel) {
    mean[channel] = static_cast<float>(config.pixel_mean[channel] * 255);
    deviation[channel] = static_cast<float>(config.pixel_std[channel] * 255);
  }
  for (size_t i = 0; !without_pixels && i < images.size(); ++i) {
    const Image& image = images[i];
    const int64_t height = image.height / patch, width = image.width / patch;
    const auto* pixels = image.pixels.const_data_ptr<uint8_t>();
    parallel_items(all.segments[i].size(), [&](int64_t within) {
      const int64_t block = tokens[i][static_cast<size_t>(within / merged)], inside = within % merged;
      const int64_t row = block / (width / merge) * merge + inside / merge;
      const int64_t column = block % (width / merge) * merge + inside % merge;
      const int64_t at = all.segments[i].begin + within;
      float* values = all.values.data_ptr<float>() + at * config.patch_values();
      for (int64_t channel = 0; channel < 3; ++channel) {
        float* first = values + channel * frames * area;
        for (int64_t y = 0; y < patch; ++y) {
          const uint8_t* line = pixels + ((row * patch + y) * image.width + column * patch) * 3 + channel;
          for (int64_t x = 0; x < patch; ++x) {
            const auto c = static_cast<size_t>(channel);
            first[y * patch + x] = (static_cast<float>(line[3 * x]) - mean[c]) / deviation[c];
          }
        }
        for (int64_t frame = 1; frame < frames; ++frame) std::copy(first, first + area, first + frame * area);
      }
      if (side > 0) {
        const Taps vertical = taps(row, height, side), horizontal = taps(column, width, side);
        for (size_t tap = 0; tap < all.positions.size(); ++tap) {
          const size_t v = tap / reach, h = tap % reach;
          all.positions[tap].data_ptr<int64_t>()[at] = vertical.place[v] * side + horizontal.place[h];
          all.weights[tap].data_ptr<float>()[at] = vertical.weight[v] * horizontal.weight[h];
        }
      }
      for (int64_t f = 0; f < axis; ++f) {
        const double frequency = config.rope_inv_freq[static_cast<size_t>(f)];
        angle[at * 2 * axis + f] = static_cast<double>(row) * frequency;
        angle[at * 2 * axis + axis + f] = static_cast<double>(column) * frequency;
      }
    });
  }
  all.cos = angles.cos().to(at::kFloat);
  all.sin = angles.sin().to(at::kFloat);
  return all;
}

}  // namespace troupe
