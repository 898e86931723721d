// Replaces operator new of the program, once: one of its allocations fails, wherever a test wants.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <exception>
#include <new>
#include <optional>

namespace troupe::test {

// Of this thread: so many more allocations succeed, and the one behind them fails; none: all of them do.
inline thread_local std::optional<int64_t> allocations_left;

inline void* allocate_or_fail(std::size_t size) {
  if (allocations_left && --*allocations_left < 0) {
    allocations_left.reset();
    throw std::bad_alloc();
  }
  void* memory = std::malloc(size == 0 ? 1 : size);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

// Whether `work` needed no more than so many allocations; otherwise one has failed: `work` got over it, or
// threw, perhaps another exception (of a library).
template <typename Work>
bool enough_memory(int64_t allocations, const Work& work) {
  allocations_left = allocations;
  try {
    work();
  } catch (const std::exception&) {
  }
  const bool enough = allocations_left.has_value();
  allocations_left.reset();
  return enough;
}

}  // namespace troupe::test

void* operator new(std::size_t size) {
  return troupe::test::allocate_or_fail(size);
}
void operator delete(void* memory) noexcept {
  std::free(memory);
}
void operator delete(void* memory, std::size_t) noexcept {
  std::free(memory);
}
