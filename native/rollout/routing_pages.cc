// Rows of choices into pages, and out of them.
#include "rollout/routing_pages.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cstring>

namespace troupe {

std::vector<uint8_t>& RoutingPages::page(int64_t index) {
  const auto at = static_cast<size_t>(index);
  if (pages_.size() <= at) pages_.resize(at + 1);
  if (pages_[at].empty()) pages_[at].resize(static_cast<size_t>(kPagePositions) * row_bytes());
  return pages_[at];
}

at::Tensor RoutingPages::rows(int64_t count, at::Device device) const {
  return at::zeros({count, shape_.width()}, at::TensorOptions().dtype(shape_.dtype()).device(device));
}

void RoutingPages::store(const std::vector<KvSlot>& slots, const at::Tensor& rows) {
  const at::Tensor here = rows.cpu();
  const auto* source = static_cast<const uint8_t*>(here.const_data_ptr());
  for (const KvSlot& slot : slots) {
    std::memcpy(page(slot.page).data() + static_cast<size_t>(slot.slot) * row_bytes(), source, row_bytes());
    source += row_bytes();
  }
}

void RoutingPages::copy_page(int64_t from, int64_t to) {
  page(std::max(from, to));  // before references are taken
  page(to) = page(from);
}

std::vector<uint8_t> RoutingPages::read(const std::vector<int32_t>& pages, int64_t count) const {
  std::vector<uint8_t> all;
  all.reserve(static_cast<size_t>(count) * row_bytes());
  for (int64_t position = 0; position < count; position += kPagePositions) {
    const std::vector<uint8_t>& page =
        pages_[static_cast<size_t>(pages[static_cast<size_t>(position / kPagePositions)])];
    const auto bytes = static_cast<size_t>(std::min(kPagePositions, count - position)) * row_bytes();
    all.insert(all.end(), page.begin(), page.begin() + static_cast<std::ptrdiff_t>(bytes));
  }
  return all;
}

}  // namespace troupe
