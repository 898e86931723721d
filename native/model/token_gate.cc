// The gate in tiles of rows, forward and backward.
#include "model/token_gate.h"

#include <ATen/ATen.h>

#include "base/parallel.h"

namespace troupe {

namespace {

at::Tensor rows_of(const at::Tensor& t, int64_t begin, int64_t end) {
  return t.narrow(0, begin, end - begin);
}

}  // namespace

TokenGate::TokenGate(const ParameterStore& store, const ModelConfig& config, const std::string& name)
    : activation_(config.activation),
      in_(store, name + ".in"),
      out_(store, name + ".out"),
      norm_(store, config, name + ".norm") {}

void TokenGate::forward(const at::Tensor& y, const at::Tensor& inputs, int64_t row_tile,
                        TokenGateSaved* saved, const Packed& packed) const {
  const int64_t total = y.size(0), width = size();
  TokenGateSaved unused;
  TokenGateSaved& s = saved != nullptr ? *saved : unused;
  if (saved != nullptr) {
    s.y = y.clone();
    s.both = at::empty({total, 2 * width}, y.options());
    s.product = at::empty_like(y);
    s.norm = NormStats::make(norm_, total);
  }
  for_each_row_tile(
      total, row_tile, y.device(),
      [&](int64_t begin, int64_t end) {
        const auto tile = [&](const at::Tensor& kept, int64_t columns) {
          return kept.defined() ? rows_of(kept, begin, end) : at::empty({end - begin, columns}, y.options());
        };
        const at::Tensor target = rows_of(y, begin, end);
        const at::Tensor both = tile(s.both, 2 * width), product = tile(s.product, y.size(1));
        in_.forward(target, both.narrow(1, 0, width), packed.in);
        both.narrow(1, width, width).copy_(rows_of(inputs, begin, end));
        const at::Tensor gated = at::empty({end - begin, width}, y.options());
        ops::activation_forward(activation_, /*gated=*/true, both, gated);
        out_.forward(gated, product, packed.out);
        const at::Tensor normed = at::empty_like(product);
        norm_forward(norm_, product, normed, s.norm.rows(begin, end - begin));
        target.add_(normed);
      },
      packed.in.packed());
}

void TokenGate::backward(const at::Tensor& dy, const at::Tensor& d_inputs, int64_t row_tile,
                         const TokenGateSaved& saved) const {
  const int64_t total = dy.size(0), width = size();
  const at::Tensor d_product = at::empty_like(dy), gated = at::empty({total, width}, dy.options());
  const at::Tensor& d_both = saved.both;  // in place: the operation takes its own output as input
  const Linear::Packed in_weight = in_.pack_backward(), out_weight = out_.pack_backward();
  NormGradient norm(norm_, total, row_tile);
  for_each_row_tile(total, row_tile, dy.device(), [&](int64_t begin, int64_t end) {
    const auto here = [&](const at::Tensor& t) { return rows_of(t, begin, end); };
    norm.backward(begin, here(dy), here(saved.product), saved.norm.rows(begin, end - begin), here(d_product),
                  false);
    const at::Tensor d_gated = at::empty_like(here(gated));
    out_.backward_input(here(d_product), d_gated, out_weight);
    ops::activation_backward(activation_, /*gated=*/true, d_gated, here(d_both), here(d_both), here(gated));
    if (d_inputs.defined()) here(d_inputs).copy_(here(d_both).narrow(1, width, width));
    const at::Tensor d_row = at::empty_like(here(dy));
    in_.backward_input(here(d_both).narrow(1, 0, width), d_row, in_weight);
    here(dy).add_(d_row);
  });
  norm.finish();
  out_.accumulate_grad(d_product, gated);
  in_.accumulate_grad(d_both.narrow(1, 0, width), saved.y);
}

}  // namespace troupe
