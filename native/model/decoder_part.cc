// Which part of a decoder a rank has.
#include "model/decoder_part.h"

#include <algorithm>

#include "base/error.h"

namespace troupe {

void validate(const ModelConfig& c, const DecoderPart& part) {
  const int64_t tp = part.tp;
  require(tp >= 1 && part.tp_rank >= 0 && part.tp_rank < tp, ErrorCode::kInvalidArgument,
          "[parallel] expected a tensor-parallel rank below tp, got rank ", part.tp_rank, " of ", tp);
  require(part.ep >= 1 && part.ep_rank >= 0 && part.ep_rank < part.ep, ErrorCode::kInvalidArgument,
          "[parallel] expected an expert-parallel rank below ep, got rank ", part.ep_rank, " of ", part.ep);
  require(part.ep == 1 || (c.moe && c.moe->num_experts % part.ep == 0), ErrorCode::kInvalidArgument,
          "[parallel] expected ep to divide the ", c.moe ? c.moe->num_experts : 0,
          " experts of the model, got ep ", part.ep);
  if (tp == 1) return;
  require(c.num_heads % tp == 0, ErrorCode::kInvalidArgument, "[parallel] expected tp to divide the ",
          c.num_heads, " attention heads of the model, got tp ", tp);
  const auto divides = [&](int64_t key_heads) {
    require(key_heads % tp == 0 || tp % key_heads == 0, ErrorCode::kInvalidArgument,
            "[parallel] expected tp to divide the ", key_heads,
            " key heads of the model, or to be a multiple of them, got tp ", tp);
  };
  divides(c.num_kv_heads);
  if (c.second_heads) divides(c.second_heads->num_kv_heads);
  require(!c.linear || c.linear->key_heads % tp == 0, ErrorCode::kInvalidArgument,
          "[parallel] expected tp to divide the ", c.linear ? c.linear->key_heads : 0,
          " key heads of the model's linear attention, got tp ", tp);
}

std::vector<int64_t> vocabulary_offsets(int64_t vocabulary, int64_t tp) {
  const int64_t per = (vocabulary + tp - 1) / tp;
  std::vector<int64_t> offsets;
  for (int64_t rank = 0; rank <= tp; ++rank) offsets.push_back(std::min(vocabulary, rank * per));
  return offsets;
}

ModelConfig own_heads(const ModelConfig& config, const DecoderPart& part) {
  ModelConfig own = config;
  own.num_heads = config.num_heads / part.tp;
  own.num_kv_heads = part.own_key_heads(config.num_kv_heads);
  if (own.second_heads) own.second_heads->num_kv_heads = part.own_key_heads(own.second_heads->num_kv_heads);
  if (own.linear) own.linear = own.linear->own_heads(part.tp);
  return own;
}

}  // namespace troupe
