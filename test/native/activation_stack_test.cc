#include "model/activation_stack.h"

#include <ATen/ATen.h>

#include <cstdio>

#include "base/simulated.h"
#include "check.h"
#include "counted.h"
#include "memory_setups.h"

// What a pass keeps of its blocks' inputs, and where.

using namespace troupe;
using namespace troupe::test;

namespace {

constexpr int64_t kBytes = 4 * 96 * 32;

// Rows of a block: nobody else has them.
at::Tensor rows(double value, at::Device device = at::kCPU) {
  return at::full({96, 32}, value, at::TensorOptions().device(device));
}

bool holds(const at::Tensor& x, double value) {
  return x.equal(rows(value));
}

}  // namespace

TEST(what_is_pushed_last_comes_first) {
  ActivationOffload offload(at::kCPU);
  for (ActivationOffload* where : {static_cast<ActivationOffload*>(nullptr), &offload}) {
    ActivationStack stack(where);
    for (int64_t block = 0; block < 4; ++block) stack.push(rows(static_cast<double>(block)));
    stack.fetch();
    for (int64_t block = 4; block-- > 0;) CHECK(holds(stack.pop(), static_cast<double>(block)));
    stack.fetch();  // nothing is left
  }
}

TEST(several_passes_under_way_keep_their_own) {
  ActivationOffload offload(at::kCPU);
  ActivationStack first(&offload), second(&offload), third(&offload);
  first.push(rows(1));
  first.push(rows(2));
  second.push(rows(3));
  CHECK(holds(first.pop(), 2));
  third.push(rows(4));
  second.push(rows(5));
  second.fetch();
  third.push(rows(6));  // while the last of the second is back already
  CHECK(holds(second.pop(), 5));
  CHECK(holds(first.pop(), 1));
  CHECK(holds(second.pop(), 3));
  CHECK(holds(third.pop(), 6));
  CHECK(holds(third.pop(), 4));
}

TEST(on_the_host_are_all_and_on_the_device_is_the_last) {
  CHECK(kCounted);
  const auto count = std::make_shared<ByteCount>();
  const CountAllocations scope(count);
  ActivationOffload offload(at::kCPU);
  ActivationStack stack(&offload);
  for (int64_t pushed = 1; pushed <= 5; ++pushed) {
    stack.push(rows(1));
    CHECK(count->live() == (pushed + 1) * kBytes);
  }
  // The one that is popped, and the one that comes back meanwhile.
  at::Tensor x = stack.pop();
  CHECK(count->live() == (4 + 2) * kBytes);
  x = stack.pop();
  x.reset();
  CHECK(count->live() == (3 + 1) * kBytes);
  stack = ActivationStack(&offload);  // of a pass that failed
  CHECK(count->live() == 0);
  {
    ActivationStack other(&offload);
    other.push(rows(1));
  }
  CHECK(count->live() == 0);
}

TEST(of_a_gpu_only_what_lies_there_is_counted) {
  install_counting_allocator(at::kMeta);
  const auto count = std::make_shared<ByteCount>();
  const CountAllocations scope(count, at::kMeta);
  const SimulateGpu gpu(true);
  ActivationOffload offload(at::kMeta);
  ActivationStack stack(&offload);
  for (int64_t pushed = 1; pushed <= 5; ++pushed) {
    stack.push(rows(1, at::kMeta));
    CHECK(count->live() == kBytes);
  }
  CHECK(count->peak() == 2 * kBytes);
  count->restart_peak();
  for (int64_t left = 5; left-- > 0;) stack.pop();
  CHECK(count->live() == 0 && count->peak() == 2 * kBytes);
}

// While the device is busy with what it was given before, and uses again what was released.
TEST(on_a_gpu_copies_wait_for_what_they_copy) {
  if (!at::hasCUDA()) {
    std::printf("no GPU: left out\n");
    return;
  }
  const at::Device device(at::kCUDA, 0);
  const auto options = at::TensorOptions().device(device);
  constexpr int64_t kSide = 2048, kBlocks = 6;
  const at::Tensor matrix = at::eye(kSide, options);
  const auto busy = [&](at::Tensor x) {
    for (int64_t i = 0; i < 20; ++i) x = at::mm(x, matrix);
    return x;
  };
  ActivationOffload offload(device);
  for (int64_t pass = 0; pass < 4; ++pass) {
    ActivationStack stack(&offload);
    at::Tensor x = at::zeros({kSide, kSide}, options);
    for (int64_t block = 0; block < kBlocks; ++block) {
      x = busy(x) + 1;  // block + 1, not there yet when it is pushed
      stack.push(x);
    }
    x.reset();
    for (int64_t block = kBlocks; block-- > (pass % 2 == 0 ? 0 : 3);) {
      const at::Tensor back = stack.pop();
      const at::Tensor used = busy(back);
      CHECK(used.eq(static_cast<double>(block + 1)).all().item<bool>());
    }
    // A pass that failed leaves the rest.
  }
}

// On a GPU with offloaded activations more layers take no more of them: what is kept of each lies on the
// host.
TEST(offloaded_activations_do_not_grow_with_the_layers) {
  const auto activations = [](int64_t layers, bool offloaded) {
    EngineOptions options = options_of({.variant = "qwen3", .checkpointing = true, .offloaded = offloaded});
    options.model.num_layers = layers;
    give_windows(options.model, std::vector<int64_t>(static_cast<size_t>(layers), 0));
    MemoryWork work;
    work.update = work_of({.variant = "qwen3"}, options).update;
    for (const PhasePeak& phase : simulate_memory(options, 0, 1, work, /*gpu=*/true).phases) {
      if (phase.verb == "update") return phase.parts[static_cast<size_t>(MemoryPart::kActivations)];
    }
    return int64_t{-1};
  };
  const int64_t rows = 4 * kCapacity * 256;  // [T, H] float32
  CHECK(activations(12, true) == activations(6, true));
  CHECK(activations(12, false) == activations(6, false) + 6 * rows);
  CHECK(activations(12, true) < activations(12, false) - 8 * rows);
}

TEST_MAIN()
