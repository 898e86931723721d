// Batches from JavaScript, copied into tensors.
#include "binding/batches.h"

#include <array>

#include "base/error.h"
#include "binding/tensors.h"

namespace troupe::binding {

namespace {

// Sum of the response lengths R_i = L_i - promptLens_i, each of which must be >= 0.
int64_t num_response_tokens(const Field& dto, const TokenBatch& batch) {
  const int32_t* offsets = batch.seq_offsets.const_data_ptr<int32_t>();
  const int32_t* prompts = batch.prompt_lens.const_data_ptr<int32_t>();
  int64_t total = 0;
  for (int64_t i = 0; i < batch.size(); ++i) {
    const int32_t length = offsets[i + 1] - offsets[i];
    require(prompts[i] >= 0 && prompts[i] <= length, ErrorCode::kInvalidArgument, dto.path(), ".promptLens[",
            i, "]: expected 0 to ", length, " (the length of the sequence), got ", prompts[i]);
    total += length - prompts[i];
  }
  return total;
}

constexpr const char* kPerResponseToken = "one per response token";

at::Tensor read_response(const Field& field, int64_t length) {
  at::Tensor tensor = read_float32(field);
  require_length(field, tensor, length, kPerResponseToken);
  return tensor;
}

at::Tensor read_response_or_none(const Field& field, int64_t length) {
  return field.is_null() ? at::Tensor() : read_response(field, length);
}

at::Tensor read_mask(const Field& field, int64_t length) {
  at::Tensor tensor = read_uint8(field);
  require_length(field, tensor, length, kPerResponseToken);
  return tensor;
}

TensorScales read_scales(const Field& dto) {
  TensorScales scales;
  scales.path = dto["path"].string();
  scales.offset = dto["offset"].count();
  scales.dtype = dto["dtype"].string();
  scales.block_rows = dto["blockRows"].count();
  scales.block_columns = dto["blockColumns"].count();
  return scales;
}

TensorSlice read_tensor_slice(const Field& dto) {
  TensorSlice slice;
  slice.param = dto["param"].string();
  slice.row = dto["row"].count();
  slice.rows = dto["rows"].count();
  slice.transpose = dto["transpose"].boolean();
  slice.label = dto["label"].string();
  slice.offset = dto["offset"].count();
  slice.dtype = dto["dtype"].string();
  if (!dto["scales"].is_null()) slice.scales = read_scales(dto["scales"]);
  return slice;
}

// Of each sequence, which images are its own.
std::vector<std::vector<int64_t>> read_image_lists(const Field& dto, int64_t sequences, size_t images) {
  const at::Tensor indices = read_int32(dto["indices"]), offsets = read_int32(dto["offsets"]);
  require_length(dto["offsets"], offsets, sequences + 1, "one more than sequences");
  require_offsets(dto["offsets"], offsets, indices.numel(), "the number of indices");
  const int32_t* all = indices.const_data_ptr<int32_t>();
  const int32_t* at = offsets.const_data_ptr<int32_t>();
  std::vector<std::vector<int64_t>> lists;
  for (int64_t i = 0; i < sequences; ++i) {
    lists.emplace_back(all + at[i], all + at[i + 1]);
    for (const int64_t image : lists.back()) {
      require(image >= 0 && static_cast<size_t>(image) < images, ErrorCode::kInvalidArgument, dto.path(),
              ".indices: expected numbers of the ", images, " images, got ", image);
    }
  }
  return lists;
}

}  // namespace

std::vector<Image> read_images(const Field& array) {
  std::vector<Image> images;
  for (const Field& dto : array.elements()) {
    const int64_t height = dto["height"].count(), width = dto["width"].count();
    images.push_back(make_image(height, width, read_uint8(dto["pixels"]), dto.path()));
  }
  return images;
}

TokenBatch read_token_batch(const Field& dto) {
  TokenBatch batch;
  batch.tokens = read_int32(dto["tokens"]);
  batch.seq_offsets = read_int32(dto["seqOffsets"]);
  batch.prompt_lens = read_int32(dto["promptLens"]);
  require_length(dto["seqOffsets"], batch.seq_offsets, batch.size() + 1, "one more than promptLens");
  require_offsets(dto["seqOffsets"], batch.seq_offsets, batch.tokens.numel(), "the number of tokens");
  num_response_tokens(dto, batch);
  if (!dto["routedExperts"].is_null()) batch.routed_experts = read_uint8(dto["routedExperts"]);
  if (const Field images = dto["images"]; !images.is_null()) {
    batch.images.all = read_images(images["all"]);
    batch.images.of_sequence = read_image_lists(images, batch.size(), batch.images.all.size());
  }
  return batch;
}

GivenLoss read_given_loss(const Field& dto, int64_t length) {
  if (dto.is_null()) return {};
  return {read_response(dto["values"], length), read_response(dto["byLogProb"], length),
          read_response_or_none(dto["byEntropy"], length)};
}

PolicyBatch read_policy_batch(const Field& dto) {
  PolicyBatch batch;
  batch.tokens = read_token_batch(dto["tokens"]);
  const int64_t n = num_response_tokens(dto["tokens"], batch.tokens);
  batch.response_mask = read_mask(dto["responseMask"], n);
  batch.old_log_probs = read_response(dto["oldLogProbs"], n);
  batch.advantages = read_response(dto["advantages"], n);
  batch.ref_log_probs = read_response_or_none(dto["refLogProbs"], n);
  batch.rollout_is_weights = read_response_or_none(dto["rolloutIsWeights"], n);
  batch.given_loss = read_given_loss(dto["givenLoss"], n);
  const auto rows = [&](const at::Tensor& flat) {
    return n > 0 && flat.numel() % n == 0 ? flat.view({n, flat.numel() / n}) : flat;
  };
  if (!dto["teacherLogProbs"].is_null()) batch.teacher_log_probs = rows(read_float32(dto["teacherLogProbs"]));
  if (!dto["teacherIds"].is_null()) batch.teacher_ids = rows(read_int32(dto["teacherIds"]));
  if (!dto["hasGradient"].is_null()) {
    batch.has_gradient = read_uint8(dto["hasGradient"]);
    require_length(dto["hasGradient"], batch.has_gradient, batch.tokens.size(), "one per sequence");
  }
  return batch;
}

ValueBatch read_value_batch(const Field& dto) {
  ValueBatch batch;
  batch.tokens = read_token_batch(dto["tokens"]);
  const int64_t n = num_response_tokens(dto["tokens"], batch.tokens);
  batch.response_mask = read_mask(dto["responseMask"], n);
  batch.values = read_response(dto["values"], n);
  batch.returns = read_response(dto["returns"], n);
  return batch;
}

SftBatch read_sft_batch(const Field& dto) {
  SftBatch batch;
  batch.tokens = read_token_batch(dto["tokens"]);
  batch.loss_mask = read_mask(dto["lossMask"], num_response_tokens(dto["tokens"], batch.tokens));
  return batch;
}

MiniBatches read_mini_batches(const Field& dto, int64_t num_sequences) {
  MiniBatches mini;
  mini.offsets = dto["offsets"].integers();
  mini.global_tokens = dto["globalTokens"].numbers();
  mini.global_sequences = dto["globalSequences"].numbers();
  mini.epochs = dto["epochs"].count();
  const size_t count = mini.global_tokens.size();
  require(mini.offsets.size() == count + 1, ErrorCode::kInvalidArgument, dto.path(), ".offsets: expected ",
          count + 1, " elements (one more than globalTokens), got ", mini.offsets.size());
  require(mini.global_sequences.size() == count, ErrorCode::kInvalidArgument, dto.path(),
          ".globalSequences: expected ", count, " elements (as many as globalTokens), got ",
          mini.global_sequences.size());
  int64_t least = 0;
  for (size_t m = 0; m <= count; ++m) {
    require(mini.offsets[m] >= least && mini.offsets[m] <= num_sequences, ErrorCode::kInvalidArgument,
            dto.path(), ".offsets[", m, "]: expected ", least, " to ", num_sequences,
            " (the number of sequences), got ", mini.offsets[m]);
    least = mini.offsets[m];
  }
  return mini;
}

TensorKind read_tensor_kind(const Field& field) {
  constexpr std::array kKinds = {TensorKind::kParam, TensorKind::kGrad, TensorKind::kExpAvg,
                                 TensorKind::kExpAvgSq, TensorKind::kMerged};
  return kKinds[field.word({"param", "grad", "expAvg", "expAvgSq", "merged"})];
}

std::vector<TensorFile> read_tensor_files(const Field& array) {
  std::vector<TensorFile> files;
  for (const Field& dto : array.elements()) {
    TensorFile file;
    file.path = dto["path"].string();
    file.header = read_bytes(dto["header"]);
    file.size = dto["size"].count();
    for (const Field& slice : dto["tensors"].elements()) file.tensors.push_back(read_tensor_slice(slice));
    files.push_back(std::move(file));
  }
  return files;
}

WeightBucket read_weight_bucket(const Field& dto) {
  WeightBucket bucket;
  bucket.dtype = dto["dtype"].string();
  for (const Field& chunk : dto["chunks"].elements()) {
    bucket.chunks.push_back({chunk["param"].string(), chunk["row"].count(), chunk["rows"].count(),
                             chunk["transpose"].boolean(), chunk["label"].string(), chunk["first"].count(),
                             chunk["count"].count()});
  }
  return bucket;
}

}  // namespace troupe::binding
