// An optimiser step for which memory does not suffice half way, with state on the host: what a checkpoint
// brings then takes the place of what the step had fetched.
#include <ATen/ATen.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/error.h"
#include "check.h"
#include "failing_allocations.h"
#include "toy_training.h"

using namespace troupe;
using namespace troupe::test;

namespace {

// All sequences in one mini-batch.
void update(Engine& engine) {
  const Share share = share_of(0, std::vector<int64_t>(kSequences, 0));
  const MiniBatches& two = share.mini;
  const MiniBatches one{{0, kSequences},
                        {two.global_tokens[0] + two.global_tokens[1]},
                        {two.global_sequences[0] + two.global_sequences[1]},
                        1};
  engine.update_sft({share.tokens, share.mask}, one, {});
}

constexpr std::array kState{TensorKind::kParam, TensorKind::kExpAvg, TensorKind::kExpAvgSq};

std::vector<at::Tensor> state_of(Engine& engine) {
  std::vector<at::Tensor> all;
  for (const TensorKind kind : kState) {
    for (const ParameterInfo& info : engine.parameters()) all.push_back(engine.get_tensor(kind, info.name));
  }
  return all;
}

bool same(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](const at::Tensor& x, const at::Tensor& y) { return x.equal(y); });
}

// The state of an engine in float32, in a file for each kind.
class Checkpoint {
 public:
  Checkpoint(Engine& engine, const std::string& name) {
    for (const TensorKind kind : kState) {
      TensorFile file{"/tmp/troupe_failed_step_" + std::to_string(::getpid()) + name +
                          std::to_string(static_cast<int>(kind)),
                      "",
                      0,
                      {}};
      for (const ParameterInfo& info : engine.parameters()) {
        file.tensors.push_back({info.name, 0, info.shape[0], false, info.name, file.size, "F32"});
        file.size += 4 * info.size();
      }
      engine.export_tensors(kind, {file});
      files_.push_back(std::move(file));
    }
  }
  ~Checkpoint() {
    for (const TensorFile& file : files_) ::unlink(file.path.c_str());
  }
  Checkpoint(const Checkpoint&) = delete;
  Checkpoint& operator=(const Checkpoint&) = delete;

  // That of after the first update.
  void load(Engine& engine) const {
    for (size_t i = 0; i < kState.size(); ++i) engine.import_tensors(kState[i], {files_[i]});
    engine.set_steps(1, 1);
  }

 private:
  std::vector<TensorFile> files_;
};

// Whether a step has failed half way: nothing is computed then before a checkpoint is loaded.
bool half_changed(Engine& engine) {
  const Share share = share_of(0, std::vector<int64_t>(kSequences, 0));
  try {
    engine.compute_log_prob(share.tokens, 1, false, false);
    return false;
  } catch (const Error& error) {
    return error.code() == ErrorCode::kInvalidModel;
  }
}

int64_t allocations_of(const std::function<void()>& work) {
  constexpr int64_t kMany = int64_t{1} << 40;
  allocations_left = kMany;
  work();
  const int64_t used = kMany - *allocations_left;
  allocations_left.reset();
  return used;
}

}  // namespace

TEST(a_checkpoint_takes_the_place_of_what_a_failed_step_has_fetched) {
  for (const std::string dtype : {"float32", "bfloat16"}) {
    EngineOptions options = options_of("qwen3", HeadKind::kLm);
    options.dtype = parse_dtype(dtype);
    options.offload = {true, true, true};
    const auto engine = create_engine(options);
    update(*engine);
    const Checkpoint checkpoint(*engine, dtype);
    const int64_t allocations = allocations_of([&] { update(*engine); });
    const std::vector<at::Tensor> expected = state_of(*engine);
    int64_t halves = 0;
    // The step is the end of an update. It fails later and later, with a state that is not the checkpoint's.
    for (int64_t left = allocations - 600; left < allocations; left += 5) {
      if (enough_memory(left, [&] { update(*engine); })) break;
      halves += half_changed(*engine) ? 1 : 0;
      checkpoint.load(*engine);
      update(*engine);
      CHECK(same(state_of(*engine), expected));
    }
    std::printf("  %ld allocations, %ld failed steps\n", allocations, halves);
    CHECK(halves > 2);
  }
}

TEST_MAIN()
