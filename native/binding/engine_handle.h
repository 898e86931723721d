// An engine that JavaScript holds: closed once, refused afterwards.
#pragma once

#include <memory>
#include <mutex>
#include <string>

#include "binding/dto.h"
#include "binding/setup.h"
#include "engine/engine.h"

namespace troupe::binding {

// Where an engine lives between createEngine and close. The engine is built, used and destroyed on the
// engine thread; the mutex only keeps abort() from meeting its destruction.
class EngineSlot {
 public:
  // Engine thread.
  void open(std::unique_ptr<Engine> engine);
  Engine& engine() { return *engine_; }
  void destroy();

  // JS thread.
  bool closed() const { return closed_; }
  void close() { closed_ = true; }        // later calls are refused; destruction is queued by the caller
  void abort(const std::string& reason);  // nothing happens when there is no engine (any more)

 private:
  bool closed_ = false;
  std::mutex mutex_;
  std::unique_ptr<Engine> engine_;
};

// [Note: handles] An engine dies in one of three ways: close(); the garbage collector finds the handle
// unreachable, and its finalizer queues the destruction; the environment ends (environment.cc).
Napi::Value make_handle(Napi::Env env, const std::shared_ptr<EngineSlot>& slot);

// The slot of an open handle. kInvalidArgument for anything that is no handle, kClosed after close().
std::shared_ptr<EngineSlot> open_slot(const Field& handle);
// The same, closed or not.
std::shared_ptr<EngineSlot> any_slot(const Field& handle);

}  // namespace troupe::binding
