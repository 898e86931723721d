// Every layout of a table has the numbers of one process: eight ranks that share matrices, layers and data,
// and the smaller ones.

#include "tensor_training.h"

using namespace troupe;
using namespace troupe::test;

namespace {

struct Layout {
  int64_t tp = 1, cp = 1, pp = 1, vpp = 1, ep = 1, groups = 1;  // groups: of ranks with the same data
  bool sequence_parallel = false, recompute = false;

  int64_t ranks() const { return tp * cp * pp * groups; }
};

// As verl's Megatron examples lay out the largest models.
constexpr Layout kEight{.tp = 2, .pp = 2, .groups = 2};

const std::vector<Layout> kLayouts{
    {.tp = 2},
    {.tp = 4},
    {.pp = 2},
    {.pp = 4},
    {.pp = 2, .vpp = 2},
    {.tp = 2, .pp = 2},
    {.tp = 2, .groups = 2},
    {.cp = 2},
    {.tp = 2, .cp = 2},
    {.ep = 2, .groups = 2},
    {.tp = 2, .ep = 2, .groups = 2},
    kEight,
    {.tp = 2, .pp = 2, .vpp = 2, .groups = 2},
    {.tp = 2, .pp = 2, .ep = 2, .groups = 2},
    {.tp = 2, .cp = 2, .pp = 2},
};

const std::vector<std::string> kFamilies{
    "llama",       "qwen2",   "qwen3",       "qwen3_moe", "mixtral",     "qwen2_moe",     "glm4_moe",
    "gemma3",      "smollm3", "deepseek_v3", "latent",    "gpt_oss",     "qwen3_5",       "qwen3_next",
    "olmo3",       "granite", "granitemoe",  "glm4",      "deepseek_v2", "mamba2",        "nemotron_h",
    "olmo_hybrid", "lfm2",    "lfm2_moe",    "gemma4",    "gemma4_moe",  "gemma4_shared", "apertus"};

bool has_experts(const std::string& family) {
  return family == "qwen3_moe" || family == "mixtral" || family == "qwen2_moe" || family == "glm4_moe" ||
         family == "deepseek_v3" || family == "deepseek_v2" || family == "gpt_oss" ||
         family == "qwen3_next" || family == "granitemoe" || family == "nemotron_h" || family == "lfm2_moe" ||
         family == "gemma4_moe";
}

bool is_convolution(const std::string& family) {
  return family == "lfm2" || family == "lfm2_moe";
}

bool is_linear(const std::string& family) {
  return family == "qwen3_5" || family == "qwen3_next" || family == "mamba2" || family == "nemotron_h" ||
         family == "olmo_hybrid" || is_convolution(family);
}

// Four layers, so that four stages, or two of two ranges each, have one of their own.
EngineOptions options_of(const std::string& family, HeadKind head, const Layout& layout) {
  constexpr int64_t kLayers = 4;
  const bool deepseek = family == "glm4_moe" || family == "deepseek_v3" || family == "deepseek_v2";
  const bool gates = family == "qwen3_5" || family == "qwen3_next";
  const bool mamba = family == "mamba2" || family == "nemotron_h";
  const bool own = deepseek || gates || mamba || is_convolution(family) || family == "gpt_oss" ||
                   family == "granitemoe" || family == "gemma4_moe";
  const std::string variant = has_experts(family) && !own ? "qwen3_moe" : family;
  EngineOptions options = tensor_options(variant, head, layout.tp, layout.sequence_parallel && layout.tp > 1);
  ModelConfig& model = options.model;
  model.family = family;
  const bool windows = variant == "qwen3" || variant == "gemma3" || variant == "olmo3" ||
                       variant == "gpt_oss" || model.second_heads;
  give_windows(model, {0, windows ? 30 : 0, 0, 0});
  CHECK(model.num_layers == kLayers);
  if (variant == "smollm3") model.second_rope_layers = {false, true, false, false};
  if (has_experts(family)) model.moe_layers = {family != "qwen3_moe", true, true, true};
  model.qk_norm = family == "qwen3" || family == "qwen3_moe" || family == "gemma3" || family == "apertus" ||
                  gates || is_convolution(family) || model.second_heads;
  if (is_linear(family)) {
    model.linear_layers = {true, false, true, true};
    give_linear_heads(model, 4, 8);
  }
  if (mamba) model.bare_layers = {false, true, true, false};
  if (family == "nemotron_h") model.moe_layers = {true, false, false, true};
  // No norm makes large what comes in: with tiny embeddings ten updates make the rounding of the first a
  // thousand times larger, on one rank that has other micro-batches, too (1e-8 to 7e-6 of a gradient's norm).
  if (family == "olmo3" || family == "olmo_hybrid") model.embedding_scale = 50;
  if (model.qk_norm) model.attention_scale = 0.5;  // 1 / sqrt(head_dim)
  if (family == "qwen2_moe") {
    model.qkv_bias = true;
    model.moe->normalize_top_k = false;
    model.moe->shared_intermediate_size = 21;
  }
  options.parallel.cp = layout.cp;
  options.parallel.ep = layout.ep;
  options.pipeline.stages = layout.pp;
  options.pipeline.chunks = layout.vpp;
  options.gradient_checkpointing = layout.recompute;
  options.activation_offload = layout.recompute && !layout.sequence_parallel;
  return options;
}

void compare_layout(const std::string& family, HeadKind head, const Layout& layout) {
  const int before = failures();
  Task task;  // ten updates
  if (head == HeadKind::kLm) task.policy.entropy_coeff = 0.01;
  compare(options_of(family, head, layout), layout.groups, task);
  const auto axis = [](const char* name, int64_t size) {
    return size > 1 ? std::string(" ") + name + " " + std::to_string(size) : std::string();
  };
  report(failures() == before, __FILE__, __LINE__,
         family + (head == HeadKind::kLm ? "" : " critic") + axis("tp", layout.tp) + axis("cp", layout.cp) +
             axis("pp", layout.pp) + axis("vpp", layout.vpp) + axis("ep", layout.ep) +
             axis("dp", layout.groups) + (layout.sequence_parallel ? ", sequence parallel" : "") +
             (layout.recompute ? ", recompute" : ""));
}

}  // namespace

// Log-probs, entropies or values before, ten updates and the norm of every gradient, on eight ranks.
TEST(eight_ranks_that_share_matrices_layers_and_data_have_the_numbers_of_one) {
  Layout layout = kEight;
  compare_layout("llama", HeadKind::kLm, layout);
  layout.sequence_parallel = true;
  compare_layout("qwen2", HeadKind::kValue, layout);
  layout.recompute = true;
  compare_layout("qwen3_moe", HeadKind::kLm, layout);
  layout.sequence_parallel = false;
  compare_layout("qwen3", HeadKind::kLm, layout);
  compare_layout("glm4_moe", HeadKind::kLm, {.tp = 2, .pp = 2, .ep = 2, .groups = 2});
  compare_layout("gemma3", HeadKind::kLm, layout);
  compare_layout("smollm3", HeadKind::kLm, layout);
  compare_layout("olmo3", HeadKind::kLm, layout);
  compare_layout("granite", HeadKind::kLm, layout);
  compare_layout("glm4", HeadKind::kLm, layout);
  compare_layout("apertus", HeadKind::kLm, layout);
  compare_layout("deepseek_v3", HeadKind::kLm, layout);
  compare_layout("gemma4", HeadKind::kLm, layout);
  compare_layout("gemma4_moe", HeadKind::kLm, {.tp = 2, .pp = 2, .ep = 2, .groups = 2});
  compare_layout("gemma4_shared", HeadKind::kLm, {.tp = 2, .cp = 2, .groups = 2});
  compare_layout("latent", HeadKind::kValue, layout);
  compare_layout("gpt_oss", HeadKind::kLm, layout);
  compare_layout("gpt_oss", HeadKind::kLm, {.tp = 2, .pp = 2, .ep = 2, .groups = 2});
  compare_layout("granitemoe", HeadKind::kLm, {.tp = 2, .pp = 2, .ep = 2, .groups = 2});
  compare_layout("qwen3_next", HeadKind::kLm, {.tp = 2, .pp = 2, .ep = 2, .groups = 2});
  compare_layout("nemotron_h", HeadKind::kLm, {.tp = 2, .pp = 2, .ep = 2, .groups = 2});
  layout.sequence_parallel = layout.recompute = true;
  compare_layout("qwen3_5", HeadKind::kValue, layout);
  compare_layout("olmo_hybrid", HeadKind::kLm, layout);
  compare_layout("qwen3_next", HeadKind::kLm, {.tp = 2, .cp = 2, .pp = 2});
  compare_layout("lfm2", HeadKind::kLm, {.tp = 2, .cp = 2, .pp = 2});
  compare_layout("lfm2_moe", HeadKind::kLm, {.tp = 2, .pp = 2, .ep = 2, .groups = 2});
  compare_layout("mamba2", HeadKind::kLm, {.tp = 2, .pp = 4, .sequence_parallel = true, .recompute = true});
}

// With TROUPE_TEST_EXHAUSTIVE=1: every layout of the table with every family that it can have, with both
// heads, with and without sequence parallelism and recomputation.
TEST(every_layout_of_every_family_has_the_numbers_of_one) {
  if (std::getenv("TROUPE_TEST_EXHAUSTIVE") == nullptr) return;
  int64_t compared = 0;
  for (Layout layout : kLayouts) {
    for (const std::string& family : kFamilies) {
      if (layout.ep > 1 && !has_experts(family)) continue;
      if (layout.pp > 1 && family == "gemma4_shared") continue;  // no pipeline may cut it
      for (const HeadKind head : {HeadKind::kLm, HeadKind::kValue}) {
        for (const bool recompute : {false, true}) {
          for (const bool sequence_parallel : {false, true}) {
            if (sequence_parallel && layout.tp == 1) continue;
            layout.recompute = recompute;
            layout.sequence_parallel = sequence_parallel;
            compare_layout(family, head, layout);
            ++compared;
          }
        }
      }
    }
  }
  std::printf("  %ld cases\n", compared);
}

TEST(the_first_forward_of_an_update_on_eight_ranks_has_the_bits_of_compute_log_prob) {
  for (const std::string family : {"qwen3", "qwen3_moe"}) {
    Layout layout = kEight;
    layout.sequence_parallel = layout.recompute = family == "qwen3";
    check_first_forward(options_of(family, HeadKind::kLm, layout), layout.tp * layout.pp);
  }
}

TEST_MAIN()
