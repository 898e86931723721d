// The keys of one row of paged attention in parts that different blocks of a GPU take, and how their
// softmaxes come together.
#pragma once

#include <cmath>

#include "base/host_device.h"
#include "kernels/paged_attention.h"

namespace troupe::kernels {

// Pages of a part: 512 positions. Few rows with long contexts then keep all of a GPU busy, and what a part
// leaves behind is a hundredth of what it reads. A constant, so that a row's bits depend on its own length
// alone.
constexpr int kSplitPages = 16;

// The pages that a row sees, and the part of them that is part `split`: [begin, end), empty behind the last
// one.
struct KeySplits {
  int first_page, num_pages;

  // length: positions in all; window: how many of them the row sees, 0 = all.
  TROUPE_HOST_DEVICE KeySplits(int length, int window)
      : first_page(window > 0 && length > window ? (length - window) / static_cast<int>(kPagePositions) : 0),
        num_pages((length + static_cast<int>(kPagePositions) - 1) / static_cast<int>(kPagePositions)) {}

  TROUPE_HOST_DEVICE int count() const { return (num_pages - first_page + kSplitPages - 1) / kSplitPages; }
  TROUPE_HOST_DEVICE int begin(int split) const { return first_page + split * kSplitPages; }
  TROUPE_HOST_DEVICE int end(int split) const {
    const int last = begin(split) + kSplitPages;
    return last < num_pages ? last : num_pages;
  }
  // The most that a row with at most `pages` pages can have.
  static int most(int pages, int window) {
    const int seen = (window - 1) / static_cast<int>(kPagePositions) + 2;  // it may begin and end in a page
    return ((window > 0 && seen < pages ? seen : pages) + kSplitPages - 1) / kSplitPages;
  }
};

// Of the softmax over a part: the largest score and the sum of exp(score - top). Values come with the same
// factor.
struct SoftmaxPart {
  float top, sum;
};

// The factor of a part's sums beside those of others of which the largest score is `top`.
TROUPE_HOST_DEVICE inline float factor_of(const SoftmaxPart& part, float top) {
  return part.sum > 0 ? expf(part.top - top) : 0.0f;
}

}  // namespace troupe::kernels
