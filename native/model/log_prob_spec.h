// What a decoder's head makes of logits.
#pragma once

#include "kernels/linear_log_prob.h"
#include "model/model_config.h"

namespace troupe {

// Of softcap(logits) / logits_scaling / temperature. vocabulary: of the ranks that share the head; null:
// none.
inline ops::LogProbSpec log_prob_spec(const ModelConfig& model, double temperature,
                                      const ops::VocabularyShard* vocabulary = nullptr) {
  return {temperature * model.logits_scaling, model.final_softcap, vocabulary};
}

}  // namespace troupe
