// A load that has failed half way on one rank: what the ranks say of it, and what puts it right.
#include <ATen/ATen.h>
#include <unistd.h>

#include <fstream>
#include <functional>
#include <limits>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "base/error.h"
#include "check.h"
#include "ranks.h"
#include "toy_training.h"

using namespace troupe;
using namespace troupe::test;

namespace {

constexpr int64_t kRanks = 3;
constexpr double kValue = 0.03125;  // of every weight of the file
constexpr const char* kElsewhere = "another rank has refused its part of this call; its own error says why";

// All parameters, one behind the other, the last number of which is no number. One rank alone reads it.
class BrokenFile {
 public:
  explicit BrokenFile(const std::vector<ParameterInfo>& parameters)
      : path_("/tmp/troupe_half_changed_" + std::to_string(::getpid())) {
    layout_ = {path_, "head", 4, {}};
    for (const ParameterInfo& info : parameters) {
      layout_.tensors.push_back({info.name, 0, info.shape[0], false, info.name, layout_.size, "F32"});
      layout_.size +=
          4 * std::accumulate(info.shape.begin(), info.shape.end(), int64_t{1}, std::multiplies<>());
    }
    std::vector<float> values(static_cast<size_t>(layout_.size / 4 - 1), static_cast<float>(kValue));
    values.back() = std::numeric_limits<float>::quiet_NaN();
    std::ofstream out(path_, std::ios::binary);
    out.write("head", 4);
    out.write(reinterpret_cast<const char*>(values.data()), static_cast<std::streamsize>(4 * values.size()));
  }
  ~BrokenFile() { ::unlink(path_.c_str()); }
  const TensorFile& layout() const { return layout_; }

 private:
  std::string path_;
  TensorFile layout_;
};

EngineOptions options() {
  return options_of("qwen3", HeadKind::kLm);
}

std::shared_ptr<Communicator> borrowed(Communicator& comm) {
  return {&comm, [](Communicator*) {}};
}

// The parameters [first, end), whole.
WeightBucket bucket_of(const std::vector<ParameterInfo>& parameters, size_t first, size_t end) {
  WeightBucket bucket{"float32", {}};
  for (size_t i = first; i < end; ++i) {
    const ParameterInfo& info = parameters[i];
    bucket.chunks.push_back({info.name, 0, info.shape[0], false, info.name, 0, info.shape[0]});
  }
  return bucket;
}

// Whether it has failed here.
bool load_half(Engine& engine, TensorKind kind, const BrokenFile& file) {
  try {
    engine.import_tensors(kind, {file.layout()});
    return false;
  } catch (const Error& error) {
    CHECK(error.code() == ErrorCode::kNonFinite);
    return true;
  }
}

// Of a call of all ranks: the one with the half says what is the matter, the others that one does.
void check_refused(bool half, const std::string& own, const std::function<void()>& call) {
  try {
    call();
    CHECK(false);
  } catch (const Error& error) {
    CHECK(error.code() == (half ? ErrorCode::kInvalidModel : ErrorCode::kAborted));
    CHECK(std::string(error.what()).find(half ? own : kElsewhere) != std::string::npos);
  }
}

at::Tensor log_probs(Engine& engine, int64_t rank) {
  return engine.compute_log_prob(share_of(rank, {0, 1, 2, 0, 1, 2, 0, 1}).tokens, 1, false, false).log_probs;
}

// Engines of all ranks whose load of this kind has failed on one of them.
void on_half_changed(TensorKind kind, const std::function<void(Engine&, int64_t rank, bool half)>& body) {
  const BrokenFile file(create_engine(options())->parameters());
  std::vector<char> halves(kRanks);
  const auto run = [&](Communicator& comm) {
    const auto engine = create_engine(options(), borrowed(comm));
    log_probs(*engine, comm.rank());
    const bool half = load_half(*engine, kind, file);
    halves[static_cast<size_t>(comm.rank())] = half;
    body(*engine, comm.rank(), half);
  };
  for (const std::string& failure : on_ranks(kRanks, run, /*timeout_ms=*/5'000)) CHECK(failure == "");
  CHECK(std::accumulate(halves.begin(), halves.end(), 0) == 1);
}

}  // namespace

TEST(the_rank_with_the_half_tells_itself_from_those_that_hear_of_it) {
  on_half_changed(TensorKind::kParam, [](Engine& engine, int64_t rank, bool half) {
    check_refused(half, "a part was not", [&] { log_probs(engine, rank); });
    check_refused(half, "a part was not", [&] {
      const Share share = share_of(rank, {0, 1, 2, 0, 1, 2, 0, 1});
      engine.update_sft({share.tokens, share.mask}, share.mini, {});
    });
  });
}

// The others would wait for its part until their time is up.
TEST(no_rank_waits_for_the_one_with_the_half) {
  on_half_changed(TensorKind::kParam, [](Engine& engine, int64_t, bool half) {
    const WeightBucket bucket = bucket_of(engine.parameters(), 0, 1);
    check_refused(half, "a part was not",
                  [&] { engine.export_weights(TensorKind::kParam, bucket, std::nullopt, /*more=*/false); });
    check_refused(half, "a part was not", [&] { engine.get_tensor(TensorKind::kParam, "embed.weight"); });
  });
}

TEST(an_import_in_buckets_takes_the_place_of_the_half) {
  on_half_changed(TensorKind::kParam, [](Engine& engine, int64_t rank, bool half) {
    const std::vector<ParameterInfo> parameters = engine.parameters();
    for (size_t i = 0; i < parameters.size(); ++i) {
      const ParameterInfo& info = parameters[i];
      const int64_t count =
          std::accumulate(info.shape.begin(), info.shape.end(), int64_t{1}, std::multiplies<>());
      const at::Tensor bytes = at::full({count}, 2 * kValue).view(at::kByte);
      engine.import_weights(bucket_of(parameters, i, i + 1), rank == 0 ? bytes : at::Tensor());
      check_refused(half, "replace all of the weights (importWeights)", [&] { log_probs(engine, rank); });
    }
    engine.import_tensors(TensorKind::kParam, {});
    for (const ParameterInfo& info : parameters)
      CHECK(engine.get_tensor(TensorKind::kParam, info.name).eq(2 * kValue).all().item<bool>());
    CHECK(log_probs(engine, rank).isfinite().all().item<bool>());
  });
}

// Weights alone do not put moments right.
TEST(an_import_in_buckets_leaves_a_half_of_the_state_to_a_checkpoint) {
  on_half_changed(TensorKind::kExpAvg, [](Engine& engine, int64_t rank, bool half) {
    const std::vector<ParameterInfo> parameters = engine.parameters();
    check_refused(half, "was not: load a checkpoint (loadCheckpoint)", [&] {
      const int64_t count = parameters[0].shape[0] * parameters[0].shape[1];
      const at::Tensor bytes = at::full({count}, kValue).view(at::kByte);
      engine.import_weights(bucket_of(parameters, 0, 1), rank == 0 ? bytes : at::Tensor());
    });
    engine.import_tensors(TensorKind::kParam, {});
    check_refused(half, "was not: load a checkpoint (loadCheckpoint)", [&] { log_probs(engine, rank); });
  });
}

TEST_MAIN()
