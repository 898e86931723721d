// Forward and backward of a merger without a gate, in tiles of rows.
#include "model/plain_merger.h"

#include <ATen/ATen.h>

#include "base/parallel.h"

namespace troupe {

PlainMerger::PlainMerger(const ParameterStore& store, const ModelConfig& config, const std::string& name)
    : merged_(config.vision->merge_size * config.vision->merge_size),
      norm_(store, vision_layers(*config.vision), name + ".norm"),
      in_(store, name + ".in"),
      out_(store, name + ".out") {}

at::Tensor PlainMerger::forward(const at::Tensor& x, MergerSaved* saved) const {
  const int64_t rows = x.size(0) / merged_, wide = in_.out_features(), norms = norms_per_row();
  const at::Tensor out = at::empty({rows, out_.out_features()}, x.options());
  const Linear::Packed in_weight = in_.pack_forward(), out_weight = out_.pack_forward();
  if (saved != nullptr) {
    saved->x = x;
    saved->norm = NormStats::make(norm_, rows * norms);
    saved->inner = at::empty({rows, wide}, x.options());
  }
  for_each_row_tile(rows, kRowTile / merged_, x.device(), [&](int64_t begin, int64_t end) {
    const int64_t count = end - begin;
    const at::Tensor normed = at::empty({count, wide}, x.options());
    norm_forward(norm_, normed_rows(x).narrow(0, begin * norms, count * norms), normed_rows(normed),
                 saved != nullptr ? saved->norm.rows(begin * norms, count * norms) : NormStats{});
    const at::Tensor inner =
        saved != nullptr ? saved->inner.narrow(0, begin, count) : at::empty({count, wide}, x.options());
    in_.forward(normed, inner, in_weight);
    const at::Tensor activated = at::empty_like(inner);
    ops::activation_forward(Activation::kGelu, /*gated=*/false, inner, activated);
    out_.forward(activated, out.narrow(0, begin, count), out_weight);
  });
  return out;
}

at::Tensor PlainMerger::backward(const at::Tensor& dy, MergerSaved& saved) const {
  const int64_t rows = dy.size(0), norms = norms_per_row();
  const at::Tensor dx = at::empty_like(saved.x);
  const at::Tensor normed = at::empty_like(saved.inner), activated = at::empty_like(saved.inner);
  const at::Tensor d_inner = saved.inner;  // in place: the operation takes its own output as input
  const Linear::Packed in_weight = in_.pack_backward(), out_weight = out_.pack_backward();
  const int64_t tile = kRowTile / merged_;
  NormGradient norm(norm_, rows * norms, tile * norms);
  for_each_row_tile(rows, tile, dy.device(), [&](int64_t begin, int64_t end) {
    const int64_t count = end - begin;
    const auto of = [&](const at::Tensor& t) { return t.narrow(0, begin, count); };
    const auto rows_of = [&](const at::Tensor& t) {
      return normed_rows(t).narrow(0, begin * norms, count * norms);
    };
    const at::Tensor d_activated = at::empty_like(of(saved.inner));
    out_.backward_input(of(dy), d_activated, out_weight);
    ops::activation_backward(Activation::kGelu, /*gated=*/false, d_activated, of(saved.inner), of(d_inner),
                             of(activated));
    const at::Tensor d_normed = at::empty_like(d_activated);
    in_.backward_input(of(d_inner), d_normed, in_weight);
    norm_forward(norm_, rows_of(saved.x), rows_of(normed), {});
    norm.backward(begin * norms, normed_rows(d_normed), rows_of(saved.x),
                  saved.norm.rows(begin * norms, count * norms), rows_of(dx), /*accumulate=*/false);
  });
  norm.finish();
  out_.accumulate_grad(dy, activated);
  in_.accumulate_grad(d_inner, normed);
  saved = {};
  return dx;
}

}  // namespace troupe
