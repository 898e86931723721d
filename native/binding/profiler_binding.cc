// A profile of the engine thread.
#include "binding/binding.h"
#include "binding/dto.h"
#include "binding/environment.h"
#include "binding/results.h"
#include "profiler/profiler.h"

namespace troupe::binding {

namespace {

// void Profiler::start(const ProfileOptions&)
// startProfile(options: NativeProfileOptions): Promise<null>
Napi::Value start_profile(const Napi::CallbackInfo& info) {
  const Arguments args(info, "startProfile");
  Environment& environment = Environment::of(info.Env());
  const Field dto = args(0, "options");
  ProfileOptions options;
  options.cuda = dto["cuda"].boolean();
  options.shapes = dto["shapes"].boolean();
  options.memory = dto["memory"].boolean();
  environment.prepare_profiler(options);
  return environment.call(
      info.Env(),
      [profiler = environment.profiler(), options] {
        profiler->start(options);
        return Nothing{};
      },
      write_nothing);
}

// void Profiler::stop(const std::string& path), or drop()
// stopProfile(path: string | null): Promise<null>
Napi::Value stop_profile(const Napi::CallbackInfo& info) {
  const Arguments args(info, "stopProfile");
  Environment& environment = Environment::of(info.Env());
  const Field path = args(0, "path");
  return environment.call(
      info.Env(),
      [profiler = environment.profiler(), keep = !path.is_null(),
       path = path.is_null() ? std::string() : path.string()] {
        if (keep) profiler->stop(path);
        if (!keep) profiler->drop();
        return Nothing{};
      },
      write_nothing);
}

// void Profiler::enter(const std::string& name)
// enterRange(name: string): Promise<null>
Napi::Value enter_range(const Napi::CallbackInfo& info) {
  const Arguments args(info, "enterRange");
  Environment& environment = Environment::of(info.Env());
  return environment.call(
      info.Env(),
      [profiler = environment.profiler(), name = args(0, "name").string()] {
        profiler->enter(name);
        return Nothing{};
      },
      write_nothing);
}

// void Profiler::leave()
// leaveRange(): Promise<null>
Napi::Value leave_range(const Napi::CallbackInfo& info) {
  Environment& environment = Environment::of(info.Env());
  return environment.call(
      info.Env(),
      [profiler = environment.profiler()] {
        profiler->leave();
        return Nothing{};
      },
      write_nothing);
}

}  // namespace

void export_profiler(Napi::Env env, Napi::Object exports) {
  export_async<start_profile>(env, exports, "startProfile");
  export_async<stop_profile>(env, exports, "stopProfile");
  export_async<enter_range>(env, exports, "enterRange");
  export_async<leave_range>(env, exports, "leaveRange");
}

}  // namespace troupe::binding
