// Which groups of parameters a stage of a pipeline holds.
#pragma once

#include <vector>

#include "model/stage_range.h"
#include "parameters/parameter_layout.h"

namespace troupe {

// The layout of a whole decoder (model/decoder_layout.h), its groups marked as here or not. parts: of the
// decoder; those with k % stages == stage are this stage's. Layers that predict further tokens are the last
// stage's, which has a copy of the embeddings where they, or a tied head, use these.
ParameterLayout layout_at_stage(ParameterLayout layout, const std::vector<StageRange>& parts, int64_t stages,
                                int64_t stage);

}  // namespace troupe
