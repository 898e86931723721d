// Images in a pass through a stage.
#include <ATen/ATen.h>

#include <algorithm>

#include "base/upload.h"
#include "model/stage.h"

namespace troupe {

void Stage::read_images(const PackedTokens& packed, RowContext& rows, StagePass& pass) {
  if (vision_) compute_images(packed, pass);
  if (packed.images.empty()) return;
  rows.rotary.first =
      rows_that_turn(rows.rotary.first, upload(packed.rotary_positions, device_), config_.vision->rope_axes);
  rows.positions = upload(at::arange(packed.tokens.size(0), at::kInt), device_);
}

void Stage::compute_images(const PackedTokens& packed, StagePass& pass) {
  std::vector<Image> images;
  for (const PlacedImage& placed : packed.images) images.push_back(placed.image);
  VisionPass* const kept = pass.training && vision_->trained() ? &pass.vision : nullptr;
  const ImageFeatures features = vision_->forward(images, kept, pass.checkpointing, "forward", access_);
  if (images.empty()) return;
  const int64_t total = packed.tokens.size(0);
  const int64_t begin = exchange_ != nullptr ? exchange_->first_row(total) : 0;
  const int64_t own = exchange_ != nullptr ? exchange_->own_rows(total) : total;
  pass.images = ImageRows::between(packed.images, features, begin, begin + own);
  pass.image_training = kept != nullptr;
}

at::Tensor Stage::image_gradient(const at::Tensor& d, const StagePass& pass) const {
  const at::Tensor own = pass.images.gradient(d);
  if (exchange_ == nullptr || !exchange_->scattered()) return own;
  // A token's row is on one rank and zero on the others, so the sum is exact; every rank has all of it, since
  // each computes the whole gradient of its tower.
  const at::Tensor all = at::zeros({pass.vision.token_rows.size(0), d.size(1)}, d.options());
  all.index_copy_(0, pass.images.tokens, own);
  return exchange_->of_whole_rows().sum(all, {"backward", "images"});
}

void Stage::images_backward(const at::Tensor& dx, StagePass& pass) {
  ImageFeatures& gradients = pass.image_gradients;
  if (pass.image_training) {
    // In the order of a backward pass: the last layer's first.
    std::reverse(gradients.deepstack.begin(), gradients.deepstack.end());
    gradients.embeddings = image_gradient(dx, pass);
  }
  // The tokens in whose place they stood have no part in the output.
  if (pass.images.any()) dx.index_fill_(0, pass.images.rows, 0);
  if (vision_->trained()) vision_->backward(gradients, pass.vision, access_);
}

}  // namespace troupe
