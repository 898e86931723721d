// Batches of the verbs, read from JavaScript.
#pragma once

#include <vector>

#include "binding/dto.h"
#include "engine/engine.h"

// Data DTOs of ts/native/bridge.ts -> the structs of engine/engine.h. Array types, lengths and offsets
// are checked here, so that the core never reads past an array; the values are the core's business.
namespace troupe::binding {

TokenBatch read_token_batch(const Field& dto);
std::vector<Image> read_images(const Field& array);
// null: no given loss. `length`: response tokens.
GivenLoss read_given_loss(const Field& dto, int64_t length);
PolicyBatch read_policy_batch(const Field& dto);
ValueBatch read_value_batch(const Field& dto);
SftBatch read_sft_batch(const Field& dto);
MiniBatches read_mini_batches(const Field& dto, int64_t num_sequences);
TensorKind read_tensor_kind(const Field& field);
std::vector<TensorFile> read_tensor_files(const Field& array);
WeightBucket read_weight_bucket(const Field& dto);

}  // namespace troupe::binding
