// Layout checks and packing.
#include "batch/packing.h"

#include <numeric>
#include <string>
#include <unordered_map>

#include "base/error.h"
#include "base/parallel.h"
#include "batch/routed_experts.h"

namespace troupe {

namespace {

// Sequences by prompt, longest response first, cut where a group exceeds the capacity.
std::vector<MicroBatch> prompt_groups(const BatchLayout& layout, std::vector<int64_t> order,
                                      int64_t capacity) {
  std::stable_sort(order.begin(), order.end(),
                   [&](int64_t a, int64_t b) { return layout.lengths[a] > layout.lengths[b]; });
  std::vector<MicroBatch> groups;
  std::unordered_map<int64_t, size_t> newest;  // of each prompt
  for (const int64_t sequence : order) {
    const int64_t length = layout.lengths[sequence];
    require(length <= capacity, ErrorCode::kInvalidArgument, "[packing] sequence ", sequence, " has ", length,
            " tokens, more than the micro-batch capacity of ", capacity,
            "; raise maxTokensPerMicroBatch (ppo_max_token_len_per_gpu) or shorten the sequence");
    const int64_t response = layout.response_length(sequence);
    if (response == 0) continue;  // nothing to compute
    const auto found = newest.find(layout.same_prompt[sequence]);
    if (found != newest.end() && groups[found->second].rows + response - 1 <= capacity) {
      groups[found->second].sequences.push_back(sequence);
      groups[found->second].rows += response - 1;
    } else {
      newest[layout.same_prompt[sequence]] = groups.size();
      groups.push_back({{sequence}, length - 1});
    }
  }
  return groups;
}

// What positions [from, to) of a sequence, which lie in rows from `row` on, see of its images. A prompt is
// cut nowhere.
void place_images(const TokenBatch& batch, const BatchLayout& layout, int64_t sequence, int64_t from,
                  int64_t to, int64_t row, PackedTokens& packed) {
  const std::vector<ImageSpan>& spans = layout.images[static_cast<size_t>(sequence)];
  const int64_t rows = packed.rotary_positions.size(1);
  int32_t* positions = packed.rotary_positions.data_ptr<int32_t>() + row;
  rotary_positions(spans, from, to, positions, positions + rows, positions + 2 * rows);
  if (from > 0) return;
  const std::vector<const Image*> images = batch.images.of(sequence);
  for (size_t i = 0; i < spans.size(); ++i)
    packed.images.push_back({*images[i], row + spans[i].position, spans[i].size()});
}

}  // namespace

std::vector<MicroBatch> pack(const BatchLayout& layout, int64_t begin, int64_t end, int64_t capacity) {
  std::vector<int64_t> sequences(static_cast<size_t>(end - begin));
  std::iota(sequences.begin(), sequences.end(), begin);
  return pack(layout, std::move(sequences), capacity);
}

std::vector<MicroBatch> pack(const BatchLayout& layout, std::vector<int64_t> sequences, int64_t capacity) {
  std::vector<MicroBatch> groups = prompt_groups(layout, std::move(sequences), capacity);
  std::stable_sort(groups.begin(), groups.end(),
                   [](const MicroBatch& a, const MicroBatch& b) { return a.rows > b.rows; });
  std::vector<MicroBatch> packed;
  for (const MicroBatch& group : groups) {
    const auto place = std::find_if(packed.begin(), packed.end(), [&](const MicroBatch& micro) {
      return micro.rows + group.rows <= capacity;
    });
    if (place == packed.end()) {
      packed.push_back(group);
    } else {
      place->sequences.insert(place->sequences.end(), group.sequences.begin(), group.sequences.end());
      place->rows += group.rows;
    }
  }
  return packed;
}

Propagation propagation(const BatchLayout& layout, int64_t begin, int64_t end,
                        const at::Tensor& has_gradient) {
  const uint8_t* flags = has_gradient.defined() ? has_gradient.const_data_ptr<uint8_t>() : nullptr;
  struct Prompt {
    bool backward = false;
    int64_t still = 0;  // response tokens without a gradient
  };
  std::unordered_map<int64_t, Prompt> prompts;
  for (int64_t i = begin; i < end; ++i) {
    Prompt& prompt = prompts[layout.same_prompt[i]];
    if (flags == nullptr || flags[i] != 0) {
      prompt.backward = true;
    } else {
      prompt.still += layout.response_length(i);
    }
  }
  Propagation result;
  for (int64_t i = begin; i < end; ++i) {
    const Prompt& prompt = prompts[layout.same_prompt[i]];
    const bool together = prompt.backward && layout.prompt_length(i) >= 2 * prompt.still;
    const bool backward = flags == nullptr || flags[i] != 0 || together;
    (backward ? result.backward : result.forward).push_back(i);
  }
  return result;
}

BatchLayout check_layout(const TokenBatch& batch, int64_t vocab_size, int64_t max_positions,
                         const ImageTokens* images) {
  const int64_t size = batch.size();
  require(images != nullptr || batch.images.all.empty(), ErrorCode::kInvalidArgument, "[batch] got ",
          batch.images.all.size(), " images, expected none: the model reads text alone");
  require(batch.seq_offsets.numel() == size + 1, ErrorCode::kInvalidArgument, "[batch] expected ", size + 1,
          " sequence offsets for ", size, " prompt lengths, got ", batch.seq_offsets.numel());
  const int32_t* offsets = batch.seq_offsets.data_ptr<int32_t>();
  const int32_t* prompts = batch.prompt_lens.data_ptr<int32_t>();
  const int32_t* tokens = batch.tokens.data_ptr<int32_t>();
  require(offsets[0] == 0 && offsets[size] == batch.tokens.numel(), ErrorCode::kInvalidArgument,
          "[batch] sequence offsets must run from 0 to the number of tokens (", batch.tokens.numel(),
          "), got ", offsets[0], " to ", offsets[size]);

  BatchLayout layout;
  std::unordered_map<std::string, int64_t> first_of_prompt;
  const at::Tensor& experts = batch.routed_experts;
  const auto bytes_of_experts = experts.defined() && batch.tokens.numel() > 0
                                    ? experts.nbytes() / static_cast<size_t>(batch.tokens.numel())
                                    : 0;
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
    std::string prompt(reinterpret_cast<const char*>(tokens + offsets[i]),
                       static_cast<size_t>(prompts[i]) * sizeof(int32_t));
    if (bytes_of_experts > 0) {
      prompt.append(static_cast<const char*>(experts.const_data_ptr()) +
                        static_cast<size_t>(offsets[i]) * bytes_of_experts,
                    static_cast<size_t>(prompts[i]) * bytes_of_experts);
    }
    layout.images.emplace_back();
    if (images != nullptr) {
      layout.images.back() = image_spans(tokens + offsets[i], prompts[i], batch.images.of(i), *images,
                                         "[batch] the prompt of sequence " + std::to_string(i));
      if (!batch.images.of_sequence.empty()) {
        for (const int64_t image : batch.images.of_sequence[static_cast<size_t>(i)])
          prompt.append(reinterpret_cast<const char*>(&image), sizeof(image));
      }
    }
    layout.same_prompt.push_back(first_of_prompt.try_emplace(std::move(prompt), i).first->second);
  }
  return layout;
}

int64_t padded_rows(const MicroBatch& micro, const RowPadding& padding) {
  return round_up(padding.fixed ? std::max(padding.capacity, micro.rows) : micro.rows, padding.multiple);
}

PackedTokens gather(const TokenBatch& batch, const BatchLayout& layout, const MicroBatch& micro,
                    int64_t rows) {
  const std::vector<int64_t>& sequences = micro.sequences;
  int64_t responses = 0;
  for (const int64_t sequence : sequences) responses += layout.response_length(sequence);

  PackedTokens packed;
  packed.tokens = at::zeros({rows}, at::kInt);
  packed.positions = at::zeros({rows}, at::kInt);
  packed.sequences = at::zeros({rows});
  packed.predict_rows = at::empty({responses}, at::kLong);
  packed.targets = at::empty({responses}, at::kInt);
  packed.response_index = at::empty({responses}, at::kLong);
  packed.response_offsets.push_back(0);

  if (!batch.images.all.empty()) packed.rotary_positions = at::zeros({3, rows}, at::kInt);

  const int32_t* source = batch.tokens.data_ptr<int32_t>();
  int32_t* tokens = packed.tokens.data_ptr<int32_t>();
  int32_t* positions = packed.positions.data_ptr<int32_t>();
  float* sharing = packed.sequences.data_ptr<float>();
  int64_t* predict_rows = packed.predict_rows.data_ptr<int64_t>();
  int32_t* targets = packed.targets.data_ptr<int32_t>();
  int64_t* response_index = packed.response_index.data_ptr<int64_t>();
  int64_t row = 0;
  // Positions [from, to) of a sequence as one segment.
  const auto add_segment = [&](int64_t sequence, int64_t from, int64_t to, int64_t prefix) {
    if (from == to) return;
    const int32_t* begin = source + layout.seq_offsets[sequence];
    std::copy(begin + from, begin + to, tokens + row);
    std::iota(positions + row, positions + row + to - from, static_cast<int32_t>(from));
    std::fill(sharing + row, sharing + row + to - from, 1.0F);
    packed.segments.push_back({row, row + to - from, prefix});
    packed.sources.push_back({row, layout.seq_offsets[sequence] + from, to - from});
    if (packed.rotary_positions.defined()) place_images(batch, layout, sequence, from, to, row, packed);
    row += to - from;
  };
  const auto prompt_of = [&](size_t s) {
    return s < sequences.size() ? layout.same_prompt[sequences[s]] : int64_t{-1};
  };
  int64_t n = 0;
  int64_t prefix = -1;     // segment of the shared prompt
  int64_t prompt_end = 0;  // its last row
  int64_t prompt_begin = 0;
  for (size_t s = 0; s < sequences.size(); ++s) {
    const int64_t sequence = sequences[s];
    const int64_t prompt = layout.prompt_length(sequence);
    const int64_t response = layout.response_length(sequence);
    if (s == 0 || prompt_of(s) != prompt_of(s - 1)) {
      prefix = -1;
      if (prompt_of(s) == prompt_of(s + 1)) {
        prefix = static_cast<int64_t>(packed.segments.size());
        prompt_begin = row;
        add_segment(sequence, 0, prompt, -1);
        prompt_end = row - 1;
      }
    } else if (prefix >= 0) {
      for (int64_t r = prompt_begin; r <= prompt_end; ++r) sharing[r] += 1;
      packed.sources.push_back({prompt_begin, layout.seq_offsets[sequence], prompt});
    }
    const int64_t first = prefix < 0 ? 0 : prompt;  // position of the first row of its own
    const int64_t own = row;
    add_segment(sequence, first, prompt + response - 1, prefix);
    for (int64_t r = 0; r < response; ++r, ++n) {
      const int64_t position = prompt + r - 1;  // of the row that predicts
      predict_rows[n] = position < first ? prompt_end : own + position - first;
      targets[n] = source[layout.seq_offsets[sequence] + prompt + r];
      response_index[n] = layout.response_offsets[sequence] + r;
    }
    packed.response_offsets.push_back(n);
  }
  packed.real_rows = row;
  packed.routed_experts = routed_rows(batch, packed);
  return packed;
}

}  // namespace troupe
