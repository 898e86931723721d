// Features in their rows; rotary tables by row.
#include "model/image_rows.h"

#include <ATen/ATen.h>

#include <array>

#include "base/upload.h"

namespace troupe {

ImageRows ImageRows::between(const std::vector<PlacedImage>& images, const ImageFeatures& features,
                             int64_t begin, int64_t end) {
  const at::Device device = features.embeddings.device();
  std::vector<int64_t> rows, tokens;
  int64_t token = 0;
  for (const PlacedImage& image : images) {
    for (int64_t row = image.row; row < image.row + image.tokens; ++row, ++token) {
      if (row < begin || row >= end) continue;
      rows.push_back(row - begin);
      tokens.push_back(token);
    }
  }
  const auto index = [&](const std::vector<int64_t>& values) {
    return upload(at::tensor(values, at::kLong), device);
  };
  ImageRows own{index(rows), features, index(tokens)};
  if (static_cast<int64_t>(tokens.size()) == token) return own;
  own.features.embeddings = features.embeddings.index_select(0, own.tokens);
  for (at::Tensor& stacked : own.features.deepstack) stacked = stacked.index_select(0, own.tokens);
  return own;
}

void ImageRows::place(const at::Tensor& x) const {
  if (any()) x.index_copy_(0, rows, features.embeddings);
}

void ImageRows::add(int64_t layer, const at::Tensor& x) const {
  if (adds(layer)) x.index_add_(0, rows, features.deepstack[static_cast<size_t>(layer)]);
}

RotaryTable rows_that_turn(const RotaryTable& table, const at::Tensor& positions,
                           const std::vector<int64_t>& axes) {
  std::array<at::Tensor, 3> own;  // of each axis, the frequencies that turn by it
  for (size_t axis = 1; axis < own.size(); ++axis) {
    std::vector<int64_t> frequencies;
    for (size_t f = 0; f < axes.size(); ++f)
      if (axes[f] == static_cast<int64_t>(axis)) frequencies.push_back(static_cast<int64_t>(f));
    own[axis] = upload(at::tensor(frequencies, at::kLong), positions.device());
  }
  const auto rows_of = [&](const at::Tensor& values) {
    const at::Tensor rows = values.index_select(0, positions[0]);
    for (size_t axis = 1; axis < own.size(); ++axis) {
      const at::Tensor turned = values.index_select(0, positions[static_cast<int64_t>(axis)]);
      rows.index_copy_(1, own[axis], turned.index_select(1, own[axis]));
    }
    return rows;
  };
  return {rows_of(table.cos), rows_of(table.sin)};
}

}  // namespace troupe
