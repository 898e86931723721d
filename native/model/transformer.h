// The decoder of every family.
#pragma once

#include <vector>

#include "batch/packing.h"
#include "model/block.h"
#include "model/decoder.h"
#include "parameters/parameter_access.h"
#include "parameters/parameter_store.h"

namespace troupe {

// What a training forward leaves for its backward.
struct ForwardState {
  RowContext rows;
  at::Tensor tokens;               // [T] int32
  int64_t real_rows = 0;           // of the T, those that belong to a sequence
  std::vector<BlockSaved> blocks;  // [num_layers]
  at::Tensor predict_rows;         // [N] int64, a shared row several times
  at::Tensor predict_inputs;       // [N', H] before the final norm, zero rows behind N
  NormStats final_norm;
  int64_t total_rows = 0;  // T
};

// The decoder of every supported family: which parts it has is data (ModelConfig), not a subclass.
// N' is the number of response-predicting rows rounded up to whole row tiles.
class Transformer final : public Decoder {
 public:
  // access: null when `store` holds all parameters all the time. Otherwise a pass acquires the embeddings,
  // the blocks one by one, and the head, each for the time of its use (tied embeddings for the whole pass).
  // sequence: of the ranks that share the
  // micro-batches of training and inference (not those of a generation) with this one; null: none.
  Transformer(const ModelConfig& config, const ParameterStore& store, at::Device device, at::ScalarType dtype,
              ParameterAccess* access = nullptr, const SequenceGroup* sequence = nullptr);

  const ModelConfig& config() const override { return config_; }
  at::Device device() const override { return device_; }
  at::ScalarType dtype() const override { return dtype_; }

  // Final hidden states [N', H] of the rows that predict response tokens, in a sequence group of this rank's
  // part of them (batch/packing.h, own_rows). state may be null
  // (inference); with checkpointing only the blocks' inputs are kept.
  at::Tensor forward(const PackedTokens& packed, ForwardState* state, bool checkpointing);
  // d_hidden [N', H]; adds to the gradient of every parameter that is trained but the head's. Ends the pass.
  void backward(const at::Tensor& d_hidden, ForwardState& state);
  // Ends a pass without a backward: the head is no longer needed.
  void end_inference();
  // What a pass (with a backward when `training`) asks of the parameters' access, without any rows: for a
  // rank that has no micro-batch while others have one.
  void idle_pass(bool training);
  // The same, and with rows > 0 what a pass over so many rows of this rank asks of the sequence group: on
  // meta tensors, for simulation.
  void simulated_pass(bool training, bool checkpointing, int64_t rows);
  // Without adapters a forward is that of the base model.
  void enable_adapters(bool enabled);

  // [V, H] (LM) or [1, H] (value); gradients are undefined where the head is not trained.
  const at::Tensor& head_weight() const { return head_weight_; }
  const at::Tensor& head_weight_grad() const { return head_weight_grad_; }
  const at::Tensor& head_bias() const { return head_bias_; }
  const at::Tensor& head_bias_grad() const { return head_bias_grad_; }

  int64_t decode_row_tile() const override;
  void begin_decoding() override;
  void end_decoding() override;
  void embed(const at::Tensor& tokens, const at::Tensor& positions, const at::Tensor& x) override;
  void attention_inputs(int64_t layer, const at::Tensor& x, const at::Tensor& positions,
                        const at::Tensor& qkv) override;
  void block_output(int64_t layer, const at::Tensor& x, const at::Tensor& attn,
                    const at::Tensor& out) override;
  void logits(const at::Tensor& x, const at::Tensor& logits) override;
  at::Tensor prefill(const PackedSequences& packed, const QkvSink& sink) override;

 private:
  void accumulate_embeddings(const at::Tensor& dx, const ForwardState& state);
  // Of the embeddings, and of final norm and head; a group that is both is acquired first and released last.
  // The gradients of either exist from the head on, or for their own part of the backward pass alone.
  void enter_embeddings();
  void leave_embeddings();
  void enter_head(bool training);
  void leave_head(bool training);
  void enter_embeddings_backward();
  void leave_embeddings_backward();
  void acquire_groups(const std::vector<size_t>& groups, const char* phase);
  void release_groups(const std::vector<size_t>& groups);
  void acquire_gradients(const std::vector<size_t>& groups);
  void release_gradients(const std::vector<size_t>& groups);
  void acquire_block(size_t layer, const char* phase, bool gradient);
  void release_block(size_t layer, bool gradient);
  void prefetch_block(size_t layer, const char* phase);
  // The same for a pass and for one without rows: every rank must ask for the same groups in the same order.
  void enter_forward(size_t layer);
  void leave_forward(size_t layer, bool training);
  void enter_backward(size_t layer);
  RowContext row_context(const at::Tensor& positions, const ops::Segments& segments, int64_t row_tile);
  void ensure_rotary(int64_t positions);

  ModelConfig config_;
  at::Device device_;
  at::ScalarType dtype_;
  double embedding_scale_;  // rounded to the compute dtype, as Hugging Face does
  at::Tensor embed_, embed_grad_, pos_embed_, pos_embed_grad_;
  std::vector<Block> blocks_;
  Norm final_norm_;
  // Of a generation on a processor for which weights are packed: a second copy of them, for all its steps.
  std::vector<Block::PackedWeights> decode_weights_;
  ops::PackedMatrix decode_head_;
  at::Tensor head_weight_, head_weight_grad_, head_bias_, head_bias_grad_;
  RotaryTables rotary_;
  ParameterAccess* access_;
  const SequenceGroup* sequence_;
  std::vector<std::vector<size_t>> block_groups_;       // of the store, by block
  std::vector<size_t> embedding_groups_, head_groups_;  // tied_: the first are among the second
  bool tied_ = false;
};

}  // namespace troupe
