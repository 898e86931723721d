// The keys of segments as arrays on a device.
#include "kernels/key_layout.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <numeric>

#include "base/upload.h"

namespace troupe::ops {

namespace {

// Several arrays on their way to a device in one.
class Upload {
 public:
  void add(at::Tensor& target, std::vector<int32_t> values) {
    values_.insert(values_.end(), values.begin(), values.end());
    targets_.push_back({&target, static_cast<int64_t>(values.size())});
  }
  void send(at::Device device) {
    const at::Tensor all = upload(at::tensor(values_, at::kInt), device);
    int64_t begin = 0;
    for (const auto& [target, size] : targets_) {
      *target = all.narrow(0, begin, size);
      begin += size;
    }
  }

 private:
  struct Target {
    at::Tensor* tensor;
    int64_t size;
  };
  std::vector<int32_t> values_;
  std::vector<Target> targets_;
};

}  // namespace

KeyLayout::KeyLayout(const Segments& segments, at::Device device)
    : segments_(segments), share_(segments.share) {
  std::vector<int32_t> queries{0}, keys{0}, rows;
  const auto add_rows = [&](int64_t begin, int64_t end) {
    const size_t before = rows.size();
    rows.resize(before + static_cast<size_t>(end - begin));
    std::iota(rows.begin() + static_cast<int64_t>(before), rows.end(), static_cast<int32_t>(begin));
  };
  bool apart = segments.share.has_value();
  for (const QueryRun& run : segments.query_runs()) {
    const Segment& segment = segments[static_cast<size_t>(run.segment)];
    if (segment.prefix >= 0) {
      apart = true;
      const Segment& prefix = segments[static_cast<size_t>(segment.prefix)];
      add_rows(prefix.begin, prefix.end);
    }
    add_rows(segment.begin, run.end);
    queries.push_back(queries.back() + static_cast<int32_t>(run.size()));
    keys.push_back(static_cast<int32_t>(rows.size()));
    longest_query = std::max(longest_query, run.size());
    longest_key = std::max(longest_key, first_position(segments, segment) + run.end - segment.begin);
  }
  Upload arrays;
  arrays.add(query_offsets, queries);
  arrays.add(key_offsets, keys);
  if (apart) {
    std::vector<int32_t> starts(static_cast<size_t>(real_rows(segments)) + 1, 0);
    for (const int32_t row : rows) ++starts[static_cast<size_t>(row) + 1];
    std::partial_sum(starts.begin(), starts.end(), starts.begin());
    std::vector<int32_t> next(starts.begin(), starts.end() - 1), order(rows.size());
    for (size_t i = 0; i < rows.size(); ++i) {
      order[static_cast<size_t>(next[static_cast<size_t>(rows[i])]++)] = static_cast<int32_t>(i);
    }
    arrays.add(index, rows);
    arrays.add(first, starts);
    arrays.add(source, order);
  }
  arrays.send(device);
}

bool KeyLayout::describes(const Segments& segments, at::Device device) const {
  return query_offsets.device() == device && share_ == segments.share &&
         std::equal(segments_.begin(), segments_.end(), segments.begin(), segments.end());
}

const KeyLayout& Segments::key_layout(at::Device device) const {
  if (!key_layout_ || !key_layout_->describes(*this, device))
    key_layout_ = std::make_shared<const KeyLayout>(*this, device);
  return *key_layout_;
}

}  // namespace troupe::ops
