// Joining and leaving a group of ranks.
#include "base/error.h"
#include "binding/binding.h"
#include "binding/dto.h"
#include "binding/environment.h"
#include "binding/results.h"

namespace troupe::binding {

namespace {

// std::unique_ptr<Rendezvous> Rendezvous::open()
// openRendezvous(): Promise<number>
Napi::Value open_rendezvous(const Napi::CallbackInfo& info) {
  Environment& environment = Environment::of(info.Env());
  return environment.call(
      info.Env(),
      [group = environment.group()] {
        group->rendezvous = Rendezvous::open();
        return static_cast<double>(group->rendezvous->port());
      },
      write_number);
}

// std::unique_ptr<Communicator> make_communicator(const CommOptions&)
// joinGroup(options: NativeGroupOptions): Promise<null>
Napi::Value join_group(const Napi::CallbackInfo& info) {
  const Arguments args(info, "joinGroup");
  Environment& environment = Environment::of(info.Env());
  const Field dto = args(0, "options");
  CommOptions options;
  options.backend = dto["backend"].string();
  options.rank = dto["rank"].count();
  options.size = dto["size"].count();
  if (dto.value().As<Napi::Object>().Has("host")) options.host = dto["host"].string();
  options.port = dto["port"].count();
  options.token = dto["token"].string();
  options.timeout = std::chrono::milliseconds(dto["timeoutMs"].count());
  return environment.call(
      info.Env(),
      [group = environment.group(), options] {
        require(!group->comm, ErrorCode::kInvalidArgument, "[comm] this process has joined a group already");
        group->comm = make_communicator(options);
        return Nothing{};
      },
      write_nothing);
}

}  // namespace

void export_group(Napi::Env env, Napi::Object exports) {
  export_async<open_rendezvous>(env, exports, "openRendezvous");
  export_async<join_group>(env, exports, "joinGroup");
}

}  // namespace troupe::binding
