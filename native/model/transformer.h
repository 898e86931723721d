// The decoder of every family: its stages, or those of one rank of a pipeline.
#pragma once

#include <optional>
#include <vector>

#include "comm/communicator.h"
#include "model/decoder.h"
#include "model/stage.h"

namespace troupe {

// The parts of a decoder that a rank has: parts[k] for k % pp->size() == pp->rank(). pp null: all of the one
// part.
struct PipelinePlace {
  std::vector<StageRange> parts;
  Communicator* pp = nullptr;

  int64_t stages() const { return pp != nullptr ? pp->size() : 1; }
  int64_t stage() const { return pp != nullptr ? pp->rank() : 0; }
};

// The most layers of each kind that a stage of a pipeline with these parts has. predicts: the last one has
// the layer for further tokens, too.
MixerLayers most_layers(const ModelConfig& config, const std::vector<StageRange>& parts, int64_t stages,
                        bool predicts);

// A decoder as a generation sees it, over the stages that this rank has. In a pipeline all ranks make the
// same calls: a row passes through the stages one after another, and all of them get the logits of the last.
class Transformer final : public Decoder {
 public:
  // access, sequence, exchange, ep, context: see Stage. A generation uses neither of the first, nor the last;
  // with an exchange, or ep, it is a work of all of its ranks, all rows on each.
  Transformer(const ModelConfig& config, const ParameterStore& store, at::Device device, at::ScalarType dtype,
              ParameterAccess* access = nullptr, const SequenceGroup* sequence = nullptr,
              std::optional<PipelinePlace> place = std::nullopt, const Exchange* exchange = nullptr,
              Communicator* ep = nullptr, const ContextGroup* context = nullptr);

  // With the heads of this rank where ranks share them.
  const ModelConfig& config() const override { return config_; }
  at::Device device() const override { return device_; }
  at::ScalarType dtype() const override { return dtype_; }

  // In the order of their layers: the chunks of this rank, most often one.
  std::vector<Stage>& stages() { return stages_; }
  const PipelinePlace& place() const { return place_; }
  bool has_head() const { return stages_.back().range().head; }
  // Of the rows of a micro-batch, those that this rank has between blocks.
  int64_t own_rows(int64_t rows) const { return exchange_ != nullptr ? exchange_->own_rows(rows) : rows; }
  // Without adapters a forward is that of the base model.
  void enable_adapters(bool enabled);
  // See Stage.
  void watch_routers(const RouterOrders& orders);

  std::vector<int64_t> own_layers() const override;
  MixerLayers most_layers(bool predicts) const override;
  int64_t decode_row_tile() const override;
  void begin_decoding(const DecodingForm& form = {}) override;
  void end_decoding() override;
  void begin_step(int64_t positions, const at::Tensor& rows) override;
  void keep_rows(const at::Tensor& index) override;
  ImageFeatures image_features(const std::vector<Image>& images) override;
  void embed(const at::Tensor& tokens, const at::Tensor& positions, const at::Tensor& x) override;
  at::Tensor layer_inputs(const at::Tensor& tokens, const at::Tensor& x) override;
  void enter_layer(int64_t layer, const at::Tensor& x) override;
  void attention_inputs(int64_t layer, const at::Tensor& x, const at::Tensor& positions,
                        const at::Tensor& qkv) override;
  at::Tensor attention_sinks(int64_t layer) const override;
  const LinearAttention* linear_attention(int64_t layer) const override;
  at::Tensor gate_heads(int64_t layer, const at::Tensor& attn, const at::Tensor& qkv) const override;
  void block_output(int64_t layer, const at::Tensor& x, const at::Tensor& attn, const at::Tensor& inputs,
                    const at::Tensor& out) override;
  void record_experts(const at::Tensor& rows) override { routed_ = rows; }
  std::vector<int64_t> vocabulary_parts() const override;
  void logits(const at::Tensor& x, const at::Tensor& logits) override;
  bool predicts() const override;
  void prediction_inputs(const at::Tensor& tokens, const at::Tensor& positions, const at::Tensor& before,
                         bool again, const at::Tensor& x) override;
  void prediction_logits(const at::Tensor& y, const at::Tensor& logits) override;

 private:
  // Where a layer of this rank lies: that for further tokens behind the blocks of its stage. kInternal for
  // one of another rank.
  struct Place {
    size_t stage, block;
  };
  Place find(int64_t layer) const;
  const Block& block_at(const Place& place) const;
  // Of a generation; null: none are packed.
  const Block::PackedWeights* packed_at(const Place& place) const;
  // Of a generation over latents; null: it is over heads.
  const LatentHeads* latents_at(const Place& place) const;
  // Rows per tile of a step. spreads: a tile that is alone has work for all threads.
  int64_t decode_tile(int64_t rows, bool spreads) const;
  // Whether `here` is true on all stages of the pipeline: they must decode with tiles of one size.
  bool everywhere(bool here) const;
  // Of x behind this norm, on all ranks of the pipeline.
  void logits_of(const Norm* norm, const at::Tensor& x, const at::Tensor& logits);
  void own_logits(const Norm& norm, const at::Tensor& x, const at::Tensor& logits) const;
  const Exchange* decoding_exchange() const { return whole_rows_ ? &*whole_rows_ : nullptr; }
  // Of `count` rows of a step.
  RowContext decoding_rows(int64_t count, const at::Tensor& positions, const RotaryTables& rotary) const;

  ModelConfig config_;
  at::Device device_;
  at::ScalarType dtype_;
  PipelinePlace place_;
  // Of training and inference, and of a generation, where no rows are scattered; none without other ranks.
  const Exchange* exchange_;
  Communicator* ep_;
  std::optional<Exchange> whole_rows_;
  std::vector<Stage> stages_;
  // Of a generation on a processor for which weights are packed, or one with quantised weights: a second copy
  // of them, for all its steps.
  std::vector<std::vector<Block::PackedWeights>> decode_weights_;  // by stage and block
  std::vector<std::vector<LatentHeads>> decode_latents_;           // of one over latents, likewise
  bool decode_packs_ = false;                                      // every product is of packed operands
  ops::PackedMatrix decode_head_;
  Linear::Packed decode_per_layer_;        // of the projection of per-layer embeddings
  std::shared_ptr<SharedKeys> step_keys_;  // of the rows of a step
  Linear::Packed decode_prediction_;       // of the projection of a layer for further tokens that takes part
  at::Tensor routed_;                      // see record_experts
  // Of a step whose rows turn by several positions: a table of them, and their numbers.
  RotaryTables step_turns_;
  at::Tensor step_rows_;
  at::Tensor decode_float_head_;  // float32, where LibTorch multiplies
};

}  // namespace troupe
