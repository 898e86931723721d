// A decoder layer that ends behind its mixer, without an MLP.
#include <ATen/ATen.h>

#include "base/parallel.h"
#include "megatron/exchange.h"
#include "model/block.h"

namespace troupe {

namespace {

at::Tensor rows_of(const at::Tensor& t, int64_t begin, int64_t end) {
  return t.narrow(0, begin, end - begin);
}

}  // namespace

void Block::output_alone(const at::Tensor& x, const at::Tensor& attn, const RowContext& rows,
                         const at::Tensor& out, const OutputWeights& weights) const {
  if (!out.defined()) return;  // a backward pass needs nothing of it
  if (rows.exchange == nullptr) {
    const bool in_place = out.is_alias_of(x);  // in a generation; what is added is read behind the product
    for_each_row_tile(
        x.size(0), rows.row_tile, x.device(),
        [&](int64_t begin, int64_t end) {
          const at::Tensor target = rows_of(out, begin, end);
          const at::Tensor sum = in_place ? at::empty_like(target) : target;
          add_product(attn_out_, rows_of(attn, begin, end), rows_of(x, begin, end), sum, weights.attn_out);
          if (in_place) target.copy_(sum);
        },
        weights.attn_out.packed());
    return;
  }
  const at::Tensor part = at::empty({attn.size(0), x.size(1)}, x.options());
  for_each_row_tile(
      attn.size(0), rows.row_tile, x.device(),
      [&](int64_t begin, int64_t end) {
        attn_out_.forward_part(rows_of(attn, begin, end), rows_of(part, begin, end), weights.attn_out);
      },
      weights.attn_out.packed());
  const at::Tensor all = rows.exchange->sum(part, {rows.phase, name_ + " output"});
  for_each_row_tile(x.size(0), rows.row_tile, x.device(), [&](int64_t begin, int64_t end) {
    const at::Tensor sum = rows_of(all, begin, end);
    at::Tensor result = rows_of(out, begin, end);
    if (attn_out_.bias.defined()) sum.add_(attn_out_.bias);
    if (residual_scale_ != 1) sum.mul_(residual_scale_);
    at::add_out(result, sum, rows_of(x, begin, end));
  });
}

at::Tensor Block::backward_alone(const at::Tensor& dy, const RowContext& rows, const BlockSaved& saved,
                                 const at::Tensor& d_attn) const {
  at::Tensor d_output = dy;
  if (residual_scale_ != 1) {
    d_output = at::empty_like(dy);
    scale_gradient(dy, d_output);
  }
  if (rows.exchange != nullptr) d_output = rows.exchange->gather(d_output, {rows.phase, name_ + " output"});
  const Linear::Packed weight = attn_out_.pack_backward();
  for_each_row_tile(d_attn.size(0), rows.row_tile, dy.device(), [&](int64_t begin, int64_t end) {
    attn_out_.backward_input(rows_of(d_output, begin, end), rows_of(d_attn, begin, end), weight);
  });
  attn_out_.accumulate_grad(d_output, saved.attn);
  return dy.clone();  // by the residual, to which that by the mixer is added
}

}  // namespace troupe
