// Counting of holders, and the index by hashes.
#include "rollout/page_pool.h"

#include <algorithm>

#include "base/error.h"
#include "kernels/paged_attention.h"

namespace troupe {
namespace {

using kernels::kPagePositions;

// The finaliser of splitmix64 (Steele, Lea, Flood, "Fast splittable pseudorandom number generators", 2014).
uint64_t mixed(uint64_t x) {
  x += 0x9e3779b97f4a7c15;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

}  // namespace

PagePool::PagePool(int64_t num_pages) : size_(num_pages) {}

int32_t PagePool::add() {
  const auto page = static_cast<int32_t>(known());
  // All memory first; release() takes none.
  if (free_.capacity() <= pages_.size()) free_.reserve(2 * (pages_.size() + 1));
  std::list<int32_t> entry{page};
  pages_.push_back({.place = entry.begin()});
  others_.splice(others_.end(), entry);
  return page;
}

int32_t PagePool::take() {
  int32_t page;
  if (!free_.empty()) {
    page = free_.back();
    free_.pop_back();
  } else if (known() < size_) {
    page = add();
  } else if (!idle_.empty()) {
    page = idle_.front();
    others_.splice(others_.end(), idle_, idle_.begin());
    erase_entry(page);
  } else {
    return -1;
  }
  pages_[static_cast<size_t>(page)].holders = 1;
  return page;
}

bool PagePool::take(std::vector<int32_t>& pages) {
  pages.push_back(-1);
  try {
    pages.back() = take();
  } catch (...) {
    pages.pop_back();
    throw;
  }
  if (pages.back() >= 0) return true;
  pages.pop_back();
  return false;
}

void PagePool::hold(int32_t page) {
  Page& p = pages_[static_cast<size_t>(page)];
  if (p.holders++ == 0) others_.splice(others_.end(), idle_, p.place);
}

void PagePool::release(int32_t page) {
  Page& p = pages_[static_cast<size_t>(page)];
  require(p.holders > 0, ErrorCode::kInternal, "[rollout] page ", page, " is released by nobody");
  if (--p.holders > 0) return;
  if (p.indexed) {
    idle_.splice(idle_.end(), others_, p.place);
  } else {
    free_.push_back(page);
  }
}

uint64_t PagePool::chain(uint64_t root, const int32_t* tokens) {
  uint64_t hash = mixed(root);
  for (int64_t i = 0; i < kPagePositions; i += 2) {
    hash = mixed(hash ^ (static_cast<uint64_t>(static_cast<uint32_t>(tokens[i])) << 32 |
                         static_cast<uint32_t>(tokens[i + 1])));
  }
  return hash;
}

uint64_t PagePool::with(uint64_t root, uint64_t value) {
  return mixed(mixed(root) ^ value);
}

int32_t PagePool::find(uint64_t parent, const int32_t* tokens) const {
  return find_end(chain(parent, tokens), tokens);
}

int32_t PagePool::find_end(uint64_t chain, const int32_t* tokens) const {
  // chain() is one-to-one for the same tokens: these and their hash leave no other parent.
  const auto found = index_.find(chain);
  if (found == index_.end()) return -1;
  const Entry& entry = found->second;
  return std::equal(entry.tokens.begin(), entry.tokens.end(), tokens) ? entry.page : -1;
}

void PagePool::put(uint64_t parent, const int32_t* tokens, int32_t page) {
  Page& p = pages_[static_cast<size_t>(page)];
  const uint64_t key = chain(parent, tokens);
  if (!index_.try_emplace(key, Entry{{tokens, tokens + kPagePositions}, page}).second) return;
  p.indexed = true;
  p.key = key;
}

void PagePool::put_tail(uint64_t parent, const int32_t* tokens, int64_t count, int32_t page) {
  Page& p = pages_[static_cast<size_t>(page)];
  if (const auto before = tails_.find(parent); before != tails_.end()) forget(before->second.page);
  tails_[parent] = {{tokens, tokens + count}, page};
  p.indexed = p.tail = true;
  p.key = parent;
}

PagePool::Tail PagePool::find_tail(uint64_t parent, const int32_t* tokens, int64_t count) const {
  const auto found = tails_.find(parent);
  if (found == tails_.end()) return {};
  const std::vector<int32_t>& there = found->second.tokens;
  const auto limit =
      there.begin() + std::min<std::ptrdiff_t>(static_cast<std::ptrdiff_t>(there.size()), count);
  const int64_t common = std::mismatch(there.begin(), limit, tokens).first - there.begin();
  if (common == 0) return {};
  return {found->second.page, common, common == static_cast<int64_t>(there.size())};
}

void PagePool::erase_entry(int32_t page) {
  Page& p = pages_[static_cast<size_t>(page)];
  (p.tail ? tails_ : index_).erase(p.key);
  p.indexed = p.tail = false;
  if (forgotten_) forgotten_(page);
}

void PagePool::forget(int32_t page) {
  Page& p = pages_[static_cast<size_t>(page)];
  if (!p.indexed) return;
  erase_entry(page);
  if (p.holders > 0) return;
  others_.splice(others_.end(), idle_, p.place);
  free_.push_back(page);
}

void PagePool::clear_index() {
  for (size_t page = 0; page < pages_.size(); ++page) forget(static_cast<int32_t>(page));
}

}  // namespace troupe
