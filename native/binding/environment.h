// What the addon holds per Node environment: the engine thread and open groups.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <type_traits>
#include <utility>
#include <vector>

#include "binding/engine_handle.h"
#include "binding/engine_thread.h"
#include "binding/errors.h"
#include "binding/setup.h"
#include "comm/communicator.h"
#include "comm/rendezvous.h"
#include "profiler/profiler.h"

namespace troupe::binding {

// One promise on its way: made on the JS thread, worked on the engine thread, settled on the JS thread.
class Call {
 public:
  explicit Call(Napi::Env env) : deferred_(Napi::Promise::Deferred::New(env)) {}
  virtual ~Call() = default;

  Napi::Promise promise() const { return deferred_.Promise(); }
  void run();                  // engine thread; keeps whatever is thrown
  void settle(Napi::Env env);  // JS thread

 protected:
  virtual void work() = 0;
  virtual Napi::Value result(Napi::Env env) = 0;

 private:
  Napi::Promise::Deferred deferred_;
  std::optional<NativeError> error_;
};

// The ranks that this process works with; used and freed on the engine thread.
struct Group {
  std::unique_ptr<Rendezvous> rendezvous;  // on rank 0
  std::shared_ptr<Communicator> comm;      // null until the group has been joined
};

// What the addon keeps for one Node environment (main thread or worker_threads): the engine thread, the
// way back from it, and the live engines. Every member is used on the JS thread only.
class Environment {
 public:
  static void install(Napi::Env env);
  static Environment& of(Napi::Env env);

  // Runs work() on the engine thread, behind everything queued before, and resolves with
  // convert(env, result). Neither may refer to JavaScript values of the caller.
  template <typename Work, typename Convert>
  Napi::Promise call(Napi::Env env, Work work, Convert convert) {
    return submit(env, std::make_unique<TypedCall<Work, Convert>>(env, std::move(work), std::move(convert)));
  }

  // A slot for an engine about to be created, which teardown knows of.
  std::shared_ptr<EngineSlot> new_slot();
  const std::shared_ptr<EngineThread>& thread() const { return thread_; }
  const std::shared_ptr<Group>& group() const { return group_; }
  // Once, whenever it is called first.
  void prepare_profiler(const ProfileOptions& options);
  // Of the engine thread, and used there.
  const std::shared_ptr<Profiler>& profiler() const { return profiler_; }

 private:
  template <typename Work, typename Convert>
  class TypedCall final : public Call {
   public:
    TypedCall(Napi::Env env, Work work, Convert convert)
        : Call(env), work_(std::move(work)), convert_(std::move(convert)) {}

   private:
    void work() override { result_.emplace(work_()); }
    Napi::Value result(Napi::Env env) override { return convert_(env, *result_); }

    Work work_;
    Convert convert_;
    std::optional<std::invoke_result_t<Work>> result_;
  };

  static void settle(Napi::Env env, Napi::Function, Environment* self, Call* call);
  using Settler = Napi::TypedThreadSafeFunction<Environment, Call, &Environment::settle>;

  explicit Environment(Napi::Env env);
  Napi::Promise submit(Napi::Env env, std::unique_ptr<Call> call);
  static void tear_down_at_exit(Napi::Env env);
  void tear_down();  // a second time does nothing

  Settler settler_;
  size_t pending_ = 0;  // promises not yet settled: while there are any, the process stays alive
  std::shared_ptr<EngineThread> thread_ = std::make_shared<EngineThread>();
  std::shared_ptr<Group> group_ = std::make_shared<Group>();
  bool profiler_prepared_ = false;
  std::shared_ptr<Profiler> profiler_ = std::make_shared<Profiler>();
  std::vector<std::weak_ptr<EngineSlot>> slots_;
};

}  // namespace troupe::binding
