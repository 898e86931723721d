// Steps of a generation through the stages.
#include "model/transformer.h"

#include <ATen/ATen.h>

#include <numeric>

#include "base/error.h"
#include "base/parallel.h"
#include "base/range.h"
#include "base/upload.h"
#include "model/image_rows.h"

namespace troupe {

namespace {

PipelinePlace whole(const ModelConfig& config) {
  return {{StageRange{0, config.num_layers, true, true}}, nullptr};
}

}  // namespace

MixerLayers mixer_layers(const ModelConfig& config, const std::vector<int64_t>& layers) {
  MixerLayers count;
  for (const int64_t layer : layers) {
    if (config.shares_keys(layer)) continue;
    ++(config.is_linear_layer(layer)    ? count.linear
       : config.has_second_heads(layer) ? count.second
                                        : count.attention);
  }
  return count;
}

MixerLayers most_layers(const ModelConfig& config, const std::vector<StageRange>& parts, int64_t stages,
                        bool predicts) {
  std::vector<MixerLayers> layers(static_cast<size_t>(stages));
  MixerLayers most;
  for (size_t part = 0; part < parts.size(); ++part) {
    MixerLayers& here = layers[part % layers.size()];
    std::vector<int64_t> own(static_cast<size_t>(parts[part].layers()));
    std::iota(own.begin(), own.end(), parts[part].first);
    const MixerLayers more = mixer_layers(config, own);
    here = {here.attention + more.attention, here.second + more.second, here.linear + more.linear};
    if (predicts && part + 1 == parts.size()) ++here.attention;
    most = {std::max(most.attention, here.attention), std::max(most.second, here.second),
            std::max(most.linear, here.linear)};
  }
  return most;
}

Transformer::Transformer(const ModelConfig& config, const ParameterStore& store, at::Device device,
                         at::ScalarType dtype, ParameterAccess* access, const SequenceGroup* sequence,
                         std::optional<PipelinePlace> place, const Exchange* exchange, Communicator* ep,
                         const ContextGroup* context)
    : config_(own_heads(config, part_of(exchange))),
      device_(device),
      dtype_(dtype),
      place_(place ? *place : whole(config)),
      exchange_(exchange),
      ep_(ep) {
  if (exchange != nullptr) whole_rows_ = exchange->of_whole_rows();
  for (size_t part = 0; part < place_.parts.size(); ++part) {
    if (static_cast<int64_t>(part) % place_.stages() != place_.stage()) continue;
    stages_.emplace_back(config, store, device, dtype, place_.parts[part], access, sequence, exchange, ep,
                         context);
  }
}

void Transformer::enable_adapters(bool enabled) {
  for (Stage& stage : stages_) stage.enable_adapters(enabled);
}

void Transformer::watch_routers(const RouterOrders& orders) {
  for (Stage& stage : stages_) stage.watch_routers(orders);
}

Transformer::Place Transformer::find(int64_t layer) const {
  for (size_t stage = 0; stage < stages_.size(); ++stage) {
    const StageRange& range = stages_[stage].range();
    if (range.has(layer)) return {stage, static_cast<size_t>(layer - range.first)};
  }
  if (layer == config_.num_layers && predicts()) return {stages_.size() - 1, stages_.back().blocks().size()};
  fail(ErrorCode::kInternal, "[model] layer ", layer, " is not on this rank");
}

const Block& Transformer::block_at(const Place& place) const {
  const Stage& stage = stages_[place.stage];
  return place.block < stage.blocks().size() ? stage.blocks()[place.block] : stage.prediction()->block();
}

const Block::PackedWeights* Transformer::packed_at(const Place& place) const {
  if (decode_weights_.empty()) return nullptr;
  const std::vector<Block::PackedWeights>& stage = decode_weights_[place.stage];
  return place.block < stage.size() ? &stage[place.block] : nullptr;
}

std::vector<int64_t> Transformer::own_layers() const {
  std::vector<int64_t> layers;
  for (const Stage& stage : stages_) {
    for (int64_t layer = stage.range().first; layer < stage.range().last; ++layer) layers.push_back(layer);
  }
  return layers;
}

MixerLayers Transformer::most_layers(bool predicts) const {
  return troupe::most_layers(config_, place_.parts, place_.stages(), predicts);
}

int64_t Transformer::decode_row_tile() const {
  return decode_packs_ ? 1 : kDecodeRowTile;
}

// With packed weights a row has the same bits in a tile of any size. Large tiles read the weights less often;
// small ones give every thread work where there are few rows, unless these are one tile whose products spread
// over the threads by columns.
int64_t Transformer::decode_tile(int64_t rows, bool spreads) const {
  if (!decode_packs_) return kDecodeRowTile;
  const bool enough = rows >= kRowTile * at::get_num_threads();
  return enough || (spreads && rows <= kRowTile) ? kRowTile : kDecodeRowTile;
}

const LatentHeads* Transformer::latents_at(const Place& place) const {
  return decode_latents_.empty() ? nullptr : &decode_latents_[place.stage][place.block];
}

void Transformer::begin_decoding(const DecodingForm& form) {
  const ops::Quantization quantization = form.quantization;
  const bool quantized = quantization != ops::Quantization::kNone;
  require(!quantized || !config_.moe, ErrorCode::kInvalidArgument,
          "[rollout] quantized weights of mixtures of experts are not there: expected quantization off for "
          "this model");
  const auto packs = [](const Stage& stage) {
    const auto block_packs = [](const Block& block) { return block.packs(); };
    return std::all_of(stage.blocks().begin(), stage.blocks().end(), block_packs);
  };
  if (config_.head != HeadKind::kLm) return;
  const bool packed = everywhere(std::all_of(stages_.begin(), stages_.end(), packs));
  const Range range("pack_weights");
  // In locals first: if memory does not suffice for all of it, nothing is left behind.
  std::vector<std::vector<Block::PackedWeights>> weights(packed || quantized ? stages_.size() : 0);
  for (size_t stage = 0; stage < weights.size(); ++stage) {
    for (const Block& block : stages_[stage].blocks())
      weights[stage].push_back(block.pack(quantization, form.latents));
  }
  std::vector<std::vector<LatentHeads>> latents(form.latents ? stages_.size() : 0);
  for (size_t stage = 0; stage < latents.size(); ++stage) {
    for (const Block& block : stages_[stage].blocks()) latents[stage].push_back(block.latent_heads());
  }
  Linear::Packed prediction_inputs, per_layer;
  const PerLayerEmbeddings* const embeddings = stages_.front().per_layer();
  if (embeddings != nullptr && !weights.empty()) per_layer = embeddings->pack();
  const PredictionLayer* const prediction =
      form.predicts && has_head() ? stages_.back().prediction() : nullptr;
  if (prediction != nullptr && !weights.empty()) {
    weights.back().push_back(prediction->block().pack(quantization, form.latents));
    prediction_inputs = prediction->pack_inputs(quantization);
  }
  if (prediction != nullptr && form.latents) latents.back().push_back(prediction->block().latent_heads());
  ops::PackedMatrix packed_head;
  at::Tensor float_head;
  if (has_head() && stages_.back().head_weight().size(0) > 0) {
    const at::Tensor& head = stages_.back().head_weight();
    // The logits are float32 whatever the compute dtype, as in linear_log_prob. The head is quantised only
    // where a kernel multiplies the codes themselves; elsewhere every step would expand them to a whole
    // matrix.
    if (quantized && ops::multiplies_codes(head)) {
      packed_head = ops::PackedMatrix::quantized(head, quantization);
    } else if (packed) {
      packed_head = ops::PackedMatrix::of(head, true);
    } else {
      float_head = head.to(at::kFloat);
    }
  }
  decode_weights_ = std::move(weights);
  decode_latents_ = std::move(latents);
  decode_prediction_ = std::move(prediction_inputs);
  decode_per_layer_ = std::move(per_layer);
  decode_head_ = std::move(packed_head);
  decode_float_head_ = std::move(float_head);
  decode_packs_ = packed;
  ops::PackedMatrix* before = nullptr;
  const auto chain = [&](ops::PackedMatrix& matrix) {
    if (before != nullptr) before->precede(matrix);
    before = &matrix;
  };
  const auto chain_block = [&](Block::PackedWeights& block) {
    for (Linear::Packed& linear : block.qkv) chain(linear.weight);
    for (Linear::Packed* linear : {&block.output.attn_out, &block.output.mlp_in, &block.output.mlp_out})
      chain(linear->weight);
    for (Linear::Packed* linear : {&block.output.token.in, &block.output.token.out})
      if (linear->defined()) chain(linear->weight);
  };
  for (size_t stage = 0; stage < decode_weights_.size(); ++stage) {
    for (size_t block = 0; block < stages_[stage].blocks().size(); ++block)
      chain_block(decode_weights_[stage][block]);
  }
  chain(decode_head_);
  if (!decode_prediction_.defined()) return;
  chain(decode_prediction_.weight);
  chain_block(decode_weights_.back().back());
}

bool Transformer::everywhere(bool here) const {
  if (place_.stages() == 1) return here;
  const at::Tensor not_here = at::tensor({int64_t{!here}}, at::kLong);
  place_.pp->all_reduce(not_here, ReduceOp::kMax, {"generate", "packed weights"});
  return not_here.item<int64_t>() == 0;
}

void Transformer::end_decoding() {
  decode_weights_.clear();
  decode_latents_.clear();
  decode_packs_ = false;
  decode_prediction_ = {};
  decode_per_layer_ = {};
  decode_head_ = {};
  decode_float_head_.reset();
  // Of the last step, which may have failed.
  step_keys_.reset();
  step_rows_.reset();
  step_turns_ = {};
  routed_.reset();
}

void Transformer::begin_step(int64_t positions, const at::Tensor& rows) {
  for (Stage& stage : stages_) stage.rotary(positions);
  if (config_.shared_kv_layers > 0) step_keys_ = std::make_shared<SharedKeys>();
  step_rows_.reset();
  step_turns_ = {};
  if (!rows.defined()) return;
  step_rows_ = upload(at::arange(rows.size(1), at::kInt), device_);
  step_turns_.first =
      rows_that_turn(stages_.front().rotary(0).first, upload(rows, device_), config_.vision->rope_axes);
}

void Transformer::keep_rows(const at::Tensor& index) {
  if (step_rows_.defined()) step_rows_ = step_rows_.index_select(0, index);
  if (step_keys_ == nullptr) return;
  for (at::Tensor& keys : step_keys_->of)
    if (keys.defined()) keys = keys.index_select(0, index);
}

ImageFeatures Transformer::image_features(const std::vector<Image>& images) {
  VisionTower* const tower = stages_.front().vision();
  if (tower == nullptr) return {};
  return tower->forward(images, nullptr, /*checkpointing=*/false, "generate", nullptr);
}

void Transformer::embed(const at::Tensor& tokens, const at::Tensor& positions, const at::Tensor& x) {
  if (stages_.front().range().embedding)
    stages_.front().embed(tokens, positions, decoding_exchange(), "generate", x);
}

at::Tensor Transformer::layer_inputs(const at::Tensor& tokens, const at::Tensor& x) {
  const Stage& first = stages_.front();
  if (!first.range().embedding) return {};
  return first.layer_inputs(tokens, x, decoding_exchange(), "generate",
                            decode_tile(x.size(0), /*spreads=*/true), decode_per_layer_, nullptr);
}

void Transformer::enter_layer(int64_t layer, const at::Tensor& x) {
  for (size_t part = 1; part < place_.parts.size(); ++part) {
    if (place_.parts[part].first != layer) continue;
    const auto p = static_cast<int64_t>(part);
    const int64_t from = (p - 1) % place_.stages(), to = p % place_.stages();
    const CollectiveLabel label{"generate", "layers." + std::to_string(layer)};
    if (place_.stage() == from) place_.pp->send(x, to, label);
    if (place_.stage() == to) place_.pp->recv(x, from, label);
  }
}

RowContext Transformer::decoding_rows(int64_t count, const at::Tensor& positions,
                                      const RotaryTables& rotary) const {
  RowContext rows{positions, {}, rotary, decode_tile(count, /*spreads=*/!config_.moe)};
  rows.exchange = decoding_exchange();
  if (ep_ != nullptr) rows.experts = ExpertRows(*ep_);
  rows.routers.record = routed_;
  rows.shared_keys = step_keys_;
  rows.phase = "generate";
  return rows;
}

void Transformer::attention_inputs(int64_t layer, const at::Tensor& x, const at::Tensor& positions,
                                   const at::Tensor& qkv) {
  const Place at = find(layer);
  Stage& stage = stages_[at.stage];
  const Block::PackedWeights* const packed = packed_at(at);
  RowContext rows = step_rows_.defined() ? decoding_rows(x.size(0), step_rows_, step_turns_)
                                         : decoding_rows(x.size(0), positions, stage.rotary(0));
  rows.latents = latents_at(at);
  block_at(at).attention_inputs(x, rows, qkv, nullptr,
                                packed != nullptr ? packed->qkv : QkvProjection::Packed{});
}

at::Tensor Transformer::attention_sinks(int64_t layer) const {
  return block_at(find(layer)).attention_sinks();
}

const LinearAttention* Transformer::linear_attention(int64_t layer) const {
  return block_at(find(layer)).linear_attention();
}

at::Tensor Transformer::gate_heads(int64_t layer, const at::Tensor& attn, const at::Tensor& qkv) const {
  return block_at(find(layer)).gate_heads(attn, qkv, kDecodeRowTile, nullptr);
}

void Transformer::block_output(int64_t layer, const at::Tensor& x, const at::Tensor& attn,
                               const at::Tensor& inputs, const at::Tensor& out) {
  const Place at = find(layer);
  const Block& block = block_at(at);
  const Block::PackedWeights* const packed = packed_at(at);
  RowContext rows = decoding_rows(x.size(0), {}, {});
  rows.layer_inputs = inputs;
  block.output_and_mlp(x, block.values_of(attn, latents_at(at)), rows, out, nullptr,
                       packed != nullptr ? packed->output : Block::OutputWeights{});
}

std::vector<int64_t> Transformer::vocabulary_parts() const {
  return vocabulary_offsets(config_.vocab_size, exchange_ != nullptr ? exchange_->size() : 1);
}

void Transformer::logits(const at::Tensor& x, const at::Tensor& logits) {
  const Range range("logits");
  require(config_.head == HeadKind::kLm, ErrorCode::kInvalidArgument,
          "[generate] expected a causal LM, got a value model");
  logits_of(has_head() ? &stages_.back().final_norm() : nullptr, x, logits);
}

bool Transformer::predicts() const {
  return has_head() && stages_.back().prediction() != nullptr;
}

void Transformer::prediction_inputs(const at::Tensor& tokens, const at::Tensor& positions,
                                    const at::Tensor& before, bool again, const at::Tensor& x) {
  const Stage& stage = stages_.back();
  const PredictionLayer& layer = *stage.prediction();
  const at::Tensor embedded = at::empty_like(before);
  stage.embed(tokens, positions, decoding_exchange(), "generate", embedded);
  const at::Tensor hidden = norm_rows(again ? layer.norm() : stage.final_norm(), before, {});
  const int64_t tile = decode_tile(x.size(0), /*spreads=*/true);
  layer.block_inputs(embedded, hidden, tile, decode_prediction_, x);
}

void Transformer::prediction_logits(const at::Tensor& y, const at::Tensor& logits) {
  const Range range("prediction_logits");
  logits_of(predicts() ? &stages_.back().prediction()->norm() : nullptr, y, logits);
}

void Transformer::logits_of(const Norm* norm, const at::Tensor& x, const at::Tensor& logits) {
  if (norm != nullptr) own_logits(*norm, x, logits);
  if (place_.stages() > 1) place_.pp->broadcast(logits, place_.stages() - 1, {"generate", "logits"});
}

void Transformer::own_logits(const Norm& norm, const at::Tensor& x, const at::Tensor& logits) const {
  const Stage& last = stages_.back();
  const at::Tensor hidden = at::empty_like(x);
  // Without begin_decoding() every call converts the head.
  const at::Tensor weight = decode_head_.packed() || decode_float_head_.defined()
                                ? decode_float_head_
                                : last.head_weight().to(at::kFloat);
  // The logits of this rank's part of the vocabulary, padded to the width that all ranks' parts have.
  const int64_t own = last.head_weight().size(0);
  const at::Tensor part =
      exchange_ == nullptr ? logits : at::zeros({x.size(0), last.vocabulary_part()}, logits.options());
  for_each_row_tile(
      x.size(0), decode_tile(x.size(0), /*spreads=*/true), device_,
      [&](int64_t begin, int64_t end) {
        const at::Tensor tile = hidden.narrow(0, begin, end - begin);
        norm_forward(norm, x.narrow(0, begin, end - begin), tile, {});
        if (own == 0) return;
        at::Tensor out = part.narrow(0, begin, end - begin).narrow(1, 0, own);
        if (decode_head_.packed()) {
          ops::gemm(tile, decode_head_, out, false);
        } else {
          at::mm_out(out, tile.to(at::kFloat), weight.t());
        }
      },
      decode_head_.packed());
  if (exchange_ == nullptr) return;
  logits.copy_(whole_rows_->gather_columns(part, {"generate", "logits"}).narrow(1, 0, config_.vocab_size));
}

}  // namespace troupe
