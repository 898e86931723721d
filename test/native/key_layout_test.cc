#include "kernels/key_layout.h"

#include <ATen/ATen.h>

#include "check.h"
#include "kernels/attention.h"

// Which keys the queries of segments see, as kernels of a GPU are told.

using namespace troupe;

namespace {

ops::Segments segments_of(const std::vector<int64_t>& lengths) {
  std::vector<int64_t> offsets{0};
  for (const int64_t length : lengths) offsets.push_back(offsets.back() + length);
  return ops::separate_segments(offsets);
}

}  // namespace

// Two sequences behind one prompt and one alone: every segment's keys are those of its prefix and its own.
TEST(keys_lie_by_segment) {
  const ops::Segments segments{{0, 2, -1}, {2, 3, 0}, {3, 5, 0}, {5, 8, -1}};
  const ops::KeyLayout& layout = segments.key_layout(at::kCPU);
  const auto equals = [](const at::Tensor& array, const std::vector<int32_t>& expected) {
    return at::equal(array, at::tensor(expected, at::kInt));
  };
  CHECK(equals(layout.query_offsets, {0, 2, 3, 5, 8}));
  CHECK(equals(layout.key_offsets, {0, 2, 5, 9, 12}));
  CHECK(layout.longest_query == 3 && layout.longest_key == 4);
  CHECK(equals(layout.index, {0, 1, 0, 1, 2, 0, 1, 3, 4, 5, 6, 7}));
  CHECK(equals(layout.first, {0, 3, 6, 7, 8, 9, 10, 11, 12}));
  CHECK(equals(layout.source, {0, 2, 5, 1, 3, 6, 4, 7, 8, 9, 10, 11}));
  CHECK(!segments_of({3, 4}).key_layout(at::kCPU).index.defined());
}

// Of a run: those of the prefix and of its segment up to the run's end.
TEST(keys_lie_by_run_of_queries) {
  ops::Segments segments{{0, 2, -1}, {2, 6, 0}, {6, 9, -1}};
  segments.share = std::vector<ops::QueryRun>{{1, 2, 3}, {1, 4, 5}, {2, 7, 9}};
  const ops::KeyLayout& layout = segments.key_layout(at::kCPU);
  const auto equals = [](const at::Tensor& array, const std::vector<int32_t>& expected) {
    return at::equal(array, at::tensor(expected, at::kInt));
  };
  CHECK(equals(layout.query_offsets, {0, 1, 2, 4}));
  CHECK(equals(layout.key_offsets, {0, 3, 8, 11}));
  CHECK(layout.longest_query == 2 && layout.longest_key == 5);
  CHECK(equals(layout.index, {0, 1, 2, 0, 1, 2, 3, 4, 6, 7, 8}));
  CHECK(equals(layout.first, {0, 2, 4, 6, 7, 8, 8, 9, 10, 11}));  // nobody asks for row 5
  segments.share = std::vector<ops::QueryRun>{{2, 6, 9}};
  CHECK(segments.key_layout(at::kCPU).query_offsets.numel() == 2);
}

// A decoder asks for it in every layer of both passes.
TEST(the_layout_of_keys_is_made_once_for_the_same_segments) {
  ops::Segments segments = segments_of({3, 4});
  const ops::KeyLayout* first = &segments.key_layout(at::kCPU);
  CHECK(first == &segments.key_layout(at::kCPU));
  const ops::Segments copy = segments;  // what the backward pass is given
  CHECK(first == &copy.key_layout(at::kCPU));
  CHECK(segments.key_layout(at::kMeta).query_offsets.is_meta());
  segments.push_back({7, 9, 1});
  CHECK(segments.key_layout(at::kCPU).query_offsets.numel() == 4);
  CHECK(copy.key_layout(at::kCPU).query_offsets.numel() == 3);
}

TEST_MAIN()
