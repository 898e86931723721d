// Which layers, and which ends of the decoder, each part of a pipeline has.
#pragma once

#include <cstdint>
#include <vector>

namespace troupe {

// Layers [first, last), with the embeddings before them and final norm and head behind them, or without.
struct StageRange {
  int64_t first = 0;
  int64_t last = 0;
  bool embedding = true;
  bool head = true;

  bool has(int64_t layer) const { return layer >= first && layer < last; }
  int64_t layers() const { return last - first; }
};

// How a decoder is spread over the stages of a pipeline.
struct PipelineOptions {
  int64_t stages = 1;  // pp
  int64_t chunks = 1;  // vpp: parts of consecutive layers that each stage has
  // Layers of the first and of the last part; 0: as many as the others.
  int64_t first_layers = 0;
  int64_t last_layers = 0;
  // The embeddings, and the head, take the place of one layer in the first and the last part.
  bool count_embedding = false;
  bool count_head = false;
};

// The stages * chunks parts of a decoder in order; part k is chunk k / stages of stage k % stages. What does
// not divide evenly goes to parts in the middle before it goes to the first and last, which have more to do.
// kInvalidArgument with the numbers where a part would have no layer or layers would be left over.
std::vector<StageRange> pipeline_parts(int64_t num_layers, const PipelineOptions& options);

}  // namespace troupe
