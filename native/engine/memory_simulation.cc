// The engine on meta tensors.
#include "engine/memory_simulation.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <c10/util/accumulate.h>

#include <algorithm>

#include "base/error.h"
#include "base/parallel.h"
#include "comm/fake.h"
#include "engine/meta_kernels.h"
#include "engine/rank_engine.h"

namespace troupe {

namespace {

// c10's CUDACachingAllocator: blocks are multiples of 512 bytes; from 10 MiB on they have memory of their
// own, in multiples of 2 MiB.
int64_t cuda_block(int64_t bytes) {
  constexpr int64_t kLeast = 512, kLarge = int64_t{10} << 20, kLargeMultiple = int64_t{2} << 20;
  return round_up(bytes, bytes >= kLarge ? kLargeMultiple : kLeast);
}

std::shared_ptr<Communicator> alone(int64_t rank, int64_t size, bool gpu) {
  return std::make_shared<FakeCommunicator>(rank, size, std::make_shared<FakeCommunicator::Calls>(),
                                            /*stages_gathers=*/!gpu);
}

void check(const MemoryWork& work, const ModelConfig& model, int64_t rank, int64_t size) {
  require(size >= 1 && rank >= 0 && rank < size, ErrorCode::kInvalidArgument,
          "[simulate] expected a rank below the group's size, got rank ", rank, " of ", size);
  const auto fit = [&](const ImageLoads& images, int64_t prompt) {
    require(images.empty() || model.vision, ErrorCode::kInvalidArgument,
            "[simulate] expected no images for a model that reads text alone, got ", images.size());
    int64_t tokens = 0;
    for (const ImageLoad& image : images) {
      require(image.height >= 1 && image.width >= 1 && image.width <= prompt / image.height,
              ErrorCode::kInvalidArgument, "[simulate] expected images within a prompt of ", prompt,
              " tokens, got one of ", image.height, " x ", image.width);
      tokens += image.tokens();
    }
    require(tokens <= prompt, ErrorCode::kInvalidArgument, "[simulate] expected images within a prompt of ",
            prompt, " tokens, got ", tokens);
  };
  for (const SequenceLoad& load : {work.inference, work.update}) {
    require(load.count == 0 || (load.count > 0 && load.response >= 1 && load.length > load.response),
            ErrorCode::kInvalidArgument, "[simulate] expected sequences with a prompt and a response, got ",
            load.count, " of ", load.length, " tokens, ", load.response, " of them the response");
    fit(load.images, load.length - load.response);
  }
  require(work.routing == RoutingLoad::kNone || model.moe, ErrorCode::kInvalidArgument,
          "[simulate] expected no choices of experts for a model without experts");
  for (const RolloutLoad& load : work.rollouts) {
    require(load.prompts >= 1 && load.n >= 1 && load.prompt >= 1 && load.response >= 1,
            ErrorCode::kInvalidArgument,
            "[simulate] expected a rollout of at least one prompt with a response, got ", load.prompts, " x ",
            load.n, " of ", load.prompt, " and ", load.response, " tokens");
    fit(load.images, load.prompt);
  }
}

}  // namespace

SimulatedMemory simulate_memory(const EngineOptions& given, int64_t rank, int64_t size,
                                const MemoryWork& asked, bool gpu) {
  check(asked, given.model, rank, size);
  at::NoGradGuard no_grad;
  EngineOptions options = given;
  options.device = at::Device(at::kMeta);
  install_meta_kernels();
  install_counting_allocator(at::kMeta);
  if (!gpu) install_counting_allocator(at::kCPU);
  const auto count = std::make_shared<ByteCount>(gpu ? cuda_block : nullptr);
  const CountAllocations scope(count, gpu ? std::optional(at::kMeta) : std::nullopt);
  const SimulateGpu machine(gpu);

  MemoryWork work = asked;
  work.inference.count = enough_sequences(work.inference, options);
  work.update.count = enough_sequences(work.update, options);
  SimulatedMemory memory;
  memory.phases = run_phases(options, alone(rank, size, gpu), work, *count);
  const ParameterStore store = make_store(options, at::kMeta, parallel_dims(options).resolved(size), rank);
  memory.state = store.bytes();
  for (const ParameterSpec& parameter : decoder_layout(options.model, options.lora).parameters)
    memory.parameters += c10::multiply_integers(parameter.info.shape);
  return memory;
}

}  // namespace troupe
