// Which merger a tower has.
#include "model/vision_merger.h"

#include "model/gated_merger.h"
#include "model/plain_merger.h"

namespace troupe {

std::unique_ptr<VisionMerger> last_merger(const ParameterStore& store, const ModelConfig& config) {
  const std::string name = "vision.merger";
  if (config.vision->gated_merger_size > 0) return std::make_unique<GatedMerger>(store, config, name);
  return std::make_unique<PlainMerger>(store, config, name);
}

}  // namespace troupe
