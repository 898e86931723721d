#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <utility>

#include "base/error.h"
#include "check.h"
#include "forwarding_decoder.h"
#include "model/linear_attention.h"
#include "rollout_answers.h"

// Generation with layers of linear attention, whose states lie beside the pages of keys and values.

using namespace troupe;
using namespace troupe::test;

namespace {

// One call of which fails, as for want of memory.
class FailingDecoder final : public ForwardingDecoder {
 public:
  using ForwardingDecoder::ForwardingDecoder;

  int64_t calls_left = -1;  // of block_output(), before one fails

  void block_output(int64_t layer, const at::Tensor& x, const at::Tensor& attn, const at::Tensor& inputs,
                    const at::Tensor& out) override {
    if (calls_left >= 0 && calls_left-- == 0) throw Error(ErrorCode::kOutOfMemory, "no memory");
    ForwardingDecoder::block_output(layer, x, attn, inputs, out);
  }
};

const std::vector<std::pair<const char*, at::ScalarType>> kMixers{
    {"qwen3_5", at::kFloat},     {"qwen3_5", at::kBFloat16}, {"qwen3_5", at::kDouble},
    {"mamba2", at::kFloat},      {"mamba2", at::kBFloat16},  {"mamba2", at::kDouble},
    {"olmo_hybrid", at::kFloat}, {"lfm2", at::kFloat},       {"lfm2", at::kBFloat16},
    {"lfm2", at::kDouble}};

}  // namespace

// In float64 as on a GPU: in LibTorch's operations, up to rounding.
TEST(a_step_has_the_bits_of_a_forward) {
  at::NoGradGuard no_grad;
  for (const auto& [variant, dtype] : kMixers) {
    SmallModel model(small(variant), std::nullopt, dtype);
    const auto net = linear_attention(model.store, model.config, "layers.0.");
    const LinearAttentionConfig& linear = *model.config.linear;
    const int64_t total = 90;
    at::manual_seed(1);
    const at::Tensor mixed = at::randn({total, net->columns()}).to(dtype);
    const at::Tensor whole = net->forward(mixed, ops::separate_segments({0, 50, total}), nullptr);
    const LinearStates states{at::full({3, kernels::kConvWidth - 1, linear.channels()}, NAN, dtype),
                              at::full({3, linear.value_heads, linear.key_dim, linear.value_dim}, NAN,
                                       dtype == at::kDouble ? dtype : at::kFloat)};
    // Two sequences in the slots 2 and 0, by chunks of so many rows.
    int64_t done[2] = {0, 0};
    const int64_t first[2] = {0, 50}, length[2] = {50, 40}, slots[2] = {2, 0};
    for (const int64_t chunk : {1, 1, 2, 1, 17, 3, 1, 4, 50}) {
      std::vector<at::Tensor> rows, expected;
      std::vector<ops::StateRun> runs;
      int64_t row = 0;
      for (int sequence = 0; sequence < 2; ++sequence) {
        const int64_t count = std::min(chunk, length[sequence] - done[sequence]);
        if (count == 0) continue;
        runs.push_back({row, count, slots[sequence], done[sequence] == 0});
        rows.push_back(mixed.narrow(0, first[sequence] + done[sequence], count));
        expected.push_back(whole.narrow(0, first[sequence] + done[sequence], count));
        done[sequence] += count;
        row += count;
      }
      const at::Tensor out = at::empty({row, linear.values()}, mixed.options());
      net->step(at::cat(rows), runs, {}, states, out);
      const at::Tensor all = at::cat(expected);
      CHECK(dtype == at::kDouble ? at::allclose(out, all, 1e-12, 1e-12) : at::equal(out, all));
    }
    CHECK(done[0] == length[0] && done[1] == length[1]);
  }
}

// Behind single rows, the first and the last row of a run, and several rows of one, beside runs that keep
// none.
TEST(a_snapshot_is_the_state_behind_its_rows) {
  at::NoGradGuard no_grad;
  for (const auto& [variant, dtype] : kMixers) {
    SmallModel model(small(variant), std::nullopt, dtype);
    const auto net = linear_attention(model.store, model.config, "layers.0.");
    const LinearAttentionConfig& linear = *model.config.linear;
    const at::ScalarType wide = dtype == at::kDouble ? dtype : at::kFloat;
    const auto states = [&] {
      return LinearStates{at::full({8, kernels::kConvWidth - 1, linear.channels()}, NAN, dtype),
                          at::full({8, linear.value_heads, linear.key_dim, linear.value_dim}, NAN, wide)};
    };
    at::manual_seed(2);
    const at::Tensor mixed = at::randn({60, net->columns()}).to(dtype);
    const auto step = [&](const at::Tensor& rows, const std::vector<ops::StateRun>& runs,
                          const std::vector<StateSnapshot>& snapshots, const LinearStates& there) {
      const at::Tensor out = at::empty({rows.size(0), linear.values()}, mixed.options());
      net->step(rows, runs, snapshots, there, out);
      return out;
    };
    // Two sequences, in slots 0 and 1: rows [0, 2) + [2, 30), and [30, 60).
    const LinearStates kept = states(), plain = states();
    const std::vector<ops::StateRun> first{{0, 2, 0, true}};
    const std::vector<ops::StateRun> second{{0, 28, 0, false}, {28, 30, 1, true}};
    for (const LinearStates& there : {kept, plain}) step(mixed.narrow(0, 0, 2), first, {}, there);
    const std::vector<StateSnapshot> snapshots{{0, 1, 2}, {0, 20, 3}, {0, 28, 4}, {1, 2, 5}, {1, 17, 6}};
    const auto same_numbers = [&](const at::Tensor& a, const at::Tensor& b) {
      return dtype == at::kDouble ? at::allclose(a, b, 1e-12, 1e-12) : at::equal(a, b);
    };
    const auto same = [&](const LinearStates& a, int64_t i, const LinearStates& b, int64_t j) {
      return same_numbers(a.conv[i], b.conv[j]) && same_numbers(a.rule[i], b.rule[j]);
    };
    CHECK(same_numbers(step(mixed.narrow(0, 2, 58), second, snapshots, kept),
                       step(mixed.narrow(0, 2, 58), second, {}, plain)));
    CHECK(same(kept, 0, plain, 0) && same(kept, 1, plain, 1));
    for (const StateSnapshot& snapshot : snapshots) {
      const LinearStates alone = states();
      const int64_t begin = snapshot.run == 0 ? 0 : 30, count = snapshot.count + (snapshot.run == 0 ? 2 : 0);
      step(mixed.narrow(0, begin, count), {{0, count, 7, true}}, {}, alone);
      CHECK(same(kept, snapshot.slot, alone, 7));
    }
  }
}

TEST(few_slots_and_pages_change_no_token) {
  for (const char* variant : {"qwen3_5", "qwen3_next", "nemotron_h", "olmo_hybrid"}) {
    SmallModel model(long_model(variant));
    model.transformer.begin_decoding();
    const std::vector<RolloutRequest> requests = some(20);
    const Answers together = run(model.transformer, requests);
    const int64_t slot = StateCache::slot_bytes(model.config, at::kFloat),
                  page = KvCache::page_bytes(model.config, at::kFloat);
    for (const auto& [slots, pages] : std::vector<std::pair<int64_t, int64_t>>{{1, 4}, {3, 5}, {20, 6}}) {
      RolloutOptions options{.kv_cache_bytes = slots * slot + pages * page};
      options.state_slots = slots;
      Rollout rollout(model.transformer, options);
      CHECK(rollout.stats().cache_bytes == options.kv_cache_bytes && rollout.stats().pages == pages);
      for (const RolloutRequest& r : requests) rollout.submit(r);
      Answers answers;
      int64_t most = 0;
      while (rollout.step()) {
        most = std::max(most, rollout.stats().running);
        take(rollout, answers);
      }
      take(rollout, answers);
      CHECK(answers == together);
      CHECK(most <= slots && (slots == 1 || most > 1));
      CHECK((rollout.stats().preemptions > 0) == (slots > 1));
      CHECK(rollout.stats().pages_held == 0 && rollout.stats().slots_held == 0);
    }
    model.transformer.end_decoding();
  }
}

TEST(samples_of_a_prompt_go_on_from_its_state) {
  SmallModel model(long_model("qwen3_5"));
  std::vector<RolloutRequest> requests;
  for (uint64_t id = 0; id < 4; ++id) requests.push_back(request(id, prompt(75), 8));
  Rollout rollout(model.transformer, {});
  const Answers answers = run(rollout, requests);
  CHECK(rollout.stats().computed_tokens == 75 + 4 * 7);
  for (const RolloutRequest& r : requests) {
    const Answer alone = run(model.transformer, {r}).at(r.id);
    CHECK(alone.tokens == answers.at(r.id).tokens && alone.log_probs == answers.at(r.id).log_probs);
  }
}

TEST(aborted_and_parked_sequences_leave_their_slots) {
  SmallModel model(long_model("qwen3_next"));
  const std::vector<RolloutRequest> requests = some(12);
  const Answers together = run(model.transformer, requests);
  RolloutOptions options;
  options.max_sequences = 4;
  Rollout rollout(model.transformer, options);
  for (uint64_t id = 100; id < 108; ++id) rollout.submit(request(id, prompt(30, 3), 40));
  for (int64_t step = 0; step < 5; ++step) rollout.step();
  for (uint64_t id = 100; id < 107; ++id) rollout.abort(id);
  for (const RolloutRequest& r : requests) rollout.submit(r);
  for (int64_t step = 0; step < 5; ++step) rollout.step();
  CHECK(rollout.park(/*preempt=*/true));
  const Answers all = finish(rollout);
  for (const auto& [id, answer] : together) CHECK(all.at(id) == answer);
  CHECK(rollout.stats().pages_held == 0 && rollout.stats().slots_held == 0);
}

// What the layers before have done to their states cannot be done a second time.
TEST(a_step_that_fails_is_computed_again_from_the_start) {
  SmallModel model(long_model("qwen3_5"));
  const std::vector<RolloutRequest> requests = some(6);
  const Answers together = run(model.transformer, requests);
  for (const int64_t drafts : {0, 3}) {
    FailingDecoder decoder(model.transformer);
    RolloutOptions options{.max_step_tokens = 40};
    options.drafts = {.num_tokens = drafts, .min_match = 1, .max_sequences = 1000};
    Rollout rollout(decoder, options);
    for (const RolloutRequest& r : requests) rollout.submit(r);
    Answers answers;
    for (int64_t step = 0; step < 24; ++step) {
      if (step == 2 || step == 7 || step == 20) {
        decoder.calls_left = 1;  // the first layer's states are those of the step
        CHECK_THROWS(rollout.step(), "no memory");
        CHECK(rollout.stats().running == 0 && rollout.stats().slots_held == 0);
      }
      rollout.step();
      take(rollout, answers);
    }
    CHECK(finish(rollout, std::move(answers)) == together);
    CHECK(rollout.stats().slots_held == 0 && (rollout.stats().drafts > 0) == (drafts > 0));
  }
}

TEST(memory_for_one_state_and_one_page_is_the_least) {
  SmallModel model(long_model("qwen3_5"));
  const int64_t slot = StateCache::slot_bytes(model.config, at::kFloat),
                page = KvCache::page_bytes(model.config, at::kFloat);
  // q, k and v of 24 and 20 numbers, three rows of them, and 4 heads of 6 x 5.
  CHECK(slot == 4 * (3 * (24 + 20) + 4 * 6 * 5));
  CHECK(page == 4 * 2 * 2 * 8 * kPagePositions);
  const auto sizes = [&](int64_t bytes, bool prefix_caching = true) {
    return cache_sizes({.max_positions = 200, .kv_cache_bytes = bytes, .prefix_caching = prefix_caching},
                       model.config, at::kFloat);
  };
  CHECK(sizes(slot + page).slots == 1 && sizes(slot + page).pages == 1);
  CHECK(sizes(20 * slot + 3 * page).slots > 10 && sizes(int64_t{1} << 30).sequences == 256);
  // All that is left is for what the prefix cache keeps; without one, and where pages take no memory, no more
  // than sequences fill.
  CHECK(sizes(int64_t{1} << 30).pages == ((int64_t{1} << 30) - 512 * slot) / page);
  CHECK(sizes(int64_t{1} << 30, false).pages == 256 * 7);
  ModelConfig no_attention = model.config;
  no_attention.linear_layers.assign(no_attention.linear_layers.size(), true);
  CHECK(cache_sizes({.max_positions = 200}, no_attention, at::kFloat).pages == 256 * 7);
  // For snapshots as many again, and no more than a quarter of the bytes.
  CHECK(sizes(int64_t{1} << 30).slots == 512 && sizes(int64_t{1} << 30, false).slots == 256);
  CHECK(sizes(1200 * slot).sequences == 256 && sizes(1200 * slot).slots == 300);
  CHECK(sizes(600 * slot).sequences == 256 && sizes(600 * slot).slots == 256);
  CHECK_THROWS(sizes(slot + page - 1), "and the state of one sequence, " + std::to_string(slot) + " bytes");
}

TEST_MAIN()
