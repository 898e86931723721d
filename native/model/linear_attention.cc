// Which mixer a model has.
#include "model/linear_attention.h"

#include "model/gated_delta_net.h"
#include "model/mamba2.h"
#include "model/short_convolution.h"

namespace troupe {

std::unique_ptr<LinearAttention> linear_attention(const ParameterStore& store, const ModelConfig& config,
                                                  const std::string& prefix) {
  const LinearAttentionConfig& linear = *config.linear;
  const std::string name = prefix + linear_attention_name(linear);
  switch (linear.rule) {
    case LinearRule::kMamba2: return std::make_unique<Mamba2>(store, linear, name);
    case LinearRule::kShortConv: return std::make_unique<ShortConvolution>(store, linear, name);
    case LinearRule::kGatedDelta: break;
  }
  return std::make_unique<GatedDeltaNet>(store, linear, name);
}

}  // namespace troupe
