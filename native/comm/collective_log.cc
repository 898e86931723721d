#include "comm/collective_log.h"

namespace troupe {

int64_t CollectiveLog::begin(const char* name, const CollectiveLabel& label, int64_t bytes) {
  ++begun_;
  bytes_sent_ += bytes;
  ring_[static_cast<size_t>(begun_ % kKept)] = {begun_, name, label, bytes};
  return begun_;
}

std::string CollectiveLog::describe(int64_t sequence) const {
  if (sequence <= 0) return "none";
  std::string number = "#";
  number += std::to_string(sequence);
  const Entry& entry = ring_[static_cast<size_t>(sequence % kKept)];
  if (entry.sequence != sequence) return number;
  return std::string(entry.name) + " " + number + " of " + entry.label.subject + " (" + entry.label.phase +
         ")";
}

std::string CollectiveLog::recent() const {
  std::string lines;
  for (int64_t sequence = std::max<int64_t>(1, begun_ - kKept + 1); sequence <= begun_; ++sequence) {
    if (!lines.empty()) lines += '\n';
    lines += describe(sequence);
  }
  return lines;
}

}  // namespace troupe
