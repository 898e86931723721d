// simulate_update and simulate_memory for `troupe plan`.
#include <array>

#include "binding/batches.h"
#include "binding/binding.h"
#include "binding/dto.h"
#include "binding/environment.h"
#include "binding/options.h"
#include "binding/results.h"
#include "engine/memory_simulation.h"
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
    item.Set("axis", collective.axis);
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

ImageLoads read_image_loads(const Field& array) {
  ImageLoads loads;
  for (const Field& dto : array.elements()) {
    const int64_t height = dto["height"].count(), width = dto["width"].count();
    loads.push_back({height, width});
  }
  return loads;
}

SequenceLoad read_load(const Field& dto) {
  return {dto["count"].count(), dto["length"].count(), dto["response"].count(),
          read_image_loads(dto["images"])};
}

// Simulation simulate_update(const EngineOptions&, int64_t rank, int64_t size, const SequenceLoad&, bool gpu)
// simulateUpdate(options: NativeEngineOptions, rank: number, size: number, load: NativeSequenceLoad,
// gpu: boolean): Promise<NativeSimulation>
Napi::Value simulate(const Napi::CallbackInfo& info) {
  const Arguments args(info, "simulateUpdate");
  return Environment::of(info.Env())
      .call(
          info.Env(),
          [options = read_engine_options(args(0, "options")), rank = args(1, "rank").count(),
           size = args(2, "size").count(), load = read_load(args(3, "load")),
           gpu = args(4, "gpu").boolean()] { return simulate_update(options, rank, size, load, gpu); },
          write_simulation);
}

Napi::Value write_memory(Napi::Env env, const SimulatedMemory& memory) {
  auto dto = Napi::Object::New(env);
  dto.Set("state", write_state_bytes(env, memory.state));
  dto.Set("parameters", static_cast<double>(memory.parameters));
  auto phases = Napi::Array::New(env);
  for (const PhasePeak& phase : memory.phases) {
    const auto part = [&](MemoryPart p) { return static_cast<double>(phase.parts[static_cast<size_t>(p)]); };
    auto item = Napi::Object::New(env);
    item.Set("verb", phase.verb);
    item.Set("bytes", static_cast<double>(phase.bytes));
    item.Set("state", part(MemoryPart::kState));
    item.Set("gathered", part(MemoryPart::kGathered));
    item.Set("activations", part(MemoryPart::kActivations));
    item.Set("head", part(MemoryPart::kHead));
    item.Set("kvCache", part(MemoryPart::kKvCache));
    constexpr std::array kNames = {"state", "gathered", "activations", "head", "kvCache"};
    item.Set("last", kNames[static_cast<size_t>(phase.last)]);
    phases.Set(phases.Length(), item);
  }
  dto.Set("phases", phases);
  return dto;
}

RolloutOptions read_limits(const Field& dto) {
  RolloutOptions limits;
  limits.max_sequences = dto["maxSequences"].count();
  limits.max_step_tokens = dto["maxStepTokens"].count();
  limits.kv_cache_bytes = dto["kvCacheBytes"].count();
  limits.tensor_parallel = dto["tensorParallel"].count();
  limits.quantization = read_quantization(dto["quantization"]);
  limits.latent_cache = dto["latentCache"].boolean();
  limits.routed_experts = dto["routedExperts"].boolean();
  if (dto["predicts"].boolean()) limits.drafts = {.num_tokens = 1, .predicts = true};
  return limits;
}

MemoryWork read_memory_work(const Field& dto) {
  MemoryWork work;
  work.load = read_tensor_files(dto["load"]);
  work.inference = read_load(dto["inference"]);
  work.update = read_load(dto["update"]);
  work.top_k = dto["topK"].count();
  work.loss = {dto["loss"]["kl"].boolean(), dto["loss"]["topK"].count(),
               dto["loss"]["routerBalance"].boolean(), dto["loss"]["routerZ"].boolean()};
  constexpr std::array kRouting = {RoutingLoad::kNone, RoutingLoad::kRecorded, RoutingLoad::kGiven};
  work.routing = kRouting[dto["routing"].word({"none", "recorded", "given"})];
  for (const Field& rollout : dto["rollouts"].elements()) {
    work.rollouts.push_back({rollout["verb"].string(), rollout["prompts"].count(), rollout["n"].count(),
                             rollout["prompt"].count(), rollout["response"].count(),
                             read_image_loads(rollout["images"])});
  }
  work.limits = read_limits(dto["limits"]);
  return work;
}

// SimulatedMemory simulate_memory(const EngineOptions&, int64_t rank, int64_t size, const MemoryWork&, bool
// gpu) simulateMemory(options: NativeEngineOptions, rank: number, size: number, work: NativeMemoryWork, gpu:
// boolean): Promise<NativeSimulatedMemory>
Napi::Value simulate_memory_of(const Napi::CallbackInfo& info) {
  const Arguments args(info, "simulateMemory");
  return Environment::of(info.Env())
      .call(
          info.Env(),
          [options = read_engine_options(args(0, "options")), rank = args(1, "rank").count(),
           size = args(2, "size").count(), work = read_memory_work(args(3, "work")),
           gpu = args(4, "gpu").boolean()] { return simulate_memory(options, rank, size, work, gpu); },
          write_memory);
}

}  // namespace

void export_simulation(Napi::Env env, Napi::Object exports) {
  export_async<simulate_memory_of>(env, exports, "simulateMemory");
  export_async<simulate>(env, exports, "simulateUpdate");
}

}  // namespace troupe::binding
