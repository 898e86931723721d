// The tower that makes rows of the decoder from images.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "batch/images.h"
#include "model/activation_stack.h"
#include "model/block.h"
#include "model/image_patches.h"
#include "model/plain_merger.h"
#include "model/vision_merger.h"
#include "parameters/parameter_access.h"
#include "parameters/parameter_store.h"

namespace troupe {

// Of the tokens of some images, one after another, or gradients by them.
struct ImageFeatures {
  at::Tensor embeddings;              // [tokens, H] in place of the tokens' embeddings
  std::vector<at::Tensor> deepstack;  // [tokens, H] each: added behind the decoder's layers 0, 1, ...
};

// What the backward pass of a tower reads.
struct VisionPass {
  ImagePatches patches;
  at::Tensor values;      // [T, patch values] in the compute dtype
  at::Tensor patch_rows;  // [T, C] before the norm behind the patches' product; undefined without one
  NormStats patch_norm;
  RowContext rows, windows;  // of layers that see all of an image, and of those that see windows
  std::vector<BlockSaved> blocks;
  ActivationStack inputs;  // of the blocks, with checkpointing

  RowContext& of(const VisionConfig& config, int64_t layer) {
    return config.has_windows(layer) ? windows : rows;
  }
  MergerSaved merger;
  std::vector<MergerSaved> deepstack;
  at::Tensor token_rows;
};

// Patch embedding as a product, learned positions, blocks whose rows see all patches of their image, mergers
// (Qwen3-VL, arXiv:2511.21631, section 2); or without learned positions, and with blocks that see windows
// (Qwen2.5-VL, arXiv:2502.13923, section 2.1); or with a norm behind the patches' product and a merger with a
// gate (GLM-4.1V, arXiv:2507.01006, section 2). Images are computed in tiles of their own rows
// (image_patches.h): on a CPU the features of an image have the same bits whatever else is there.
class VisionTower {
 public:
  // config: with a tower.
  VisionTower(const ModelConfig& config, const ParameterStore& store, at::Device device,
              at::ScalarType dtype);

  // Whether there is a backward pass.
  bool trained() const { return trained_; }
  // Every rank that shares the parameters calls it, one without images with none, for which the leases alone
  // are made and the features are undefined. pass: of a training pass, else null. checkpointing: only the
  // blocks' inputs are kept. access: null while all parameters are there.
  ImageFeatures forward(const std::vector<Image>& images, VisionPass* pass, bool checkpointing,
                        const char* phase, ParameterAccess* access);
  // Adds to the gradients of the tower's parameters. As forward(), and with `pass` of it. Of a tower that is
  // trained.
  void backward(const ImageFeatures& gradients, VisionPass& pass, ParameterAccess* access);

 private:
  // patches and values of the pass; what its backward reads where it is for `training`.
  at::Tensor embed(VisionPass& pass, bool training) const;
  void embed_backward(const at::Tensor& dx, const VisionPass& pass) const;

  VisionConfig config_;
  at::Device device_;
  at::ScalarType dtype_;
  bool trained_;
  Linear patches_;
  Norm patch_norm_;                        // undefined: there is none
  at::Tensor positions_, positions_grad_;  // [side^2, C]; undefined without them
  std::vector<Block> blocks_;
  std::unique_ptr<VisionMerger> merger_;
  std::vector<PlainMerger> deepstack_;
  size_t patches_group_, mergers_group_;
  std::vector<size_t> block_groups_;
};

}  // namespace troupe
