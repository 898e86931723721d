// Images among the rows of a step.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "model/decoder.h"
#include "model/image_rows.h"
#include "rollout/scheduler.h"

namespace troupe {

// The features of a sequence's images are made for the first step with one of their tokens, and dropped with
// the step that has the last.
class StepImages {
 public:
  explicit StepImages(Decoder& decoder) : decoder_(decoder) {}

  // Rows from `row` on are those of `run`, of a sequence with images: writes what each turns by into
  // `positions`, where the one of `row` lies, as far as one number says it.
  void add(const PlannedRun& run, int64_t row, int32_t* positions);
  // Of all rows, from the positions [n] int32 of a step: [3, n]; undefined where one number says it of each.
  at::Tensor rotary(const at::Tensor& positions) const;
  // What goes into the rows.
  ImageRows rows() const;

 private:
  // Images before them lie in pages that were found, and need none.
  void make_features(Sequence& sequence);
  // Tokens [token, token + count) of those with features are the rows from `row` on.
  void place(const ImageFeatures& features, int64_t token, int64_t row, int64_t count);

  struct Turns {
    int64_t row;
    std::vector<int32_t> rows, columns;
  };
  Decoder& decoder_;
  std::vector<Turns> turns_;  // of sequences with tokens of images in the step
  std::vector<at::Tensor> places_;
  std::vector<ImageFeatures> parts_;
};

}  // namespace troupe
