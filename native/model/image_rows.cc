// Features in their rows; rotary tables by row.
#include "model/image_rows.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <array>
#include <numeric>

#include "base/upload.h"

namespace troupe {

ImageRows ImageRows::of(const std::vector<PlacedImage>& images, const ImageParts& parts,
                        const ImageFeatures& features, const at::Tensor& own) {
  std::vector<int64_t> place_of(static_cast<size_t>(images.back().row + images.back().tokens), -1);
  for (size_t i = 0; i < images.size(); ++i) {
    const auto begin = place_of.begin() + images[i].row;
    std::iota(begin, begin + images[i].tokens, parts.first[i]);
  }
  std::vector<int64_t> rows, places;
  const int64_t* of_micro_batch = own.const_data_ptr<int64_t>();
  for (int64_t row = 0; row < own.size(0); ++row) {
    const auto from = static_cast<size_t>(of_micro_batch[row]);
    if (from >= place_of.size() || place_of[from] < 0) continue;
    rows.push_back(row);
    places.push_back(place_of[from]);
  }
  const at::Device device = features.embeddings.device();
  const auto index = [&](const std::vector<int64_t>& values) {
    return upload(at::tensor(values, at::kLong), device);
  };
  ImageRows taken{index(rows), features, index(places)};
  // One worker has all of them, in their order.
  if (static_cast<int64_t>(places.size()) == features.embeddings.size(0) &&
      std::is_sorted(places.begin(), places.end()))
    return taken;
  taken.features.deepstack.clear();
  taken.features.embeddings = features.embeddings.index_select(0, taken.places);
  for (const at::Tensor& stacked : features.deepstack)
    taken.features.deepstack.push_back(stacked.index_select(0, taken.places));
  return taken;
}

void ImageRows::place(const at::Tensor& x) const {
  if (any()) x.index_copy_(0, rows, features.embeddings);
}

void ImageRows::add(int64_t layer, const at::Tensor& x) const {
  // Without rows, as on a rank of several that has none of them, index_add_ of meta tensors fails.
  if (adds(layer) && rows.size(0) > 0) x.index_add_(0, rows, features.deepstack[static_cast<size_t>(layer)]);
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
