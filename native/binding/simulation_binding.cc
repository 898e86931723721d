// simulate_update for `troupe plan`.
#include "binding/binding.h"
#include "binding/dto.h"
#include "binding/environment.h"
#include "binding/options.h"
#include "binding/results.h"
#include "engine/simulation.h"

namespace troupe::binding {

namespace {

Napi::Value write_simulation(Napi::Env env, const Simulation& simulation) {
  auto dto = Napi::Object::New(env);
  dto.Set("state", write_state_bytes(env, simulation.state));
  auto groups = Napi::Array::New(env);
  for (const SimulatedGroup& group : simulation.groups) {
    auto item = Napi::Object::New(env);
    item.Set("name", group.name);
    item.Set("whole", static_cast<double>(group.whole));
    item.Set("own", static_cast<double>(group.own));
    groups.Set(groups.Length(), item);
  }
  dto.Set("groups", groups);
  auto collectives = Napi::Array::New(env);
  for (const SimulatedCollective& collective : simulation.collectives) {
    auto item = Napi::Object::New(env);
    item.Set("phase", collective.phase);
    item.Set("name", collective.name);
    item.Set("subject", collective.subject);
    item.Set("count", static_cast<double>(collective.count));
    item.Set("bytes", static_cast<double>(collective.bytes));
    collectives.Set(collectives.Length(), item);
  }
  dto.Set("collectives", collectives);
  return dto;
}

SimulatedWork read_work(const Field& dto) {
  return {dto["microBatches"].count(), dto["rows"].count(), dto["responses"].count()};
}

// Simulation simulate_update(const EngineOptions&, int64_t rank, int64_t size, const SimulatedWork&)
// simulateUpdate(options: NativeEngineOptions, rank: number, size: number, work: NativeSimulatedWork):
// Promise<NativeSimulation>
Napi::Value simulate(const Napi::CallbackInfo& info) {
  const Arguments args(info, "simulateUpdate");
  return Environment::of(info.Env())
      .call(
          info.Env(),
          [options = read_engine_options(args(0, "options")), rank = args(1, "rank").count(),
           size = args(2, "size").count(),
           work = read_work(args(3, "work"))] { return simulate_update(options, rank, size, work); },
          write_simulation);
}

}  // namespace

void export_simulation(Napi::Env env, Napi::Object exports) {
  export_async<simulate>(env, exports, "simulateUpdate");
}

}  // namespace troupe::binding
