// The queue of native calls and its thread.
#include "binding/engine_thread.h"

#ifdef __linux__
#include <pthread.h>
#endif

#include <utility>

namespace troupe::binding {

void EngineThread::submit(Task task) {
  const std::lock_guard lock(mutex_);
  if (stopping_) return;
  tasks_.push_back(std::move(task));
  if (!thread_.joinable()) thread_ = std::thread([this] { loop(); });
  wake_.notify_one();
}

void EngineThread::stop(Task last) {
  {
    const std::lock_guard lock(mutex_);
    if (stopping_) return;
    stopping_ = true;
    tasks_.clear();
    tasks_.push_back(std::move(last));
    wake_.notify_one();
  }
  if (thread_.joinable()) thread_.join();
}

void EngineThread::loop() {
#ifdef __linux__
  pthread_setname_np(pthread_self(), "troupe-engine");
#endif
  for (;;) {
    Task task;
    {
      std::unique_lock lock(mutex_);
      wake_.wait(lock, [this] { return stopping_ || !tasks_.empty(); });
      if (tasks_.empty()) return;
      task = std::move(tasks_.front());
      tasks_.pop_front();
    }
    task();
  }
}

}  // namespace troupe::binding
