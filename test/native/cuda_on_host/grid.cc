// Coroutines by <ucontext.h> for their first entry. From then on they change by the compiler's own setjmp,
// which keeps the address and the stack and nothing else: no system call, no signal mask.
#include "cuda_on_host/grid.h"

#include <ucontext.h>

#include <algorithm>
#include <array>
#include <exception>
#include <memory>
#include <mutex>
#include <numeric>
#include <random>
#include <stdexcept>
#include <utility>
#include <vector>

#include "cuda_on_host/stack_switch.h"

namespace troupe::test::cuda_on_host {

Position running;

namespace {

constexpr size_t kStackBytes = size_t{128} << 10;

enum class State { kReady, kAtBlock, kAtWarp, kReturned };

using Jump = void* [5];

struct Thread {
  ucontext_t entry;
  Jump at;
  bool entered = false;
  std::unique_ptr<char[]> stack;
  StackSwitch change;
};

struct Warp {
  // In turn: no lane is two calls ahead of another.
  std::array<std::array<uint64_t, kWarpSize>, 2> exchanged;
  std::array<bool, kWarpSize> turns{};
  unsigned alive = 0, waiting = 0;
  bool exchanges = false;
};

std::vector<unsigned> order_of(unsigned count, uint64_t launch) {
  std::vector<unsigned> order(count);
  std::iota(order.begin(), order.end(), 0);
  if (launch % 3 == 1) std::reverse(order.begin(), order.end());
  if (launch % 3 == 2) std::shuffle(order.begin(), order.end(), std::mt19937_64(launch));
  return order;
}

// A warp runs as far as it can before the next one does, so that it may be a barrier ahead of it or behind.
struct Order {
  std::vector<unsigned> warps, lanes;
};

// Number i of so many, x first.
Extent place(unsigned i, const Extent& size) {
  if (i < size.x) return {i, 0, 0};
  return {i % size.x, i / size.x % size.y, i / size.x / size.y};
}

class Block {
 public:
  void run(const Grid& grid, Extent block, const Order& order, const std::string& kernel,
           const std::function<void()>& body) {
    const auto count = static_cast<unsigned>(grid.threads.count());
    body_ = &body;
    running.grid = grid;
    running.block = block;
    while (threads_.size() < count) add();
    warps_.assign((count + kWarpSize - 1) / kWarpSize, {});
    for (unsigned i = 0; i < count; ++i) {
      states_[i] = State::kReady;
      ++warps_[i / kWarpSize].alive;
    }
    alive_ = count;
    waiting_ = 0;
    while (alive_ > 0) {
      bool went_on = false;
      for (const unsigned warp : order.warps) {
        while (run_lanes(warp, order.lanes, grid)) went_on = true;
      }
      if (!went_on) stuck(kernel);
    }
  }

  void wait_for_block() {
    states_[running_] = State::kAtBlock;
    if (++waiting_ == alive_) release_block();
    suspend();
  }

  void wait_for_warp(bool exchanges) {
    Warp& warp = warp_of_running();
    states_[running_] = State::kAtWarp;
    warp.exchanges = warp.exchanges || exchanges;
    ++warp.waiting;
    release_warp(running_ / kWarpSize);
    suspend();
  }

  const uint64_t* exchange(uint64_t own) {
    Warp& warp = warp_of_running();
    bool& turn = warp.turns[lane()];
    turn = !turn;
    auto& words = warp.exchanged[turn ? 1 : 0];
    words[lane()] = own;
    wait_for_warp(true);
    return words.data();
  }

  unsigned lane() const { return running_ % kWarpSize; }

 private:
  Warp& warp_of_running() { return warps_[running_ / kWarpSize]; }

  void add() {
    auto thread = std::make_unique<Thread>();
    thread->stack = std::make_unique_for_overwrite<char[]>(kStackBytes);
    getcontext(&thread->entry);
    thread->entry.uc_stack.ss_sp = thread->stack.get();
    thread->entry.uc_stack.ss_size = kStackBytes;
    thread->entry.uc_link = nullptr;
    makecontext(&thread->entry, &Block::enter, 0);
    threads_.push_back(std::move(thread));
    states_.push_back(State::kReturned);
  }

  static void enter();

  // Those that do not wait, each until it does. False: there are none.
  bool run_lanes(unsigned warp, const std::vector<unsigned>& lanes, const Grid& grid) {
    const auto count = static_cast<unsigned>(grid.threads.count());
    bool went_on = false;
    for (const unsigned lane : lanes) {
      const unsigned i = warp * kWarpSize + lane;
      if (i >= count || states_[i] != State::kReady) continue;
      went_on = true;
      resume(i, grid);
      if (failure_) fail();
      if (states_[i] == State::kReturned) leave(i);
    }
    return went_on;
  }

  [[gnu::noinline]] void resume(unsigned i, const Grid& grid) {
    running.thread = place(i, grid.threads);
    running_ = i;
    Thread& thread = *threads_[i];
    if (__builtin_setjmp(scheduler_) != 0) return change_.back();
    change_.leave_for(thread.stack.get(), kStackBytes);
    if (thread.entered) __builtin_longjmp(thread.at, 1);
    thread.entered = true;
    setcontext(&thread.entry);
  }
  [[gnu::noinline]] void suspend() {
    Thread& thread = *threads_[running_];
    if (__builtin_setjmp(thread.at) == 0) {
      thread.change.leave_for_former();
      __builtin_longjmp(scheduler_, 1);
    }
    threads_[running_]->change.back();
  }

  void leave(unsigned i) {
    --warps_[i / kWarpSize].alive;
    --alive_;
    if (alive_ > 0 && waiting_ == alive_) release_block();
    release_warp(i / kWarpSize);
  }

  void release_block() {
    waiting_ = 0;
    std::replace(states_.begin(), states_.end(), State::kAtBlock, State::kReady);
  }

  // Once all lanes are there. A lane that has returned has nothing to exchange: the others are stuck.
  void release_warp(unsigned which) {
    Warp& warp = warps_[which];
    if (warp.waiting == 0 || warp.waiting < (warp.exchanges ? kWarpSize : warp.alive)) return;
    warp.waiting = 0;
    warp.exchanges = false;
    const size_t first = size_t{which} * kWarpSize;
    for (size_t i = first; i < std::min(first + kWarpSize, threads_.size()); ++i) {
      if (states_[i] == State::kAtWarp) states_[i] = State::kReady;
    }
  }

  // The threads are left where they are: what is on their stacks is not destroyed.
  [[noreturn]] void fail() {
    threads_.clear();
    states_.clear();
    std::rethrow_exception(std::exchange(failure_, nullptr));
  }
  [[noreturn]] void stuck(const std::string& kernel) {
    const auto waiting = [&](State state) {
      return std::to_string(std::count(states_.begin(), states_.end(), state));
    };
    failure_ = std::make_exception_ptr(std::logic_error(
        kernel + ": " + waiting(State::kAtBlock) + " threads of a block wait for the block, " +
        waiting(State::kAtWarp) + " for their warp, and no other thread comes"));
    fail();
  }

  std::vector<std::unique_ptr<Thread>> threads_;
  std::vector<State> states_;
  std::vector<Warp> warps_;
  const std::function<void()>* body_ = nullptr;
  std::exception_ptr failure_;
  Jump scheduler_;
  StackSwitch change_;  // of the scheduler
  unsigned running_ = 0, alive_ = 0, waiting_ = 0;
};

// Of the process, as the arrays in shared memory are (static in a function).
struct Device {
  std::mutex mutex;
  uint64_t launches = 0;
  Block block;
};
Device device;

void Block::enter() {
  Block& block = device.block;
  block.threads_[block.running_]->change.back();
  for (;;) {
    try {
      (*block.body_)();
    } catch (...) {
      block.failure_ = std::current_exception();
    }
    block.states_[block.running_] = State::kReturned;
    block.suspend();
  }
}

}  // namespace

void run_grid(const Grid& grid, const std::string& kernel, const std::function<void()>& body) {
  const std::lock_guard<std::mutex> lock(device.mutex);
  const uint64_t launch = device.launches++;
  const auto warps = static_cast<unsigned>((grid.threads.count() + kWarpSize - 1) / kWarpSize);
  const Order order{order_of(warps, launch), order_of(kWarpSize, launch)};
  for (const unsigned i : order_of(static_cast<unsigned>(grid.blocks.count()), launch)) {
    device.block.run(grid, place(i, grid.blocks), order, kernel, body);
  }
}

void wait_for_block() {
  device.block.wait_for_block();
}
void wait_for_warp() {
  device.block.wait_for_warp(false);
}
unsigned lane() {
  return device.block.lane();
}
const uint64_t* exchange(uint64_t own) {
  return device.block.exchange(own);
}

}  // namespace troupe::test::cuda_on_host
