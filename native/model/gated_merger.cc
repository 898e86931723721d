// Forward and backward of a merger with a gate, in tiles of rows.
#include "model/gated_merger.h"

#include <ATen/ATen.h>

#include "base/parallel.h"

namespace troupe {

namespace {

// The norm behind the second product is a LayerNorm with PyTorch's epsilon, whatever those of the tower are.
ModelConfig behind_product() {
  ModelConfig config;
  config.norm = NormKind::kLayer;
  config.norm_eps = 1e-5;
  return config;
}

}  // namespace

GatedMerger::GatedMerger(const ParameterStore& store, const ModelConfig& config, const std::string& name)
    : patches_(config.vision->merge_size * config.vision->merge_size),
      activation_(config.vision->activation),
      norm_(store, vision_layers(*config.vision), name + ".norm"),
      projected_norm_(store, behind_product(), name + ".proj_norm"),
      merge_(store, name + ".merge"),
      project_(store, name + ".proj"),
      in_(store, name + ".in"),
      out_(store, name + ".out") {}

at::Tensor GatedMerger::by_channel(const at::Tensor& patches) const {
  return patches.view({-1, patches_, patches.size(1)}).transpose(1, 2).reshape({-1, merge_.weight.size(1)});
}

at::Tensor GatedMerger::by_patch(const at::Tensor& row) const {
  return row.view({row.size(0), -1, patches_}).transpose(1, 2).reshape({-1, row.size(1) / patches_});
}

at::Tensor GatedMerger::forward(const at::Tensor& x, MergerSaved* saved) const {
  const int64_t rows = x.size(0) / patches_, width = out_.out_features(), inner_width = in_.out_features();
  const at::Tensor out = at::empty({rows, width}, x.options());
  const Linear::Packed merge = merge_.pack_forward(), project = project_.pack_forward(),
                       in = in_.pack_forward(), last = out_.pack_forward();
  if (saved != nullptr) {
    saved->x = x;
    saved->norm = NormStats::make(norm_, x.size(0));
    saved->merged = at::empty({rows, width}, x.options());
    saved->projected = at::empty({rows, width}, x.options());
    saved->projected_norm = NormStats::make(projected_norm_, rows);
    saved->inner = at::empty({rows, inner_width}, x.options());
  }
  for_each_row_tile(rows, kRowTile / patches_, x.device(), [&](int64_t begin, int64_t end) {
    const int64_t count = end - begin;
    const auto room = [&](at::Tensor MergerSaved::*kept, int64_t columns) {
      return saved != nullptr ? (saved->*kept).narrow(0, begin, count)
                              : at::empty({count, columns}, x.options());
    };
    const at::Tensor patches = x.narrow(0, begin * patches_, count * patches_);
    const at::Tensor normed = at::empty_like(patches);
    norm_forward(norm_, patches, normed,
                 saved != nullptr ? saved->norm.rows(begin * patches_, count * patches_) : NormStats{});
    const at::Tensor merged = room(&MergerSaved::merged, width);
    merge_.forward(by_channel(normed), merged, merge);
    const at::Tensor projected = room(&MergerSaved::projected, width);
    project_.forward(merged, projected, project);
    const at::Tensor row = at::empty_like(projected), activated = at::empty_like(projected);
    norm_forward(projected_norm_, projected, row,
                 saved != nullptr ? saved->projected_norm.rows(begin, count) : NormStats{});
    ops::activation_forward(Activation::kGelu, /*gated=*/false, row, activated);
    const at::Tensor inner = room(&MergerSaved::inner, inner_width);
    in_.forward(activated, inner, in);
    const at::Tensor gated = at::empty({count, inner_width / 2}, x.options());
    ops::activation_forward(activation_, /*gated=*/true, inner, gated);
    out_.forward(gated, out.narrow(0, begin, count), last);
  });
  return out;
}

at::Tensor GatedMerger::backward(const at::Tensor& dy, MergerSaved& saved) const {
  const int64_t rows = dy.size(0), inner_width = in_.out_features();
  const at::Tensor dx = at::empty_like(saved.x);
  // What the products took, and the gradients of what they gave: for the gradients of their weights.
  const at::Tensor patch_rows = at::empty({rows, merge_.weight.size(1)}, dy.options());
  const at::Tensor activated = at::empty_like(dy);
  const at::Tensor gated = at::empty({rows, inner_width / 2}, dy.options());
  const at::Tensor d_merged = at::empty_like(dy), d_projected = at::empty_like(dy);
  const at::Tensor d_inner = saved.inner;  // in place: the operation takes its own output as input
  const Linear::Packed merge = merge_.pack_backward(), project = project_.pack_backward(),
                       in = in_.pack_backward(), last = out_.pack_backward();
  const int64_t tile = kRowTile / patches_;
  NormGradient norm(norm_, rows * patches_, tile * patches_), projected_norm(projected_norm_, rows, tile);
  for_each_row_tile(rows, tile, dy.device(), [&](int64_t begin, int64_t end) {
    const int64_t count = end - begin;
    const auto of = [&](const at::Tensor& t) { return t.narrow(0, begin, count); };
    const auto patches_of = [&](const at::Tensor& t) {
      return t.narrow(0, begin * patches_, count * patches_);
    };
    const at::Tensor d_gated = at::empty_like(of(gated));
    out_.backward_input(of(dy), d_gated, last);
    ops::activation_backward(activation_, /*gated=*/true, d_gated, of(saved.inner), of(d_inner), of(gated));
    const at::Tensor d_activated = at::empty_like(of(dy)), row = at::empty_like(d_activated);
    in_.backward_input(of(d_inner), d_activated, in);
    norm_forward(projected_norm_, of(saved.projected), row, {});
    ops::activation_backward(Activation::kGelu, /*gated=*/false, d_activated, row, row, of(activated));
    projected_norm.backward(begin, row, of(saved.projected), saved.projected_norm.rows(begin, count),
                            of(d_projected), /*accumulate=*/false);
    project_.backward_input(of(d_projected), of(d_merged), project);
    const at::Tensor d_rows = at::empty_like(of(patch_rows));
    merge_.backward_input(of(d_merged), d_rows, merge);
    const at::Tensor normed = at::empty_like(patches_of(saved.x));
    norm_forward(norm_, patches_of(saved.x), normed, {});
    of(patch_rows).copy_(by_channel(normed));
    norm.backward(begin * patches_, by_patch(d_rows), patches_of(saved.x),
                  saved.norm.rows(begin * patches_, count * patches_), patches_of(dx), /*accumulate=*/false);
  });
  norm.finish();
  projected_norm.finish();
  out_.accumulate_grad(dy, gated);
  in_.accumulate_grad(d_inner, activated);
  project_.accumulate_grad(d_projected, saved.merged);
  merge_.accumulate_grad(d_merged, patch_rows);
  saved = {};
  return dx;
}

}  // namespace troupe
