// Images in a pass through a stage.
#include <ATen/ATen.h>

#include <algorithm>

#include "base/upload.h"
#include "model/stage.h"
#include "ulysses/sequence_group.h"

namespace troupe {

namespace {

// [n, H] of each kind <-> [n, kinds * H].
at::Tensor side_by_side(const ImageFeatures& features) {
  std::vector<at::Tensor> kinds{features.embeddings};
  kinds.insert(kinds.end(), features.deepstack.begin(), features.deepstack.end());
  return at::cat(kinds, 1);
}

ImageFeatures one_by_one(const at::Tensor& columns, int64_t kinds) {
  const std::vector<at::Tensor> each = columns.chunk(kinds, 1);
  return {each.front(), {each.begin() + 1, each.end()}};
}

}  // namespace

void Stage::read_images(const PackedTokens& packed, RowContext& rows, StagePass& pass) {
  if (vision_) compute_images(packed, pass);
  if (packed.images.empty()) return;
  rows.rotary.first =
      rows_that_turn(rows.rotary.first, upload(packed.rotary_positions, device_), config_.vision->rope_axes);
  rows.positions = upload(at::arange(packed.tokens.size(0), at::kInt), device_);
}

Communicator* Stage::image_ranks() const {
  return sequence_ != nullptr ? &sequence_->comm() : context_ != nullptr ? &context_->comm() : nullptr;
}

void Stage::compute_images(const PackedTokens& packed, StagePass& pass) {
  const Communicator* ranks = image_ranks();
  if (!packed.images.empty()) {
    pass.image_parts = image_parts(packed.images, ranks != nullptr ? ranks->rank() : 0,
                                   ranks != nullptr ? ranks->size() : 1);
  }
  VisionPass* const kept = pass.training && vision_->trained() ? &pass.vision : nullptr;
  ImageFeatures features =
      vision_->forward(pass.image_parts.own, kept, pass.checkpointing, "forward", access_);
  if (packed.images.empty()) return;
  if (ranks != nullptr) features = gather_features(features, pass.image_parts);
  const at::Tensor part = packed.rows.defined() ? packed.rows : at::arange(packed.tokens.size(0), at::kLong);
  pass.images = ImageRows::of(packed.images, pass.image_parts, features,
                              exchange_ != nullptr ? exchange_->own(part) : part);
  pass.image_training = kept != nullptr;
}

ImageFeatures Stage::gather_features(const ImageFeatures& own, const ImageParts& parts) const {
  const auto kinds = static_cast<int64_t>(1 + config_.vision->deepstack_layers.size());
  const at::Tensor sent = at::zeros({parts.room, kinds * config_.hidden_size}, row_options());
  if (parts.own_tokens > 0) sent.narrow(0, 0, parts.own_tokens).copy_(side_by_side(own));
  const at::Tensor all = at::empty({parts.places, sent.size(1)}, sent.options());
  image_ranks()->all_gather(all, sent, {"forward", "images"});
  return one_by_one(all, kinds);
}

at::Tensor Stage::image_gradient(const at::Tensor& d, const StagePass& pass) const {
  const at::Tensor own = pass.images.gradient(d);
  const bool scattered = exchange_ != nullptr && exchange_->scattered();
  if (!scattered && image_ranks() == nullptr) return own;
  const at::Tensor all = at::zeros({pass.image_parts.places, d.size(1)}, d.options());
  all.index_copy_(0, pass.images.places, own);
  // A token's row is on one rank and zero on the others, so the sum is exact; every rank that shares matrices
  // has all of it, since each of these computes the whole gradient of its tower.
  return scattered ? exchange_->of_whole_rows().sum(all, {"backward", "images"}) : all;
}

ImageFeatures Stage::sum_gradients(const ImageFeatures& all, const ImageParts& parts) const {
  const at::Tensor sent = side_by_side(all);
  const at::Tensor own = at::empty({parts.room, sent.size(1)}, sent.options());
  image_ranks()->reduce_scatter(own, sent, {"backward", "images"});
  if (parts.own_tokens == 0) return {};
  return one_by_one(own.narrow(0, 0, parts.own_tokens), static_cast<int64_t>(1 + all.deepstack.size()));
}

void Stage::images_backward(const at::Tensor& dx, StagePass& pass) {
  ImageFeatures& gradients = pass.image_gradients;
  if (pass.image_training) {
    // In the order of a backward pass: the last layer's first.
    std::reverse(gradients.deepstack.begin(), gradients.deepstack.end());
    gradients.embeddings = image_gradient(dx, pass);
    if (image_ranks() != nullptr) gradients = sum_gradients(gradients, pass.image_parts);
  }
  // The tokens in whose place they stood have no part in the output.
  if (pass.images.any()) dx.index_fill_(0, pass.images.rows, 0);
  if (vision_->trained()) vision_->backward(gradients, pass.vision, access_);
}

}  // namespace troupe
