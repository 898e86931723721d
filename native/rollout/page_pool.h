// Which pages are free, who holds the others, and which tokens they are of.
#pragma once

#include <cstdint>
#include <functional>
#include <list>
#include <unordered_map>
#include <utility>
#include <vector>

namespace troupe {

// Pages by number, with counts of those who hold them. A full page may be put into the index under the tokens
// that it holds and all before them (a hash of the chain, and the tokens themselves): a sequence that begins
// with the same tokens takes it instead of computing it. A page that nobody holds stays in the index until
// its place is needed; of these the one goes first that was let go first. A page that a sequence left before
// it was full may be put beside the index as the tail of its chain, one per chain: what goes on from there
// copies it. A page that has never been taken costs no memory: there may be as many as a large slab has room
// for.
class PagePool {
 public:
  explicit PagePool(int64_t num_pages);

  // Called with every page that leaves the index.
  void when_forgotten(std::function<void(int32_t page)> call) { forgotten_ = std::move(call); }

  int64_t size() const { return size_; }
  // Pages that can be taken: never used ones, free ones, and those that only the index knows.
  int64_t available() const { return size_ - known() + static_cast<int64_t>(free_.size() + idle_.size()); }
  int64_t held() const { return size() - available(); }
  int64_t indexed() const { return static_cast<int64_t>(index_.size() + tails_.size()); }

  // A page, held once; -1: none is left.
  int32_t take();
  // The same behind `pages`; false: none is left. Where memory for it runs out no page is taken.
  bool take(std::vector<int32_t>& pages);
  void hold(int32_t page);
  void release(int32_t page);

  // The hash of a chain of full pages; `root` for none.
  static uint64_t chain(uint64_t root, const int32_t* tokens);
  // A root of its own for each value behind `root`.
  static uint64_t with(uint64_t root, uint64_t value);
  // The page of these tokens (kPagePositions of them) behind `parent`, not yet held; -1: none.
  int32_t find(uint64_t parent, const int32_t* tokens) const;
  // The page of these tokens that ends the chain with this hash; -1: none.
  int32_t find_end(uint64_t chain, const int32_t* tokens) const;
  // The caller holds the page, which is not in the index. Nothing happens when there is another of the same
  // tokens.
  void put(uint64_t parent, const int32_t* tokens, int32_t page);
  // The same of one whose first `count` positions hold these tokens, behind `parent`: the newest tail of a
  // chain replaces the one before.
  void put_tail(uint64_t parent, const int32_t* tokens, int64_t count, int32_t page);
  struct Tail {
    int32_t page = -1;
    int64_t count = 0;
    bool whole = false;  // these are all of its tokens
  };
  // The page with the tail of this chain, and how many of its tokens these begin with, at most `count`; page
  // -1: none.
  Tail find_tail(uint64_t parent, const int32_t* tokens, int64_t count) const;
  // Takes all pages out of the index.
  void clear_index();

 private:
  // Pages that have been taken before.
  int64_t known() const { return static_cast<int64_t>(pages_.size()); }
  // One more of them. Where memory runs out (std::bad_alloc) there is not.
  int32_t add();
  // Takes the page out of the index.
  void forget(int32_t page);
  struct Page {
    int32_t holders = 0;
    uint64_t key = 0;  // in the index
    bool indexed = false;
    bool tail = false;                   // of those, with the key of its parent
    std::list<int32_t>::iterator place;  // in idle_ or others_
  };
  struct Entry {
    std::vector<int32_t> tokens;
    int32_t page;
  };

  void erase_entry(int32_t page);

  std::function<void(int32_t)> forgotten_;
  int64_t size_;
  std::vector<Page> pages_;    // the first ones of all, as far as they have been taken
  std::vector<int32_t> free_;  // of these, with room for all
  // Each of them is in one of two lists, so that it goes to the other without memory for it.
  std::list<int32_t> idle_;  // in the index alone, the first to go in front
  std::list<int32_t> others_;
  std::unordered_map<uint64_t, Entry> index_;
  std::unordered_map<uint64_t, Entry> tails_;  // by parent
};

}  // namespace troupe
