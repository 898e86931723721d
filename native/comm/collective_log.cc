// Entries of the log in words.
#include "comm/collective_log.h"

namespace troupe {

int64_t CollectiveLog::begin(const char* name, const CollectiveLabel& label, int64_t bytes) {
  return record({.number = ++collectives_, .name = name, .label = label, .bytes = bytes});
}

int64_t CollectiveLog::record(Entry entry) {
  entry.sequence = ++begun_;
  bytes_sent_ += entry.bytes;
  ring_[static_cast<size_t>(begun_ % kKept)] = std::move(entry);
  return begun_;
}

const CollectiveLog::Entry* CollectiveLog::find(int64_t sequence) const {
  const Entry& entry = ring_[static_cast<size_t>(sequence % kKept)];
  return sequence > 0 && entry.sequence == sequence ? &entry : nullptr;
}

std::string CollectiveLog::describe(int64_t sequence) const {
  if (sequence <= 0) return "none";
  const Entry* entry = find(sequence);
  if (entry == nullptr) return "one before the last " + std::to_string(kKept);
  std::string text = std::string(entry->name) + " #" + std::to_string(entry->number);
  if (entry->peer >= 0) text += std::string(" ") + entry->way + " rank " + std::to_string(entry->peer);
  return text + " of " + entry->label.subject + " (" + entry->label.phase + ")";
}

}  // namespace troupe
