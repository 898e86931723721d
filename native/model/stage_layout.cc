// Layers by their part; what lies before them with the first, all else with the last.
#include "model/stage_layout.h"

#include <algorithm>
#include <optional>
#include <string>

namespace troupe {

namespace {

std::optional<size_t> group_of(const ParameterLayout& layout, const std::string& parameter) {
  for (const ParameterSpec& spec : layout.parameters) {
    if (spec.info.name == parameter) return spec.group;
  }
  return std::nullopt;
}

// Behind the decoder's own layers.
bool predicts_further(int64_t layer, const std::vector<StageRange>& parts) {
  return layer >= parts.back().last;
}

size_t part_of(const ParameterLayout& layout, size_t group, const std::vector<StageRange>& parts) {
  if (layout.groups[group].before_layers) return 0;
  const std::optional<int64_t> layer = layout.groups[group].layer;
  if (!layer) return parts.size() - 1;
  if (predicts_further(*layer, parts)) return parts.size() - 1;
  const auto found =
      std::find_if(parts.begin(), parts.end(), [&](const StageRange& part) { return part.has(*layer); });
  return static_cast<size_t>(found - parts.begin());
}

}  // namespace

ParameterLayout layout_at_stage(ParameterLayout layout, const std::vector<StageRange>& parts, int64_t stages,
                                int64_t stage) {
  const bool again = !group_of(layout, "head.weight") ||
                     std::any_of(layout.groups.begin(), layout.groups.end(), [&](const GroupSpec& group) {
                       return group.layer && predicts_further(*group.layer, parts);
                     });
  const bool last = static_cast<int64_t>(parts.size() - 1) % stages == stage;
  const std::optional<size_t> embedding = group_of(layout, "embed.weight");
  for (size_t group = 0; group < layout.groups.size(); ++group) {
    GroupSpec& spec = layout.groups[group];
    spec.stage = static_cast<int64_t>(part_of(layout, group, parts)) % stages;
    spec.here = spec.here && spec.stage == stage;
    spec.copy = spec.stage != stage && group == embedding && again && last;
    spec.here = spec.here || spec.copy;
  }
  return layout;
}

}  // namespace troupe
