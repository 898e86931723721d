#include "core/packing.h"

#include <numeric>

#include "core/error.h"
#include "core/parallel.h"

namespace troupe {

std::vector<MicroBatch> pack(const std::vector<int64_t>& lengths, int64_t begin, int64_t end,
                             int64_t capacity) {
  std::vector<int64_t> order(static_cast<size_t>(end - begin));
  std::iota(order.begin(), order.end(), begin);
  std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) { return lengths[a] > lengths[b]; });

  std::vector<MicroBatch> packed;
  for (const int64_t sequence : order) {
    const int64_t length = lengths[sequence];
    require(length <= capacity, ErrorCode::kInvalidArgument, "[packing] sequence ", sequence, " has ", length,
            " tokens, more than the micro-batch capacity of ", capacity,
            "; raise maxTokensPerMicroBatch (ppo_max_token_len_per_gpu) or shorten the sequence");
    auto place = std::find_if(packed.begin(), packed.end(), [&](const MicroBatch& micro) {
      return micro.num_tokens() + length <= capacity;
    });
    if (place == packed.end()) {
      packed.push_back(MicroBatch{{}, {0}});
      place = std::prev(packed.end());
    }
    place->sequences.push_back(sequence);
    place->offsets.push_back(place->num_tokens() + length);
  }
  return packed;
}

BatchLayout check_layout(const TokenBatch& batch, int64_t vocab_size, int64_t max_positions) {
  const int64_t size = batch.size();
  require(batch.seq_offsets.numel() == size + 1, ErrorCode::kInvalidArgument, "[batch] expected ", size + 1,
          " sequence offsets for ", size, " prompt lengths, got ", batch.seq_offsets.numel());
  const int32_t* offsets = batch.seq_offsets.data_ptr<int32_t>();
  const int32_t* prompts = batch.prompt_lens.data_ptr<int32_t>();
  const int32_t* tokens = batch.tokens.data_ptr<int32_t>();
  require(offsets[0] == 0 && offsets[size] == batch.tokens.numel(), ErrorCode::kInvalidArgument,
          "[batch] sequence offsets must run from 0 to the number of tokens (", batch.tokens.numel(),
          "), got ", offsets[0], " to ", offsets[size]);

  BatchLayout layout;
  layout.seq_offsets.push_back(0);
  layout.response_offsets.push_back(0);
  for (int64_t i = 0; i < size; ++i) {
    const int64_t length = int64_t{offsets[i + 1]} - offsets[i];
    require(length >= 1 && offsets[i + 1] <= batch.tokens.numel(), ErrorCode::kInvalidArgument,
            "[batch] sequence ", i, ": expected at least one token, within the ", batch.tokens.numel(),
            " of the batch, got tokens ", offsets[i], " to ", offsets[i + 1]);
    require(prompts[i] >= 1 && prompts[i] <= length, ErrorCode::kInvalidArgument, "[batch] sequence ", i,
            ": expected a prompt of 1 to ", length, " tokens (its length), got ", prompts[i]);
    require(length <= max_positions, ErrorCode::kInvalidArgument, "[batch] sequence ", i, " has ", length,
            " tokens, more than the model's ", max_positions, " positions (max_position_embeddings)");
    for (int64_t t = offsets[i]; t < offsets[i + 1]; ++t) {
      require(tokens[t] >= 0 && tokens[t] < vocab_size, ErrorCode::kInvalidArgument, "[batch] sequence ", i,
              ", position ", t - offsets[i], ": token id ", tokens[t], " is outside the vocabulary of ",
              vocab_size);
    }
    layout.lengths.push_back(length);
    layout.seq_offsets.push_back(offsets[i + 1]);
    layout.response_offsets.push_back(layout.response_offsets.back() + length - prompts[i]);
  }
  return layout;
}

PackedTokens gather(const TokenBatch& batch, const BatchLayout& layout, const MicroBatch& micro,
                    int64_t row_multiple) {
  const int64_t rows = round_up(micro.num_tokens(), row_multiple);
  int64_t responses = 0;
  for (const int64_t sequence : micro.sequences) responses += layout.response_length(sequence);

  PackedTokens packed;
  packed.tokens = at::zeros({rows}, at::kInt);
  packed.positions = at::zeros({rows}, at::kInt);
  packed.predict_rows = at::empty({responses}, at::kLong);
  packed.targets = at::empty({responses}, at::kInt);
  packed.response_index = at::empty({responses}, at::kLong);
  packed.offsets = micro.offsets;
  packed.response_offsets.push_back(0);

  const int32_t* source = batch.tokens.data_ptr<int32_t>();
  int32_t* tokens = packed.tokens.data_ptr<int32_t>();
  int32_t* positions = packed.positions.data_ptr<int32_t>();
  int64_t* predict_rows = packed.predict_rows.data_ptr<int64_t>();
  int32_t* targets = packed.targets.data_ptr<int32_t>();
  int64_t* response_index = packed.response_index.data_ptr<int64_t>();
  int64_t n = 0;
  for (size_t s = 0; s < micro.sequences.size(); ++s) {
    const int64_t sequence = micro.sequences[s];
    const int64_t length = layout.lengths[sequence];
    const int64_t row = micro.offsets[s];
    std::memcpy(tokens + row, source + layout.seq_offsets[sequence],
                static_cast<size_t>(length) * sizeof(int32_t));
    std::iota(positions + row, positions + row + length, 0);
    for (int64_t r = 0; r < layout.response_length(sequence); ++r, ++n) {
      const int64_t position = layout.prompt_length(sequence) + r;
      predict_rows[n] = row + position - 1;
      targets[n] = tokens[row + position];
      response_index[n] = layout.response_offsets[sequence] + r;
    }
    packed.response_offsets.push_back(n);
  }
  return packed;
}

}  // namespace troupe
