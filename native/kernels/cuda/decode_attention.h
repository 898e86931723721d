// Attention of a decoding step on a GPU.
#pragma once

#include "kernels/paged_attention.h"

namespace troupe::kernels::cuda {

// Stores the key and value of each row at its last position, then lets its queries attend. Softmax and sums
// are in float32, in an order that depends on the row's own length alone.
void decode_attention(const PagedAttention& task);

}  // namespace troupe::kernels::cuda
