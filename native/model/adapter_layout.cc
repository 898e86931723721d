// Which weights may have adapters, and how those are cut.
#include "model/adapter_layout.h"

#include <cmath>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"

namespace troupe {

namespace {

// The weights that adapters may be on, by name.
std::map<std::string, const ParameterSpec*> adaptable(const std::vector<ParameterSpec>& parameters) {
  std::map<std::string, const ParameterSpec*> weights;
  for (const ParameterSpec& spec : parameters) {
    const std::string& name = spec.info.name;
    const auto has = [&](const char* part) { return name.find(part) != std::string::npos; };
    const bool linear = has(".attn.") || has(".delta.in.") || has(".delta.out.") || has(".mamba.in.") ||
                        has(".mamba.out.") || has(".short_conv.in.") || has(".short_conv.out.") ||
                        has(".mlp.") || has(".moe.shared.") || has(".moe.latent.") || has(".token.");
    if (linear && spec.info.shape.size() == 2) weights[name] = &spec;
  }
  return weights;
}

// The adapter of a site on a weight, as far as this rank has it.
struct AdapterParts {
  int64_t row;  // of what the rank holds of the weight
  Placement a, b;
};

AdapterParts adapter_parts(const AdapterSite& site, const Placement& weight, int64_t rank,
                           const DecoderPart& part) {
  const std::vector<int64_t> a_shape{rank, weight.shape[1]}, b_shape{site.rows, rank};
  // summed: ranks that all have it find parts of its gradient.
  const auto everywhere = [&](const std::vector<int64_t>& shape, bool summed = true) {
    return place(shape, 0, {{shape[0], shape[0], 0, part.tp, part.tp_rank, summed && part.tp > 1}});
  };
  if (part.whole()) return {site.row, everywhere(a_shape), everywhere(b_shape)};
  // x A^T is a sum over the ranks, and so is what B makes of it.
  if (weight.dimension == 1) return {site.row, place(a_shape, 1, weight.blocks), everywhere(b_shape)};
  std::vector<CutBlock> covered;  // B is cut as the rows of the weight are
  int64_t begin = 0, row = 0, first = 0, rows = 0;
  for (const CutBlock& block : weight.blocks) {
    if (begin >= site.row && begin + block.size <= site.row + site.rows) {
      if (covered.empty()) first = row;
      covered.push_back(block);
      rows += block.size;
    }
    begin += block.size;
    row += block.per;
  }
  require(
      rows == site.rows, ErrorCode::kInvalidArgument, "[lora] site ", site.name,
      ": tensor parallelism cuts q, k, v, gate and up each by itself, and expects adapters on whole ones of "
      "them, got rows ",
      site.row, " to ", site.row + site.rows, " of ", site.param);
  // Of a weight that all ranks have, and use alike, they find the same gradient.
  const bool alike = covered.front().copies == part.tp && !covered.front().summed;
  return {first, everywhere(a_shape, !alike), place(b_shape, 0, std::move(covered))};
}

}  // namespace

void add_adapters(ParameterLayout& layout, const LoraOptions& lora, const DecoderPart& part) {
  require(lora.rank > 0, ErrorCode::kInvalidArgument, "[lora] expected a rank > 0, got ", lora.rank);
  require(std::isfinite(lora.scale), ErrorCode::kInvalidArgument, "[lora] expected a finite scale, got ",
          lora.scale);
  require(!lora.sites.empty(), ErrorCode::kInvalidArgument, "[lora] expected at least one site");
  const std::vector<ParameterSpec> base = layout.parameters;
  const auto weights = adaptable(base);
  std::set<std::string> names;
  std::map<size_t, size_t> groups;  // of adapters, by the group of the weights that they are on
  for (const AdapterSite& site : lora.sites) {
    const auto found = weights.find(site.param);
    require(found != weights.end(), ErrorCode::kInvalidArgument, "[lora] site ", site.name, ": '", site.param,
            "' is not the weight of a linear layer that takes adapters: one of attention, of linear "
            "attention, of an "
            "MLP, of shared experts, of the latents of experts or of the gate of a token");
    const ParameterSpec& weight = *found->second;
    const std::vector<int64_t>& shape = weight.placement.shape;
    require(site.row >= 0 && site.rows > 0 && site.row + site.rows <= shape[0], ErrorCode::kInvalidArgument,
            "[lora] site ", site.name, ": rows ", site.row, " to ", site.row + site.rows, " are outside ",
            site.param, ", which has ", shape[0]);
    require(site.name.rfind("layers.", 0) == 0 && names.insert(site.name).second, ErrorCode::kInvalidArgument,
            "[lora] expected a name of its own that begins with layers. for each site, got '", site.name,
            "'");
    const auto [group, fresh] = groups.emplace(weight.group, layout.groups.size());
    if (fresh) {
      const GroupSpec adapted = layout.groups[weight.group];
      layout.groups.push_back({adapted.name + ".lora", adapted.layer, true, weight.group});
    }
    AdapterParts parts = adapter_parts(site, weight.placement, lora.rank, part);
    const AdapterParameters adapter{site.name + ".lora_a", site.name + ".lora_b", parts.row, lora.scale};
    const std::vector<int64_t> a_shape = local_shape(parts.a), b_shape = local_shape(parts.b);
    layout.parameters.push_back(
        {{adapter.a, a_shape}, group->second, InitialValue::kUniform, std::move(parts.a), {lora.rank}});
    layout.parameters.push_back(
        {{adapter.b, b_shape}, group->second, InitialValue::kZero, std::move(parts.b), {site.rows}});
    layout.adapters[site.param].push_back(adapter);
  }
}

}  // namespace troupe
