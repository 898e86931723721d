// Tokens from rows of logits, where the logits lie.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace troupe::kernels {

// What choose_tokens is given, all on one device; arrays of structs (kernels/token_choice.h) as bytes.
struct TokenChoices {
  at::Tensor logits;   // [>= n, V] float32, adjacent columns; they stay as they are
  at::Tensor wishes;   // [n, sizeof(TokenWish)]: of row i of the logits
  at::Tensor changes;  // [m, sizeof(RowChanges)]: of rows that are sampled from changed logits; m may be 0
  at::Tensor seen;     // [.., sizeof(SeenToken)]
  at::Tensor biases;   // [.., sizeof(TokenBias)]
  at::Tensor words;    // [..] int32: of masks
  at::Tensor out;      // [n, choice_words(most)] int32, contiguous
};

}  // namespace troupe::kernels

namespace troupe::ops {

// Whether choose_tokens takes logits on this device: the CPU, a GPU in a build with CUDA, and a device whose
// memory is the host's.
bool chooses_tokens(const at::Tensor& logits);

// Chooses for every row as its wish says. The host reads nothing: it may go on, and read `out` when it has
// to. The same code on all devices; exp, and with it sums, differ by rounding.
void choose_tokens(const kernels::TokenChoices& task);

}  // namespace troupe::ops
