// The choice of tokens on a GPU.
#pragma once

#include "kernels/token_choices.h"

namespace troupe::kernels::cuda {

// As ops::choose_tokens.
void choose_tokens(const TokenChoices& task);

}  // namespace troupe::kernels::cuda
