// Which tokens of images a step has.
#include "rollout/step_images.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "base/upload.h"

namespace troupe {

void StepImages::add(const PlannedRun& run, int64_t row, int32_t* positions) {
  Sequence& sequence = *run.sequence;
  const int64_t from = sequence.computed, to = from + run.count;
  Turns turns{row, std::vector<int32_t>(static_cast<size_t>(run.count)),
              std::vector<int32_t>(static_cast<size_t>(run.count))};
  rotary_positions(sequence.images, from, to, positions, turns.rows.data(), turns.columns.data());
  int64_t before = 0;  // tokens of the images before
  bool any = false;
  for (const ImageSpan& span : sequence.images) {
    const int64_t begin = std::max(span.position, from), end = std::min(span.end(), to);
    if (begin < end) {
      if (!sequence.features) make_features(sequence);
      any = true;
      place(*sequence.features, before + begin - span.position - sequence.without_features,
            row + begin - from, end - begin);
    }
    before += span.size();
  }
  if (any) turns_.push_back(std::move(turns));
  if (to >= sequence.images.back().end()) sequence.features.reset();
}

void StepImages::make_features(Sequence& sequence) {
  const std::vector<Image>& all = sequence.request.images;
  auto first = all.begin();
  sequence.without_features = 0;
  for (const ImageSpan& span : sequence.images) {
    if (span.end() > sequence.computed) break;
    sequence.without_features += span.size();
    ++first;
  }
  sequence.features = decoder_.image_features({first, all.end()});
}

void StepImages::place(const ImageFeatures& features, int64_t token, int64_t row, int64_t count) {
  if (!features.embeddings.defined()) return;  // they enter layers of another rank
  const auto part = [&](const at::Tensor& all) { return all.narrow(0, token, count); };
  ImageFeatures own{part(features.embeddings), {}};
  for (const at::Tensor& stacked : features.deepstack) own.deepstack.push_back(part(stacked));
  parts_.push_back(std::move(own));
  places_.push_back(at::arange(row, row + count, at::kLong));
}

at::Tensor StepImages::rotary(const at::Tensor& positions) const {
  if (turns_.empty()) return {};
  const at::Tensor all = positions.unsqueeze(0).repeat({3, 1});
  for (const Turns& turns : turns_) {
    for (const int64_t axis : {1, 2}) {
      const std::vector<int32_t>& own = axis == 1 ? turns.rows : turns.columns;
      std::copy(own.begin(), own.end(), all[axis].data_ptr<int32_t>() + turns.row);
    }
  }
  return all;
}

ImageRows StepImages::rows() const {
  ImageRows rows;
  if (places_.empty()) return rows;
  rows.rows = upload(at::cat(places_), decoder_.device());
  std::vector<at::Tensor> embeddings;
  for (const ImageFeatures& part : parts_) embeddings.push_back(part.embeddings);
  rows.features.embeddings = at::cat(embeddings);
  for (size_t k = 0; k < parts_.front().deepstack.size(); ++k) {
    std::vector<at::Tensor> features;
    for (const ImageFeatures& part : parts_) features.push_back(part.deepstack[k]);
    rows.features.deepstack.push_back(at::cat(features));
  }
  return rows;
}

}  // namespace troupe
