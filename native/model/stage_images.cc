// Images in a pass through a stage.
#include <ATen/ATen.h>

#include <algorithm>

#include "base/upload.h"
#include "model/stage.h"

namespace troupe {

void Stage::read_images(const PackedTokens& packed, RowContext& rows, StagePass& pass) {
  std::vector<Image> images;
  std::vector<at::Tensor> places;
  for (const PlacedImage& placed : packed.images) {
    images.push_back(placed.image);
    places.push_back(at::arange(placed.row, placed.row + placed.tokens, at::kLong));
  }
  VisionPass* const kept = pass.training && vision_->trained() ? &pass.vision : nullptr;
  pass.images.features = vision_->forward(images, kept, pass.checkpointing, "forward", access_);
  if (images.empty()) return;
  pass.images.rows = upload(at::cat(places), device_);
  pass.image_training = kept != nullptr;
  rows.rotary.first =
      rows_that_turn(rows.rotary.first, upload(packed.rotary_positions, device_), config_.vision->rope_axes);
  rows.positions = upload(at::arange(packed.tokens.size(0), at::kInt), device_);
}

void Stage::images_backward(const at::Tensor& dx, StagePass& pass) {
  ImageFeatures& gradients = pass.image_gradients;
  if (pass.image_training) {
    // In the order of a backward pass: the last layer's first.
    std::reverse(gradients.deepstack.begin(), gradients.deepstack.end());
    gradients.embeddings = pass.images.gradient(dx);
  }
  // The tokens in whose place they stood have no part in the output.
  if (pass.images.any()) dx.index_fill_(0, pass.images.rows, 0);
  if (vision_->trained()) vision_->backward(gradients, pass.vision, access_);
}

}  // namespace troupe
