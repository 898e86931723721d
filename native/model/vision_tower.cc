// Forward and backward through a tower.
#include "model/vision_tower.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <string>

#include "base/parallel.h"
#include "base/range.h"
#include "base/upload.h"

namespace troupe {

VisionTower::VisionTower(const ModelConfig& config, const ParameterStore& store, at::Device device,
                         at::ScalarType dtype)
    : config_(*config.vision),
      device_(device),
      dtype_(dtype),
      trained_(store.at("vision.patches.weight").grad.defined()),
      patches_(store, "vision.patches"),
      merger_(last_merger(store, config)),
      patches_group_(store.at("vision.patches.weight").group),
      mergers_group_(store.at("vision.merger.out.weight").group) {
  if (config_.position_side > 0) {
    positions_ = store.at("vision.positions.weight").compute;
    positions_grad_ = store.at("vision.positions.weight").grad;
  }
  const ModelConfig layers = vision_layers(config_);
  if (config_.patch_norm) patch_norm_ = Norm(store, layers, "vision.patches.norm");
  for (int64_t layer = 0; layer < config_.num_layers; ++layer) {
    blocks_.emplace_back(store, layers, layer);
    block_groups_.push_back(store.at("vision.layers." + std::to_string(layer) + ".attn.qkv.weight").group);
  }
  for (size_t k = 0; k < config_.deepstack_layers.size(); ++k)
    deepstack_.emplace_back(store, config, "vision.deepstack." + std::to_string(k));
}

at::Tensor VisionTower::embed(VisionPass& pass, bool training) const {
  const ImagePatches& patches = pass.patches;
  const at::Tensor& values = pass.values;
  const int64_t rows = values.size(0);
  const at::Tensor x = at::empty({rows, config_.hidden_size}, values.options());
  at::Tensor added;
  if (positions_.defined()) {
    const at::Tensor positions = at::zeros({rows, config_.hidden_size}, values.options().dtype(at::kFloat));
    for (size_t tap = 0; tap < patches.positions.size(); ++tap) {
      const at::Tensor weight = upload(patches.weights[tap], device_).unsqueeze(1);
      positions.add_(
          positions_.index_select(0, upload(patches.positions[tap], device_)).to(at::kFloat).mul_(weight));
    }
    added = positions.to(dtype_);
  }
  const Linear::Packed weight = patches_.pack_forward();
  const at::Tensor product = patch_norm_.defined() ? at::empty_like(x) : at::Tensor();
  const NormStats stats = training ? NormStats::make(patch_norm_, rows) : NormStats{};
  if (training) {
    pass.patch_rows = product;
    pass.patch_norm = stats;
  }
  for_each_row_tile(rows, kRowTile, device_, [&](int64_t begin, int64_t end) {
    const auto of = [&](const at::Tensor& t) { return t.narrow(0, begin, end - begin); };
    if (patch_norm_.defined()) {
      patches_.forward(of(values), of(product), weight);
      norm_forward(patch_norm_, of(product), of(x), stats.rows(begin, end - begin));
      if (added.defined()) of(x).add_(of(added));
    } else if (added.defined()) {
      patches_.forward_add(of(values), of(added), of(x), weight);
    } else {
      patches_.forward(of(values), of(x), weight);
    }
  });
  return x;
}

void VisionTower::embed_backward(const at::Tensor& dx, const VisionPass& pass) const {
  patches_.accumulate_grad(
      patch_norm_.defined() ? norm_rows_backward(patch_norm_, dx, pass.patch_rows, pass.patch_norm) : dx,
      pass.values);
  if (!positions_.defined()) return;
  const at::Tensor d_positions = dx.to(at::kFloat);
  for (size_t tap = 0; tap < pass.patches.positions.size(); ++tap) {
    ops::add_rows(positions_grad_, upload(pass.patches.positions[tap], device_),
                  d_positions * upload(pass.patches.weights[tap], device_).unsqueeze(1));
  }
}

ImageFeatures VisionTower::forward(const std::vector<Image>& images, VisionPass* pass, bool checkpointing,
                                   const char* phase, ParameterAccess* access) {
  const Range range("vision_tower");
  const bool any = !images.empty();
  const bool training = pass != nullptr && trained_;
  VisionPass own;
  VisionPass& p = training ? *pass : own;
  ImageFeatures features;
  at::Tensor x;
  const auto lease = [&](size_t group) { return Lease(access, {group}, phase); };
  Lease patches = lease(patches_group_);
  if (any) {
    p.patches = image_patches(config_, images);
    p.values = upload(p.patches.values, device_).to(dtype_);
    p.token_rows = upload(p.patches.token_rows, device_);
    p.rows = {upload(at::arange(p.values.size(0), at::kInt), device_),
              p.patches.segments,
              {{upload(p.patches.cos, device_), upload(p.patches.sin, device_)}, {}},
              kRowTile};
    p.rows.phase = phase;
    p.windows = p.rows;
    p.windows.segments = p.patches.windows;
    x = embed(p, training);
    p.patches.values.reset();
  }
  patches.end();
  p.blocks.resize(blocks_.size());
  p.deepstack.resize(deepstack_.size());
  // Of the blocks after which a merger follows; the mergers are one group, which is gathered once.
  std::vector<at::Tensor> stacked;
  for (size_t layer = 0; layer < blocks_.size(); ++layer) {
    Lease block = lease(block_groups_[layer]);
    if (any) {
      BlockSaved& saved = p.blocks[layer];
      if (training && checkpointing) p.inputs.push(x);
      x = blocks_[layer].forward(x, p.of(config_, static_cast<int64_t>(layer)),
                                 training && !checkpointing ? &saved : nullptr);
      const std::vector<int64_t>& after = config_.deepstack_layers;
      if (std::find(after.begin(), after.end(), static_cast<int64_t>(layer)) != after.end())
        stacked.push_back(x);
    }
    block.end();
  }
  Lease mergers = lease(mergers_group_);
  if (any) {
    const auto tokens = [&](const VisionMerger& merger, const at::Tensor& rows, MergerSaved& saved) {
      return merger.forward(rows, training ? &saved : nullptr).index_select(0, p.token_rows);
    };
    features.embeddings = tokens(*merger_, x, p.merger);
    for (size_t k = 0; k < deepstack_.size(); ++k)
      features.deepstack.push_back(tokens(deepstack_[k], stacked[k], p.deepstack[k]));
  }
  mergers.end();
  return features;
}

void VisionTower::backward(const ImageFeatures& gradients, VisionPass& pass, ParameterAccess* access) {
  const Range range("vision_tower backward");
  const auto lease = [&](size_t group) { return Lease(access, {group}, "backward", Lease::Of::kBoth); };
  const bool any = gradients.embeddings.defined();
  at::Tensor dx;
  std::vector<at::Tensor> d_stacked(deepstack_.size());
  pass.inputs.fetch();
  Lease mergers = lease(mergers_group_);
  if (any) {
    pass.rows.phase = pass.windows.phase = "backward";
    const auto rows = [&](const at::Tensor& tokens, const MergerSaved& saved) {
      const at::Tensor all = at::zeros({saved.inner.size(0), tokens.size(1)}, tokens.options());
      return all.index_copy_(0, pass.token_rows, tokens);
    };
    dx = merger_->backward(rows(gradients.embeddings, pass.merger), pass.merger);
    for (size_t k = 0; k < deepstack_.size(); ++k)
      d_stacked[k] =
          deepstack_[k].backward(rows(gradients.deepstack[k], pass.deepstack[k]), pass.deepstack[k]);
  }
  mergers.end();
  for (size_t layer = blocks_.size(); layer-- > 0;) {
    Lease block = lease(block_groups_[layer]);
    if (any) {
      const std::vector<int64_t>& after = config_.deepstack_layers;
      const auto found = std::find(after.begin(), after.end(), static_cast<int64_t>(layer));
      if (found != after.end()) dx.add_(d_stacked[static_cast<size_t>(found - after.begin())]);
      BlockSaved& saved = pass.blocks[layer];
      const RowContext& rows = pass.of(config_, static_cast<int64_t>(layer));
      if (!saved.qkv.defined()) blocks_[layer].recompute(pass.inputs.pop(), rows, saved);  // checkpointed
      dx = blocks_[layer].backward(dx, rows, saved);
      saved = BlockSaved{};
    }
    block.end();
  }
  Lease patches = lease(patches_group_);
  if (any) embed_backward(dx, pass);
  patches.end();
  pass = VisionPass{};
}

}  // namespace troupe
