// The one thread that runs all native calls of a worker, in order.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>

namespace troupe::binding {

// The one thread that runs native work, in the order of submission: collectives then have one order
// on all ranks, and LibTorch's thread-local state (grad mode, device, OpenMP pool) stays put.
class EngineThread {
 public:
  using Task = std::function<void()>;  // must not throw

  EngineThread() = default;
  EngineThread(const EngineThread&) = delete;
  EngineThread& operator=(const EngineThread&) = delete;
  ~EngineThread() {
    stop([] {});
  }

  // Starts the thread with the first task. After stop() tasks are dropped.
  void submit(Task task);

  // Drops the tasks that have not started, runs `last` on the thread after the current one, and joins.
  void stop(Task last);

 private:
  void loop();

  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<Task> tasks_;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace troupe::binding
