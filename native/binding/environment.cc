// Promises settled from the engine thread; what dies with the environment.
#include "binding/environment.h"

#include <algorithm>

namespace troupe::binding {

void Call::run() {
  try {
    work();
  } catch (...) {
    error_ = current_error();
  }
}

void Call::settle(Napi::Env env) {
  if (error_) {
    deferred_.Reject(make_error(env, *error_));
    return;
  }
  try {
    deferred_.Resolve(result(env));
  } catch (const Napi::Error& error) {  // for instance: no memory for the result array
    deferred_.Reject(error.Value());
  } catch (...) {
    deferred_.Reject(make_error(env, current_error()));
  }
}

void Environment::install(Napi::Env env) {
  env.SetInstanceData(new Environment(env));
  tear_down_at_exit(env);
}

// process.exit() runs no cleanup hooks on the main thread: it goes straight to exit(), which destroys
// LibTorch's static objects. An engine at work would use them while they die, so it is stopped by the event
// that comes before.
void Environment::tear_down_at_exit(Napi::Env env) {
  const Napi::Value process = env.Global().Get("process");
  if (!process.IsObject()) return;
  const Napi::Value once = process.As<Napi::Object>().Get("once");
  if (!once.IsFunction()) return;
  const auto listener =
      Napi::Function::New(env, [](const Napi::CallbackInfo& info) { of(info.Env()).tear_down(); });
  once.As<Napi::Function>().Call(process, {Napi::String::New(env, "exit"), listener});
}

Environment& Environment::of(Napi::Env env) {
  return *env.GetInstanceData<Environment>();
}

// [Note: teardown] Node runs cleanup hooks in reverse order. Ours is added after the thread-safe
// function's own, so it runs first: engines are aborted and freed on the engine thread, and the thread is
// joined, while the function still exists. Calls that were left in the function's queue come back to
// settle() with a null env and are only freed. Finalizers of handles run later and find empty slots.
Environment::Environment(Napi::Env env)
    : settler_(
          Settler::New(env, "troupe engine thread", /*maxQueueSize=*/0, /*initialThreadCount=*/1, this)) {
  settler_.Unref(env);
  env.AddCleanupHook([this] { tear_down(); });
}

Napi::Promise Environment::submit(Napi::Env env, std::unique_ptr<Call> call) {
  const Napi::Promise promise = call->promise();
  if (pending_++ == 0) settler_.Ref(env);
  // std::function wants copies: the task carries a shared owner until it hands the call over.
  auto owner = std::make_shared<std::unique_ptr<Call>>(std::move(call));
  thread_->submit([owner, settler = settler_]() mutable {
    (*owner)->run();
    if (settler.NonBlockingCall(owner->get()) == napi_ok) owner->release();
  });
  return promise;
}

void Environment::settle(Napi::Env env, Napi::Function, Environment* self, Call* call) {
  const std::unique_ptr<Call> owner(call);
  if (static_cast<napi_env>(env) == nullptr) return;  // see [Note: teardown]
  if (--self->pending_ == 0) self->settler_.Unref(env);
  call->settle(env);
}

std::shared_ptr<EngineSlot> Environment::new_slot() {
  std::erase_if(slots_, [](const auto& slot) { return slot.expired(); });
  auto slot = std::make_shared<EngineSlot>();
  slots_.push_back(slot);
  return slot;
}

void Environment::prepare_profiler(const ProfileOptions& options) {
  if (profiler_prepared_) return;
  troupe::prepare_profiler(options);
  profiler_prepared_ = true;
}

void Environment::tear_down() {
  std::vector<std::shared_ptr<EngineSlot>> alive;
  for (const auto& weak : slots_) {
    if (auto slot = weak.lock()) alive.push_back(std::move(slot));
  }
  for (const auto& slot : alive) slot->abort("the Node environment is shutting down");
  thread_->stop([&alive, group = group_, profiler = profiler_] {
    profiler->drop();
    for (const auto& slot : alive) slot->destroy();
    group->comm.reset();
    group->rendezvous.reset();
  });
}

}  // namespace troupe::binding
