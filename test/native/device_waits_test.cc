// How often the host waits for a GPU in an update and in a rollout, counted on a device of the host's memory
// that takes the ways of a GPU; and that its numbers are those of the CPU.
#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <limits>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/parallel.h"
#include "batch/packing.h"
#include "check.h"
#include "comm/communicator.h"
#include "engine/engine.h"
#include "fake_device.h"
#include "generation.h"
#include "model/decoder_layout.h"
#include "model/moe.h"
#include "parameters/parameter_store.h"
#include "toy_training.h"

using namespace troupe;
using namespace troupe::test;

namespace {

EngineOptions on(at::Device device, const std::string& variant, int64_t layers, int64_t predictions = 0) {
  EngineOptions options = options_of(variant, HeadKind::kLm);
  if (predictions > 0) options.model.prediction = PredictionConfig{predictions};
  options.device = device;
  options.model.num_layers = layers;
  options.model.sliding_windows.assign(static_cast<size_t>(layers), 0);
  if (options.model.moe) options.model.moe_layers.assign(static_cast<size_t>(layers), true);
  return options;
}

struct Update {
  Metrics metrics;
  DeviceCounts counts;
  at::Tensor log_probs;  // after it
  int64_t micro_batches = 0;
};

Update update(EngineOptions options, int64_t max_tokens, const std::string& mode = "vanilla") {
  options.max_tokens = max_tokens;
  const auto engine = create_engine(options, nullptr);
  const Share share = share_of(0, {0, 0, 0, 0, 0, 0, 0, 0});
  PolicyLossOptions loss;
  loss.mode = parse_policy_mode(mode);
  loss.entropy_coeff = 0.01;
  Update result;
  const auto run = [&] {
    const MetricsList all =
        engine->update_policy({share.tokens, share.mask, share.a, share.b, {}, {}, {}}, share.mini, loss, 1);
    result.metrics = all.back();
  };
  const BatchLayout layout = check_layout(share.tokens, kVocabulary, options.model.max_positions);
  for (size_t m = 0; m + 1 < share.mini.offsets.size(); ++m) {
    result.micro_batches += static_cast<int64_t>(
        pack(layout, share.mini.offsets[m], share.mini.offsets[m + 1], max_tokens).size());
  }
  run();  // makes what is made once
  result.counts = counted_on_device(run);
  result.log_probs = engine->compute_log_prob(share.tokens, 1, false, false).log_probs;
  return result;
}

void print(const std::string& what, const DeviceCounts& counts) {
  std::printf("  %s: %lld operations, %lld waits, %lld uploads", what.c_str(),
              static_cast<long long>(counts.launches), static_cast<long long>(counts.waits),
              static_cast<long long>(counts.uploads));
  for (const auto& [name, times] : counts.waits_by_operation)
    std::printf(", %s %lld", name.c_str(), static_cast<long long>(times));
  std::printf("\n");
}

// A reduce-scatter, from its beginning to its wait.
struct Sum {
  std::string group;
  int64_t others = 0;      // of other blocks that were under way when it began
  int64_t operations = 0;  // that the device was given meanwhile
  bool under_way = true;
};

// One of two ranks whose peer has the same data; tells what the device does while gradients are on their way.
class Watched final : public Communicator {
 public:
  explicit Watched(std::vector<Sum>& sums) : Communicator(0, 2), sums_(sums) {}
  std::unique_ptr<Communicator> split(const std::string&, const std::vector<int64_t>&) override {
    return make_local_communicator();
  }
  void abort(const std::string&) override {}

 protected:
  std::function<void()> begin_all_gather(const at::Tensor& output, const at::Tensor& input) override {
    output.view({2, input.numel()}).copy_(input.unsqueeze(0).expand({2, input.numel()}));
    return {};
  }
  std::function<void()> begin_all_to_all(const at::Tensor& output, const at::Tensor& input) override {
    output.copy_(input);
    if (std::string(log().latest().name) != "reduce_scatter" || device_counts().launches == 0) return {};
    Sum sum{log().latest().label.subject};
    for (const Sum& other : sums_) sum.others += other.under_way && other.group != sum.group ? 1 : 0;
    const size_t own = sums_.size();
    sums_.push_back(sum);
    return [this, own, before = device_counts().launches] {
      sums_[own].operations = device_counts().launches - before;
      sums_[own].under_way = false;
    };
  }
  void move_broadcast(const at::Tensor&, int64_t) override {}
  void move_send(const at::Tensor&, const at::Tensor&, int64_t) override {}
  void move_recv(const at::Tensor&, const at::Tensor&, int64_t) override {}

 private:
  std::vector<Sum>& sums_;
};

constexpr int64_t kOneMicroBatch = 4096, kSmallMicroBatches = 24;

void compare_shared_experts(const std::string& variant) {
  const at::NoGradGuard no_grad;
  ModelConfig config = options_of(variant, HeadKind::kLm).model;
  config.num_layers = 1;
  config.sliding_windows = {0};
  config.moe_layers = {true};
  const int64_t experts = config.moe->num_experts;
  at::manual_seed(5);
  ParameterStore whole(decoder_layout(config), fake_device(), at::kFloat, /*training=*/true, 1);
  for (const Parameter& parameter : whole.all()) {
    at::Tensor master = parameter.master;
    master.copy_(at::randn(master.sizes()) * 0.3);
  }
  whole.refresh_compute();
  const at::Tensor x = at::randn({40, config.hidden_size}).to(fake_device());
  const at::Tensor dout = at::randn({40, config.hidden_size}).to(fake_device());
  struct Passes {
    at::Tensor out, dx;
    DeviceCounts forward, backward;
  };
  const auto passes = [&](const ParameterStore& store, const DecoderPart& part) {
    const MoeMlp moe(store, config, 0, part);
    Passes result{at::empty_like(x), at::empty_like(x), {}, {}};
    MoeSaved saved;
    result.forward = counted_on_device([&] { moe.forward(x, result.out, kRowTile, &saved); });
    result.backward = counted_on_device([&] { moe.backward(dout, x, saved, result.dx); });
    return result;
  };
  const auto far = [](const at::Tensor& a, const at::Tensor& b) {
    return (a.cpu() - b.cpu()).abs().max().item<double>();
  };
  const Passes all = passes(whole, {});
  CHECK(all.forward.waits == 0 && all.backward.waits == 0);
  at::Tensor out = at::zeros_like(x), dx = at::zeros_like(x);
  const std::string router = "layers.0.moe.router.weight";
  at::Tensor by_router = at::zeros_like(whole.at(router).grad);
  for (int64_t rank = 0; rank < experts; ++rank) {
    DecoderPart part;
    part.ep = experts;
    part.ep_rank = rank;
    ParameterStore own(decoder_layout(config, {}, part), fake_device(), at::kFloat, /*training=*/true, 1);
    for (const Parameter& parameter : own.all()) {
      at::Tensor master = parameter.master;
      if (master.defined()) master.copy_(whole.at(parameter.info.name).master);
    }
    own.refresh_compute();
    const Passes one = passes(own, part);
    CHECK(one.forward.waits == 1 && one.backward.waits == 0);
    CHECK(one.forward.launches <= all.forward.launches + 16 && one.forward.launches < 80);
    out += one.out;
    dx += one.dx;
    by_router += own.at(router).grad;
    std::vector<std::string> trained{".in.weight", ".out.weight"};
    if (config.moe->biases) trained.insert(trained.end(), {".in.bias", ".out.bias"});
    for (const std::string& matrix : trained) {
      const std::string name = "layers.0.moe.experts." + std::to_string(rank) + matrix;
      CHECK(far(own.at(name).grad, whole.at(name).grad) < 1e-5);
    }
  }
  CHECK(far(out, all.out) < 1e-5 && far(dx, all.dx) < 1e-5);
  CHECK(far(by_router, whole.at(router).grad) < 1e-4);
  CHECK(all.out.cpu().abs().max().item<double>() > 0.1);
  print("all experts, forward", all.forward);
}

}  // namespace

TEST(an_update_on_the_device_has_the_numbers_of_the_cpu) {
  for (const std::string variant : {"qwen3", "qwen3_moe", "glm4_moe", "gpt_oss", "gpt2", "gemma2", "olmo3",
                                    "granite", "granitemoe", "glm4"}) {
    const Update cpu = update(on(at::kCPU, variant, 2), kSmallMicroBatches);
    const Update device = update(on(fake_device(), variant, 2), kSmallMicroBatches);
    CHECK(device.counts.launches > 0 && cpu.counts.launches == 0);
    CHECK((cpu.log_probs - device.log_probs).abs().max().item<double>() < 1e-4);
    CHECK_CLOSE(cpu.metrics.at("grad_norm"), device.metrics.at("grad_norm"),
                1e-4 * cpu.metrics.at("grad_norm"));
  }
}

// Nor do the layers that predict further tokens wait: their losses come to the host at the end of a
// mini-batch.
TEST(further_tokens_on_the_device_have_the_numbers_of_the_cpu) {
  for (const std::string variant : {"qwen3", "glm4_moe"}) {
    const Update cpu = update(on(at::kCPU, variant, 2, 2), kSmallMicroBatches);
    const Update device = update(on(fake_device(), variant, 2, 2), kSmallMicroBatches);
    const Update without = update(on(fake_device(), variant, 2), kSmallMicroBatches);
    for (const char* name : {"grad_norm", "mtp_losses/mtp_1_loss", "mtp_losses/mtp_2_loss"})
      CHECK_CLOSE(cpu.metrics.at(name), device.metrics.at(name), 1e-4 * cpu.metrics.at(name));
    print(variant + ", 2 further tokens", device.counts);
    CHECK(device.micro_batches > 2 && device.counts.waits == without.counts.waits + 2);
  }
}

TEST(the_host_does_not_wait_inside_a_layer) {
  for (const std::string variant : {"qwen3", "qwen3_moe", "glm4_moe", "gpt_oss"}) {
    const Update few = update(on(fake_device(), variant, 2), kOneMicroBatch);
    const Update many = update(on(fake_device(), variant, 6), kOneMicroBatch);
    print(variant + ", 2 layers", few.counts);
    print(variant + ", 6 layers", many.counts);
    CHECK(many.counts.launches > few.counts.launches);
    CHECK(many.counts.waits == few.counts.waits);
  }
}

// Log-probs and entropy for the metrics, the norm of the gradient, and what a mixture of experts says of its
// routers, all at the end of a mini-batch; losses that look at whole sequences read log-probs and entropy of
// each micro-batch before.
TEST(the_host_waits_at_most_twice_per_micro_batch) {
  constexpr int64_t kMiniBatches = 2, kAtTheEnd = 4;
  const std::vector<std::pair<std::string, int64_t>> cases = {{"vanilla", 0}, {"gspo", 2}};
  for (const auto& [mode, each] : cases) {
    const Update one = update(on(fake_device(), "qwen3_moe", 2), kOneMicroBatch, mode);
    const Update several = update(on(fake_device(), "qwen3_moe", 2), kSmallMicroBatches, mode);
    print(mode + ", one micro-batch", one.counts);
    print(mode + ", several micro-batches", several.counts);
    CHECK(one.counts.waits <= kMiniBatches * (kAtTheEnd + each));
    const int64_t more = several.micro_batches - one.micro_batches;
    CHECK(more > 0 && several.counts.waits - one.counts.waits == each * more);
  }
}

// A rank with a part of the experts computes them in the same products, for one wait in a forward pass: where
// its slots begin and end. The parts of all ranks are the whole, in both directions.
TEST(ranks_that_share_experts_wait_once_per_forward_pass) {
  for (const char* variant : {"qwen3_moe", "gpt_oss"}) compare_shared_experts(variant);
}

// The gradient of a block is on its way while the device computes that of the block before it, and no longer:
// memory for the gradients of one block on its way is all that it takes. The first block has only the
// embeddings before it, and they nothing.
TEST(gradients_are_summed_while_the_device_computes_those_of_the_next_block) {
  for (const std::optional<bool> overlap : {std::optional<bool>(), std::optional<bool>(false)}) {
    EngineOptions options = on(fake_device(), "qwen3", 4);
    options.max_tokens = kSmallMicroBatches;
    options.overlap_reduction = overlap;
    std::vector<Sum> sums;
    const auto engine = create_engine(options, std::make_shared<Watched>(sums));
    const Share share = share_of(0, {0, 0, 0, 0, 0, 0, 0, 0});
    const DeviceCounts counts = counted_on_device([&] {
      engine->update_policy({share.tokens, share.mask, share.a, share.b, {}, {}, {}}, share.mini, {}, 1);
    });
    int64_t least = counts.launches, blocks = 0, embeddings = 0;
    for (const Sum& sum : sums) {
      CHECK(!sum.under_way && sum.others == 0);
      if (sum.group.rfind("layers.", 0) == 0) {
        ++blocks;
        if (sum.group != "layers.0") least = std::min(least, sum.operations);
      } else if (sum.group == "embed") {
        ++embeddings;
        CHECK(sum.operations == 0);
      }
    }
    std::printf("  overlap %d: %lld sums of blocks, at least %lld operations meanwhile\n",
                overlap.value_or(true), static_cast<long long>(blocks), static_cast<long long>(least));
    CHECK(embeddings > 2 && blocks == 4 * embeddings);
    if (overlap) {
      CHECK(least == 0);
    } else {
      CHECK(least >= 100);  // products, norms and attention of a block, not the clearing of a buffer
    }
  }
}

// Tokens are chosen on the device: they, their log-probabilities and nothing else come to the host, once per
// step; rows, positions, pages and uniform numbers go to the device without a wait.
TEST(the_host_waits_once_per_step_of_a_generation) {
  constexpr int64_t kSamples = 4, kMore = 8;
  test::SamplingOptions nucleus;
  nucleus.temperature = 0.8;
  nucleus.top_p = 0.9;
  test::SamplingOptions greedy;
  greedy.temperature = 0;
  for (const auto& [variant, sampling] : {std::pair(std::string("qwen3"), test::SamplingOptions{}),
                                          {"qwen3", nucleus},
                                          {"qwen3", greedy},
                                          {"gemma2", nucleus},
                                          {"granite", nucleus},
                                          {"qwen3_moe", test::SamplingOptions{}}}) {
    const auto generated = [&](at::Device device, int64_t tokens) {
      const auto engine = create_engine(on(device, variant, 2), nullptr);
      const test::PromptBatch prompts{
          at::tensor({1, 2, 3, 4, 5}, at::kInt), at::tensor({0, 2, 5}, at::kInt), 2, {7, 8, 9, 10}};
      test::SamplingOptions options = sampling;
      options.max_new_tokens = tokens;
      const auto run = [&] { return test::generate(*engine, prompts, options); };
      run();
      test::GenerateResult result;
      const DeviceCounts counts = counted_on_device([&] { result = run(); });
      return std::pair(result, counts);
    };
    const auto [cpu, none] = generated(at::kCPU, 4 + kMore);
    const auto [device, many] = generated(fake_device(), 4 + kMore);
    const auto [fewer, few] = generated(fake_device(), 4);
    print(variant + ", 4 tokens", few);
    print(variant + ", 12 tokens", many);
    CHECK(cpu.tokens.equal(device.tokens) && cpu.tokens.numel() > fewer.tokens.numel());
    CHECK((cpu.log_probs - device.log_probs).abs().max().item<double>() < 1e-5);
    CHECK(many.waits - few.waits == kMore);
    // Of a row: what became of it, its token, the log-probability.
    CHECK(many.bytes_to_host - few.bytes_to_host == kMore * kSamples * 3 * 4);
  }
}

// Of drafts by the layer for further tokens each guess waits once more: the next one is made of it. However
// many pieces the logits come in.
TEST(the_host_waits_once_per_guess_of_a_generation) {
  for (const char* variant : {"qwen3", "qwen3_moe"}) {
    struct Run {
      std::map<uint64_t, std::vector<int32_t>> tokens;
      RolloutStats stats;
      DeviceCounts counts;
    };
    constexpr uint64_t kRequests = kDecodeRowTile + 8;
    const auto run = [&](at::Device device, int64_t drafts) {
      const auto engine = create_engine(on(device, variant, 2, 1), nullptr);
      RolloutOptions limits;
      limits.drafts = {.num_tokens = drafts, .predicts = true, .max_sequences = 1'000'000};
      limits.logits_bytes = 1;  // of a tile of rows
      Run result;
      engine->open_rollout(limits);
      engine->begin_rollout(0);
      const auto turn = [&](uint64_t first) {
        RolloutCommands commands;
        commands.milliseconds = std::numeric_limits<double>::infinity();
        for (uint64_t id = first; id < first + kRequests; ++id) {
          RolloutRequest request{.id = id, .prompt = {3, 4, static_cast<int32_t>(id % 20)}};
          request.sampling.max_new_tokens = 24;
          request.sampling.temperature = 0;
          commands.submit.push_back(std::move(request));
        }
        return engine->rollout_turn(std::move(commands));
      };
      const int64_t before = turn(0).stats.steps;  // makes what is made once
      result.counts = counted_on_device([&] {
        const RolloutTurn last = turn(100);
        for (const RolloutOutput& output : last.outputs) result.tokens[output.id] = output.tokens;
        result.stats = last.stats;
      });
      result.stats.steps -= before;
      return result;
    };
    const Run cpu = run(at::kCPU, 2), plain = run(fake_device(), 0), device = run(fake_device(), 2);
    CHECK(device.tokens == cpu.tokens && device.tokens == plain.tokens && plain.tokens.size() == kRequests);
    CHECK(plain.counts.waits == plain.stats.steps);
    print(std::string(variant) + ", drafts", device.counts);
    CHECK(device.stats.drafts > 0 && device.counts.waits > device.stats.steps);
    CHECK(device.counts.waits <= 3 * device.stats.steps);
  }
}

TEST_MAIN()
