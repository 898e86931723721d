// The parameters of low-rank adapters.
#pragma once

#include "model/decoder_layout.h"
#include "parameters/parameter_layout.h"

namespace troupe {

// Adds those of every site to the layout of a decoder, in groups of their own behind the others: see
// decoder_layout(), which says what is refused.
void add_adapters(ParameterLayout& layout, const LoraOptions& lora, const DecoderPart& part);

}  // namespace troupe
