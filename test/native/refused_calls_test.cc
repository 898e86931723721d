// A call that one rank refuses: nobody waits for it, and the next call is as if it had not been made.
#include <ATen/ATen.h>

#include <functional>
#include <numeric>

#include "base/error.h"
#include "check.h"
#include "ranks.h"
#include "toy_training.h"

using namespace troupe;
using namespace troupe::test;

namespace {

constexpr int64_t kRanks = 3;
constexpr int64_t kRefusing = 1;
const std::vector<int64_t> kOwners{0, 1, 2, 0, 1, 2, 0, 1};
constexpr const char* kElsewhere = "another rank has refused its part of this call";

// The call, once as one rank gets it wrong and once right.
using Call = std::function<void(Engine& engine, int64_t rank, bool wrong)>;

// What every rank threw at first; the call must succeed afterwards.
std::vector<std::string> refused(HeadKind head, const Call& call) {
  std::vector<std::string> errors(kRanks);
  const auto failures = on_ranks(kRanks, [&](Communicator& comm) {
    const int64_t rank = comm.rank();
    EngineOptions options = options_of("qwen3", head);
    const auto engine = create_engine(options, std::shared_ptr<Communicator>(&comm, [](Communicator*) {}));
    try {
      call(*engine, rank, rank == kRefusing);
    } catch (const Error& error) {
      errors[static_cast<size_t>(rank)] = error.what();
      CHECK(error.code() == (rank == kRefusing ? ErrorCode::kInvalidArgument : ErrorCode::kAborted));
    }
    call(*engine, rank, false);
  });
  for (const std::string& failure : failures) CHECK(failure == "");
  return errors;
}

void check_refused(const std::string& own, HeadKind head, const Call& call) {
  const std::vector<std::string> errors = refused(head, call);
  for (int64_t rank = 0; rank < kRanks; ++rank) {
    const std::string& error = errors[static_cast<size_t>(rank)];
    CHECK(error.find(rank == kRefusing ? own : kElsewhere) != std::string::npos);
  }
}

Share share_with_a_token_outside(int64_t rank, bool wrong) {
  Share share = share_of(rank, kOwners);
  if (wrong) share.tokens.tokens[0] = int32_t{kVocabulary};
  return share;
}

}  // namespace

TEST(a_batch_that_one_rank_refuses) {
  check_refused("vocabulary", HeadKind::kLm, [](Engine& engine, int64_t rank, bool wrong) {
    engine.compute_log_prob(share_with_a_token_outside(rank, wrong).tokens, 1, false, false, false);
  });
  check_refused("vocabulary", HeadKind::kValue, [](Engine& engine, int64_t rank, bool wrong) {
    engine.compute_values(share_with_a_token_outside(rank, wrong).tokens);
  });
  check_refused("vocabulary", HeadKind::kLm, [](Engine& engine, int64_t rank, bool wrong) {
    const Share share = share_with_a_token_outside(rank, wrong);
    engine.update_sft({share.tokens, share.mask}, share.mini, {});
  });
}

TEST(columns_that_one_rank_refuses) {
  check_refused("advantages", HeadKind::kLm, [](Engine& engine, int64_t rank, bool wrong) {
    const Share share = share_of(rank, kOwners);
    const at::Tensor advantages = wrong ? share.b.narrow(0, 0, 1) : share.b;
    engine.update_policy({share.tokens, share.mask, share.a, advantages, {}, {}, {}}, share.mini, {}, 1);
  });
  check_refused("returns", HeadKind::kValue, [](Engine& engine, int64_t rank, bool wrong) {
    const Share share = share_of(rank, kOwners);
    engine.update_critic({share.tokens, share.mask, share.a, wrong ? share.b.narrow(0, 0, 1) : share.b},
                         share.mini, {});
  });
}

TEST(columns_of_a_teacher_that_do_not_fit_are_refused) {
  const auto engine = create_engine(options_of("qwen3", HeadKind::kLm));
  const Share share = share_of(0, std::vector<int64_t>(kOwners.size(), 0));
  PolicyLossOptions loss;
  loss.distillation.emplace().top_k = 2;
  const int64_t rows = share.a.numel();
  const at::Tensor log_probs = at::full({rows, 2}, -1.0), ids = at::ones({rows, 2}, at::kInt);
  const auto update = [&](const at::Tensor& teacher_log_probs, const at::Tensor& teacher_ids) {
    PolicyBatch batch{share.tokens, share.mask, share.a, share.b, {}, {}, {}};
    batch.teacher_log_probs = teacher_log_probs;
    batch.teacher_ids = teacher_ids;
    return engine->update_policy(batch, share.mini, loss, 1);
  };
  const std::string needs = ": the distillation needs 2 per response token (" + std::to_string(rows) + "), ";
  const auto got = [&](int64_t count) { return needs + "got " + std::to_string(count); };
  CHECK_THROWS(update({}, ids), "teacherLogProbs" + got(0));
  CHECK_THROWS(update(log_probs.view({-1}), ids), "teacherLogProbs" + got(2 * rows));
  CHECK_THROWS(update(log_probs.narrow(0, 1, rows - 1), ids), "teacherLogProbs" + got(2 * rows - 2));
  CHECK_THROWS(update(log_probs.narrow(1, 0, 1), ids), "teacherLogProbs" + got(rows));
  CHECK_THROWS(update(log_probs, {}), "teacherIds" + got(0));
  CHECK_THROWS(update(log_probs, at::ones({rows, 3}, at::kInt)), "teacherIds" + got(3 * rows));
  const at::Tensor outside = ids.clone();
  outside[0][1] = int32_t{kVocabulary};
  CHECK_THROWS(update(log_probs, outside), "teacherIds: expected ids in [0, ");
  update(log_probs, ids);
  const int64_t most = kVocabulary + 1;
  loss.distillation->top_k = most;
  CHECK_THROWS(
      update(at::full({rows, most}, -1.0), at::ones({rows, most}, at::kInt)),
      "[batch] the distillation compares " + std::to_string(most) + " tokens at each position (topK)");
}

TEST(mini_batches_that_do_not_fit_are_refused_with_what_came) {
  const auto engine = create_engine(options_of("qwen3", HeadKind::kLm));
  const Share share = share_of(0, std::vector<int64_t>(kOwners.size(), 0));
  const auto update = [&](const std::vector<int64_t>& offsets, size_t tokens, size_t sequences) {
    MiniBatches mini{offsets, std::vector<double>(tokens, 1), std::vector<double>(sequences, 1)};
    engine->update_sft({share.tokens, share.mask}, mini, {});
  };
  CHECK_THROWS(update({}, 0, 0), "at least one mini-batch, so two offsets, got 0");
  CHECK_THROWS(update({0}, 0, 0), "at least one mini-batch, so two offsets, got 1");
  CHECK_THROWS(update({1, 4, 8}, 2, 2), "from 0 to the number of sequences, 8, got 1 to 8");
  CHECK_THROWS(update({0, 4, 7}, 2, 2), "from 0 to the number of sequences, 8, got 0 to 7");
  CHECK_THROWS(update({0, 4, 8}, 1, 2), "for each of the 2 mini-batches, got 1 and 2");
  CHECK_THROWS(update({0, 4, 8}, 2, 3), "for each of the 2 mini-batches, got 2 and 3");
  CHECK_THROWS(update({0, 5, 4, 8}, 3, 3), "that do not decrease, got 4 behind 5");
}

// Not after the first backward pass.
TEST(a_schedule_that_makes_no_sense_is_refused_before_any_work) {
  EngineOptions options = options_of("qwen3", HeadKind::kLm);
  options.optim->schedule.kind = ScheduleKind::kCosine;
  CHECK_THROWS(create_engine(options), "the cosine schedule needs the total number of steps");
}

// Only rank 0 has the bytes of an import.
TEST(an_import_that_rank_0_refuses) {
  std::vector<std::string> errors(kRanks);
  const auto failures = on_ranks(kRanks, [&](Communicator& comm) {
    const int64_t rank = comm.rank();
    const EngineOptions options = options_of("qwen3", HeadKind::kLm);
    const auto engine = create_engine(options, std::shared_ptr<Communicator>(&comm, [](Communicator*) {}));
    const ParameterInfo info = engine->parameters().front();
    WeightChunk chunk;
    chunk.label = chunk.param = info.name;
    chunk.rows = chunk.count = info.shape[0];
    const WeightBucket bucket{"float32", {chunk}};
    const int64_t elements =
        std::accumulate(info.shape.begin(), info.shape.end(), int64_t{1}, std::multiplies<>());
    const at::Tensor bytes = at::full({elements}, 0.5).view(at::kByte);
    try {
      engine->import_weights(bucket, rank == 0 ? bytes.narrow(0, 0, 4) : at::Tensor());
    } catch (const Error& error) {
      errors[static_cast<size_t>(rank)] = error.what();
    }
    engine->import_weights(bucket, rank == 0 ? bytes : at::Tensor());
    CHECK(engine->get_tensor(TensorKind::kParam, info.name).eq(0.5).all().item<bool>());
  });
  for (const std::string& failure : failures) CHECK(failure == "");
  CHECK(errors[0].find("expected a bucket of") != std::string::npos);
  CHECK(errors[1].find(kElsewhere) != std::string::npos && errors[2].find(kElsewhere) != std::string::npos);
}

// Which kinds there are of a parameter the ranks know that have it; the others would wait for them.
TEST(a_tensor_that_the_stage_or_the_rank_with_its_parameter_refuses) {
  const auto check = [](const EngineOptions& options, const char* name, int64_t owner) {
    const auto failures = on_ranks(
        2,
        [&](Communicator& comm) {
          const auto engine =
              create_engine(options, std::shared_ptr<Communicator>(&comm, [](Communicator*) {}));
          const at::Tensor before = engine->get_tensor(TensorKind::kParam, name);
          CHECK_THROWS(engine->get_tensor(TensorKind::kGrad, name),
                       comm.rank() == owner ? "are frozen: only adapters are trained" : kElsewhere);
          CHECK_THROWS(engine->get_tensor(TensorKind::kGrad, "nothing"), "has no parameter 'nothing'");
          CHECK(engine->get_tensor(TensorKind::kParam, name).equal(before));
        },
        /*timeout_ms=*/5'000);
    for (const std::string& failure : failures) CHECK(failure == "");
  };
  const auto frozen = [](const std::string& variant) {
    EngineOptions options = options_of(variant, HeadKind::kLm);
    options.lora = LoraOptions{2, 1, {{"layers.0.attn.out.o", "layers.0.attn.out.weight", 0, 24}}};
    return options;
  };
  EngineOptions stages = frozen("qwen3"), experts = frozen("qwen3_moe");
  stages.pipeline.stages = 2;
  check(stages, "layers.0.attn.qkv.weight", 0);
  check(stages, "layers.1.mlp.in.weight", 1);
  experts.parallel.ep = 2;
  check(experts, "layers.1.moe.experts.3.in.weight", 1);
}

TEST(an_engine_of_one_rank_that_is_aborted_says_why) {
  const auto engine = create_engine(options_of("qwen3", HeadKind::kLm), nullptr);
  engine->abort("the trainer stops");
  engine->abort("it has stopped");
  CHECK_THROWS(engine->compute_log_prob(share_of(0, kOwners).tokens, 1, false, false),
               "[engine] aborted: the trainer stops");
}

TEST_MAIN()
