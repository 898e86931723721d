// Creation and closing of engines from JavaScript.
#include "binding/engine_handle.h"

#include <utility>

#include "base/error.h"
#include "binding/environment.h"

namespace troupe::binding {

namespace {

constexpr napi_type_tag kEngineTag = {0x8a1f0c6e5b7d4923, 0xb6d2e94f17c3a058};

struct Handle {
  std::shared_ptr<EngineSlot> slot;
  std::shared_ptr<EngineThread> thread;
};

void finalize(Napi::Env, Handle* handle) {
  const std::unique_ptr<Handle> owner(handle);
  if (!handle->slot->closed()) handle->thread->submit([slot = handle->slot] { slot->destroy(); });
}

}  // namespace

void EngineSlot::open(std::unique_ptr<Engine> engine) {
  const std::lock_guard lock(mutex_);
  engine_ = std::move(engine);
}

void EngineSlot::destroy() {
  std::unique_ptr<Engine> engine;
  {
    const std::lock_guard lock(mutex_);
    engine = std::move(engine_);
  }
}

void EngineSlot::abort(const std::string& reason) {
  const std::lock_guard lock(mutex_);
  if (engine_) engine_->abort(reason);
}

Napi::Value make_handle(Napi::Env env, const std::shared_ptr<EngineSlot>& slot) {
  auto handle = std::make_unique<Handle>(Handle{slot, Environment::of(env).thread()});
  auto external = Napi::External<Handle>::New(env, handle.release(), finalize);
  external.TypeTag(&kEngineTag);
  return external;
}

std::shared_ptr<EngineSlot> any_slot(const Field& handle) {
  const Napi::Value value = handle.value();
  if (!value.IsExternal()) handle.mismatch("an engine made by createEngine");
  const auto external = value.As<Napi::External<Handle>>();
  if (!external.CheckTypeTag(&kEngineTag)) handle.mismatch("an engine made by createEngine");
  return external.Data()->slot;
}

std::shared_ptr<EngineSlot> open_slot(const Field& handle) {
  auto slot = any_slot(handle);
  require(!slot->closed(), ErrorCode::kClosed, handle.path(), ": this engine has been closed");
  return slot;
}

}  // namespace troupe::binding
