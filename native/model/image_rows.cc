// Features in their rows; rotary tables by row.
#include "model/image_rows.h"

#include <ATen/ATen.h>

namespace troupe {

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
