// Models of odd shapes on layouts drawn at random have the numbers of one process; where their routers choose
// other experts, because they were undecided.
#include <algorithm>
#include <cstdlib>

#include "routing_trace.h"
#include "tensor_training.h"

using namespace troupe;
using namespace troupe::test;

namespace {

constexpr size_t kUpdates = 3;

using Norms = std::vector<double>;

Norms norms_of(const RoutingTrace& trace) {
  Norms norms;
  for (const Metrics& metrics : trace.metrics) norms.push_back(metrics.at("grad_norm"));
  return norms;
}

// By how much of itself each norm of one process moves when its embeddings move by a rounding.
Norms moved_by_rounding(const RandomLayout& drawn, const Norms& norms) {
  Norms most(norms.size(), 0);
  for (const uint64_t seed : {1, 2, 3}) {
    const auto engine = create_engine(alone(drawn.options));
    const at::Tensor weight = engine->get_tensor(TensorKind::kParam, "embed.weight");
    at::manual_seed(seed);
    set_weights(*engine, {"embed.weight"}, {weight * (1 + 1e-7 * at::randn(weight.sizes()))});
    const Norms moved = norms_of(trace(*engine, drawn, kUpdates));
    for (size_t i = 0; i < most.size(); ++i)
      most[i] = std::max(most[i], std::abs(moved[i] - norms[i]) / norms[i]);
  }
  return most;
}

// Steps make of a rounding what the model is apt to.
bool equal_norms(const RandomLayout& drawn, const RoutingTrace& one, const RoutingTrace& many,
                 size_t updates) {
  const Norms wanted = norms_of(one), found = norms_of(many);
  Norms moved;
  bool equal = true;
  for (size_t update = 0; update < updates; ++update) {
    const double apart = std::abs(found[update] - wanted[update]);
    if (apart <= 1e-5 * wanted[update]) continue;  // 0 where the loss clips every token
    if (moved.empty()) moved = moved_by_rounding(drawn, wanted);
    const bool rounding = apart <= 5 * moved[update] * wanted[update];
    equal = equal && rounding;
    std::printf("  gradient norm %zu is %.9g, that of one process %.9g, which a rounding moves by %.2g\n",
                update, found[update], wanted[update], moved[update] * wanted[update]);
  }
  return equal;
}

// Whether every choice that is not explained by another one was undecided.
bool all_undecided(const std::vector<OtherChoice>& choices) {
  bool all = true;
  for (const OtherChoice& choice : choices) {
    if (choice.follows || choice.undecided()) continue;
    all = false;
    std::printf("  another choice of experts at %s\n", choice.text().c_str());
  }
  return all;
}

// Returns whether routers have chosen other experts.
bool compare(const RandomLayout& drawn) {
  const int before = failures();
  const RoutingTrace one = trace(*create_engine(alone(drawn.options)), drawn, kUpdates);
  const RoutingTrace many = trace_together(drawn, kUpdates);
  bool other = false;
  if (!many.metrics.empty()) {
    CHECK((one.before.log_probs - many.before.log_probs).abs().max().item<double>() < 1e-5);
    CHECK((one.before.entropy - many.before.entropy).abs().max().item<double>() < 1e-5);
    CHECK(many.metrics[0].at("ppo_kl") == 0 && one.metrics[0].at("grad_norm") > 0);
    size_t alike = 0;  // updates before which the routers chose the same
    std::vector<OtherChoice> choices;
    while (alike < kUpdates && (choices = other_choices(drawn, one, many, alike)).empty()) ++alike;
    other = alike < kUpdates;
    CHECK(equal_norms(drawn, one, many, alike));
    CHECK(all_undecided(choices));
    if (other) {  // with the same experts the norms are the same
      std::printf("  %s: other experts before update %zu, first at %s\n", drawn.name.c_str(), alike,
                  choices[0].text().c_str());
      const RoutingTrace told = trace_together(drawn, kUpdates, one.choices);
      CHECK(!told.metrics.empty() && equal_norms(drawn, one, told, kUpdates));
    }
  }
  report(failures() == before, __FILE__, __LINE__, drawn.name);
  return other;
}

}  // namespace

// With TROUPE_TEST_EXHAUSTIVE=1: some hundreds. TROUPE_TEST_SEED: the first number that is drawn from.
TEST(random_layouts_of_random_models_have_the_numbers_of_one_process) {
  const char* seed = std::getenv("TROUPE_TEST_SEED");
  const uint64_t first = seed != nullptr ? std::strtoull(seed, nullptr, 10) : 0;
  const uint64_t draws = std::getenv("TROUPE_TEST_EXHAUSTIVE") != nullptr ? 80 : 3;
  int64_t cases = 0, others = 0;
  for (uint64_t number = first; number < first + draws; ++number) {
    for (const char* family :
         {"llama", "qwen2", "qwen3", "qwen3_moe", "mixtral", "qwen2_moe", "glm4_moe", "gemma3", "smollm3",
          "deepseek_v3", "gpt_oss", "olmo3", "granite", "granitemoe", "glm4"}) {
      const RandomLayout drawn = random_layout(number, family);
      if (drawn.ranks() == 1) continue;
      ++cases;
      others += compare(drawn);
    }
  }
  std::printf("  %ld cases, %ld with other experts\n", cases, others);
  CHECK(cases > 0);
}

// Of latent attention whose values are one number wide: drawn from 13 every rank has one head, from 10 two.
TEST(values_of_one_number_lie_side_by_side) {
  for (const uint64_t number : {10, 13}) {
    const RandomLayout drawn = random_layout(number, "deepseek_v3");
    CHECK(drawn.options.model.latent->value_dim == 1 && drawn.options.parallel.tp > 1);
    compare(drawn);
  }
}

// What tells an undecided router from a wrong one.
TEST(a_wrong_choice_of_experts_is_not_taken_for_rounding) {
  RandomLayout drawn = random_layout(1, "qwen3_moe");
  drawn.options.model.moe = MoeConfig{4, 2, 9, true};
  const RoutingTrace one = trace(*create_engine(alone(drawn.options)), drawn, 1);
  CHECK(other_choices(drawn, one, one, 0).empty());
  const int64_t width = routing_shape(drawn.options.model).width();
  const at::Tensor logits = router_logits(drawn, one.weights[0])[0][0][1];
  const at::Tensor order = logits.argsort(0, true);
  RoutingTrace wrong = one;
  wrong.choices[0] = one.choices[0].clone();
  wrong.choices[0][width + 1] = order[3].item<int64_t>();  // of position 1 the second choice
  const std::vector<OtherChoice> found = other_choices(drawn, one, wrong, 0);
  CHECK(found.size() == 1);
  CHECK(found[0].position == 1 && found[0].layer == 0 && !found[0].follows && found[0].apart == 0);
  CHECK_CLOSE(found[0].margin,
              (logits[order[1].item<int64_t>()] - logits[order[3].item<int64_t>()]).item<double>(), 1e-7);
  CHECK(!found[0].undecided());
  // The same between two experts that the router takes for equal.
  std::vector<at::Tensor> weights = one.weights[0];
  const auto engine = create_engine(alone(drawn.options));
  const std::vector<ParameterInfo> infos = engine->parameters();
  for (size_t i = 0; i < infos.size(); ++i) {
    if (infos[i].name.find("router") != std::string::npos) weights[i] = at::zeros_like(weights[i]);
  }
  RoutingTrace equal = one;
  equal.weights[0] = weights;
  RoutingTrace moved = wrong;
  moved.weights[0] = weights;
  CHECK(other_choices(drawn, equal, moved, 0)[0].undecided());
}

// What a rounding does where routers are undecided, on the layout with the longest way: other experts, other
// norms; and with the experts of one process the norms of one process.
TEST(undecided_routers_are_told_apart_from_wrong_ones) {
  RandomLayout drawn = random_layout(2, "qwen3_moe");
  ModelConfig& model = drawn.options.model;
  model.num_layers = 6;
  model.moe_layers.assign(6, true);
  model.sliding_windows.assign(6, 0);
  model.num_heads = 4;
  model.num_kv_heads = 2;
  model.hidden_size = 24;
  model.moe = MoeConfig{5, 2, 9, true};
  drawn.options.parallel.tp = 2;
  drawn.options.parallel.cp = 1;
  drawn.options.pipeline = {.stages = 3, .chunks = 2};
  // Logits of one token that are a few roundings apart.
  at::manual_seed(1);
  const at::Tensor row = at::randn({1, model.hidden_size});
  std::vector<std::string> names;
  std::vector<at::Tensor> values;
  for (int64_t layer = 0; layer < model.num_layers; ++layer) {
    names.push_back("layers." + std::to_string(layer) + ".moe.router.weight");
    values.push_back(row + at::randn({5, model.hidden_size}).mul_(1e-6));
  }
  const auto prepare = [&](Engine& engine) { set_weights(engine, names, values); };
  const auto whole = create_engine(alone(drawn.options));
  prepare(*whole);
  const RoutingTrace one = trace(*whole, drawn, kUpdates);
  const RoutingTrace many = trace_together(drawn, kUpdates, {}, prepare);
  const std::vector<OtherChoice> choices = other_choices(drawn, one, many, 0);
  CHECK(!choices.empty() && all_undecided(choices));
  const double ratio = many.metrics[0].at("grad_norm") / one.metrics[0].at("grad_norm");
  std::printf("  %zu other choices, gradient norm times 1 + %.3g\n", choices.size(), ratio - 1);
  CHECK(std::abs(ratio - 1) > 1e-5);
  CHECK(equal_norms(drawn, one, trace_together(drawn, kUpdates, one.choices, prepare), kUpdates));
}

TEST_MAIN()
