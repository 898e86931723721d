// Features in their rows; rotary tables by row.
#include "model/image_rows.h"

#include <ATen/ATen.h>

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
                           const std::vector<int64_t>& sections) {
  const auto rows_of = [&](const at::Tensor& values) {
    const at::Tensor rows = values.index_select(0, positions[0]);
    for (const int64_t axis : {1, 2}) {
      const int64_t count = sections[static_cast<size_t>(axis)];
      if (count == 0) continue;
      const auto own = [&](const at::Tensor& t) { return t.slice(1, axis, 3 * count, 3); };
      own(rows).copy_(own(values.index_select(0, positions[axis])));
    }
    return rows;
  };
  return {rows_of(table.cos), rows_of(table.sin)};
}

}  // namespace troupe
