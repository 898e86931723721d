// Which part of a decoder a rank has.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "model/model_config.h"

namespace troupe {

// One rank's part of a decoder. Tensor parallelism (Shoeybi et al. 2019, arXiv:1909.08053, section 3): rows
// of qkv by heads, of the MLP's first matrix, of embeddings and head by vocabulary; columns of the matrices
// that follow them.
struct DecoderPart {
  int64_t tp = 1;
  int64_t tp_rank = 0;
  // What is computed row by row between the matrices is computed on a rank's own rows: their gradients are
  // parts.
  bool sequence_parallel = false;
  // Expert parallelism: of E experts this rank has the ep_rank-th E / ep.
  int64_t ep = 1;
  int64_t ep_rank = 0;

  // Whether a rank has whole matrices.
  bool whole() const { return tp == 1; }
  int64_t experts(const ModelConfig& config) const { return config.moe->num_experts / ep; }
  int64_t first_expert(const ModelConfig& config) const { return ep_rank * experts(config); }
  // Ranks that hold the same key head.
  int64_t key_copies(const ModelConfig& config) const {
    return tp > config.num_kv_heads ? tp / config.num_kv_heads : 1;
  }
  int64_t own_key_heads(int64_t all) const { return std::max<int64_t>(all / tp, 1); }
};

// kInvalidArgument, with the numbers, for a model that does not divide so.
void validate(const ModelConfig& config, const DecoderPart& part);

// Rows of the vocabulary that each of `tp` ranks holds, [tp + 1] offsets: equal parts, less on the last ones.
std::vector<int64_t> vocabulary_offsets(int64_t vocabulary, int64_t tp);

// The attention heads of one rank as a model of its own: everything else is as it was.
ModelConfig own_heads(const ModelConfig& config, const DecoderPart& part);

}  // namespace troupe
