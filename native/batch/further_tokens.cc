// Shifted sequences, and where their rows come from.
#include "batch/further_tokens.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <unordered_map>

namespace troupe {

namespace {

// The rows that gather() makes of these sequences: a prompt that neighbours share once.
int64_t rows_of(const BatchLayout& layout, const std::vector<int64_t>& sequences) {
  int64_t rows = 0, before = -1;
  for (const int64_t sequence : sequences) {
    const int64_t prompt = layout.same_prompt[sequence], response = layout.response_length(sequence);
    rows += response - 1 + (prompt == before ? 0 : layout.prompt_length(sequence));
    before = prompt;
  }
  return rows;
}

at::Tensor source_rows(const PackedTokens& rows, const PackedTokens& before) {
  std::unordered_map<int64_t, int64_t> row_of;  // by token of the batch
  for (const RowSource& source : before.sources) {
    for (int64_t i = 0; i < source.count; ++i) row_of[source.token + i] = source.row + i;
  }
  const at::Tensor sources = at::empty({rows.real_rows}, at::kLong);
  int64_t* target = sources.data_ptr<int64_t>();
  for (const RowSource& source : rows.sources) {
    for (int64_t i = 0; i < source.count; ++i) target[source.row + i] = row_of.at(source.token + i);
  }
  return sources;
}

}  // namespace

FurtherTokens further_tokens(const TokenBatch& batch, const BatchLayout& layout, int64_t depth) {
  FurtherTokens further;
  const int64_t total = batch.tokens.numel();
  further.tokens.tokens = at::zeros_like(batch.tokens);
  if (total > depth)
    further.tokens.tokens.narrow(0, 0, total - depth).copy_(batch.tokens.narrow(0, depth, total - depth));
  further.tokens.seq_offsets = batch.seq_offsets;
  further.layout.seq_offsets = layout.seq_offsets;
  further.layout.response_offsets.push_back(0);
  std::vector<int64_t> responses;
  for (int64_t i = 0; i < layout.size(); ++i) {
    const int64_t prompt = layout.prompt_length(i) - depth;
    // The first token of all is predicted by no row.
    const int64_t skipped = std::min(layout.response_length(i), std::max<int64_t>(0, 1 - prompt));
    for (int64_t r = layout.response_offsets[i] + skipped; r < layout.response_offsets[i + 1]; ++r)
      responses.push_back(r);
    further.layout.response_offsets.push_back(static_cast<int64_t>(responses.size()));
    further.layout.lengths.push_back(std::max<int64_t>(1, prompt) + further.layout.response_length(i));
    further.layout.same_prompt.push_back(prompt >= 1 ? layout.same_prompt[i] : i);
  }
  further.layout.images.resize(static_cast<size_t>(layout.size()));
  further.responses = at::tensor(responses, at::kLong);
  return further;
}

FurtherRows further_rows(const FurtherTokens& tokens, const MicroBatch& micro, const PackedTokens& before,
                         const RowPadding& padding) {
  const MicroBatch further{micro.sequences, rows_of(tokens.layout, micro.sequences)};
  FurtherRows rows;
  rows.packed = gather(tokens.tokens, tokens.layout, further,
                       std::max(padding.multiple, padded_rows(further, padding)));
  rows.sources = source_rows(rows.packed, before);
  return rows;
}

}  // namespace troupe
