// A range of a decoder's layers, with what lies before and behind it where it is at an end.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "batch/further_tokens.h"
#include "batch/packing.h"
#include "batch/routed_experts.h"
#include "megatron/context_group.h"
#include "megatron/exchange.h"
#include "model/activation_stack.h"
#include "model/block.h"
#include "model/image_rows.h"
#include "model/model_config.h"
#include "model/per_layer_embeddings.h"
#include "model/prediction_layer.h"
#include "model/stage_range.h"
#include "model/vision_tower.h"
#include "parameters/parameter_access.h"
#include "parameters/parameter_store.h"

namespace troupe {

// What layers that predict further tokens do with a micro-batch.
struct PredictionTask {
  std::vector<FurtherRows> layers;  // one for each
  // Of layer k: the gradient of the loss by its outputs [N', H] in those of its rows that predict response
  // tokens, zero rows behind these.
  std::function<at::Tensor(size_t k, const PackedTokens& rows, const at::Tensor& outputs)> gradient;
  bool detach = false;  // the gradients of each layer's inputs go no further
};

// One micro-batch in a stage, from its forward to the end of its backward, or of its use of the head. Several
// may be under way at the same time.
struct StagePass {
  // offload: where the blocks' inputs are kept with checkpointing; null: on their device.
  explicit StagePass(bool training, bool checkpointing = false, ActivationOffload* offload = nullptr)
      : training(training), checkpointing(training && checkpointing), inputs(offload) {
    vision.inputs = ActivationStack(offload);
  }

  bool training;           // a backward follows
  bool checkpointing;      // only the blocks' inputs are kept
  ActivationStack inputs;  // these
  RowContext rows;
  at::Tensor tokens;      // [T] int32
  int64_t real_rows = 0;  // of the T, those that belong to a sequence
  PerLayerSaved per_layer;
  std::vector<BlockSaved> blocks;  // [layers of the stage]
  at::Tensor predict_rows;         // [N] int64, a shared row several times
  at::Tensor predict_inputs;       // [N', H] before the final norm, zero rows behind N
  NormStats final_norm;
  int64_t total_rows = 0;  // T, of the last block's output
  // Of a model that reads images: those of the rows, and where the tower is trained what its backward takes.
  ImageRows images;
  ImageParts image_parts;  // with those of the ranks that share the rows
  bool image_training = false;
  VisionPass vision;
  ImageFeatures image_gradients;
  // Of a stage with prediction layers: what they are to do in the backward pass, and the last block's output
  // [T, H] of all rows.
  std::optional<PredictionTask> predictions;
  at::Tensor outputs;
  // What stays from the forward on: the last block, whose backward is the first; head; tied embeddings.
  Lease last_block, embeddings, head, head_gradient, embedding_gradient;
};

// What passes ask of the routers: to count their choices (null: nowhere), to add to the gradient by their
// probabilities (RouterWork::balance) and by their logits (null: nothing), to record their choices (null:
// nowhere). no_choices: [0, width], where all micro-batches say what is to be chosen and this rank may have
// none.
struct RouterOrders {
  ExpertLoad* load = nullptr;
  at::Tensor balance = {};
  RouterZLoss* z_loss = nullptr;
  RoutingRecord* record = nullptr;
  at::Tensor no_choices = {};
};

// What a rank has of the decoder that shares it by `exchange`; null: all.
DecoderPart part_of(const Exchange* exchange, const Communicator* ep = nullptr);

// A range of the layers of the decoder of every supported family (which parts it has is data, ModelConfig),
// with the embeddings if it is the first and with final norm and head if it is the last, or with all of them.
// N' is the number of response-predicting rows rounded up to whole row tiles.
//
// A pass over a micro-batch:
//   forward(packed, x, pass)   y [T, H] for the next stage; of the last one the hidden states [N', H]
//   enter_head_backward(pass)  with a head: until backward() its gradients can be added to
//   backward(dy, pass)         dx [T, H] for the stage before; of the first one undefined
// or forward() and end(pass). Layers that predict further tokens run in backward() alone: nothing but their
// own loss depends on them. Every rank that shares the parameters makes the same calls in the same order;
// one that has no micro-batch while others have one calls with `packed` null and undefined tensors.
class Stage {
 public:
  // access: null when `store` holds all parameters all the time. Otherwise a pass leases the embeddings, the
  // blocks one by one, and the head, each for the time of its use (embeddings that are used at both ends for
  // the whole pass). sequence: of the ranks that share the micro-batches with this one; null: none.
  // exchange: with the ranks that hold the other parts of every matrix (DecoderPart), which are called with
  // the same rows; null: the store has all of each. Where it scatters rows, x, y and their gradients have
  // this rank's [T', H] of them. ep: of the ranks that have the other experts, each with micro-batches of its
  // own; null: the store has all of them. context: of the ranks that have the other rows of the micro-batches
  // (balanced_rows); null: none.
  Stage(const ModelConfig& config, const ParameterStore& store, at::Device device, at::ScalarType dtype,
        const StageRange& range, ParameterAccess* access, const SequenceGroup* sequence,
        const Exchange* exchange = nullptr, Communicator* ep = nullptr,
        const ContextGroup* context = nullptr);

  const StageRange& range() const { return range_; }

  at::Tensor forward(const PackedTokens* packed, const at::Tensor& x, StagePass& pass);
  void enter_head_backward(StagePass& pass);
  // Adds to the gradient of every parameter that is trained.
  at::Tensor backward(const at::Tensor& dy, StagePass& pass);
  void end(StagePass& pass);
  // The leases and collectives of a pass without its computation: on a rank that has no micro-batch while
  // others have one. With rows > 0 also the exchanges of the sequence group over so many rows, on meta
  // tensors, for simulation.
  void simulated_forward(int64_t rows, StagePass& pass);
  void simulated_backward(int64_t rows, StagePass& pass);
  // Without adapters a forward is that of the base model.
  void enable_adapters(bool enabled);
  // From here on.
  void watch_routers(const RouterOrders& orders) { orders_ = orders; }

  // [V, H] (LM, with an exchange this rank's rows of the vocabulary) or [1, H] (value); gradients are
  // undefined where the head is not trained. Of a stage with a head.
  const at::Tensor& head_weight() const { return head_weight_; }
  const at::Tensor& head_weight_grad() const { return head_weight_grad_; }
  const at::Tensor& head_bias() const { return head_bias_; }
  const at::Tensor& head_bias_grad() const { return head_bias_grad_; }
  const Norm& final_norm() const { return final_norm_; }
  // The most rows of the vocabulary that any rank holds.
  int64_t vocabulary_part() const {
    return exchange_ != nullptr ? (config_.vocab_size + exchange_->size() - 1) / exchange_->size()
                                : config_.vocab_size;
  }
  // Layer range().first + i of the decoder.
  const std::vector<Block>& blocks() const { return blocks_; }
  // The first layer that predicts further tokens; null: the stage has none.
  const PredictionLayer* prediction() const { return predictions_.empty() ? nullptr : &predictions_.front(); }

  // tokens [n], positions [n] -> x [n, H], or of the rows that this rank has by `exchange`, which is that of
  // the stage or the same ranks with whole rows. Of a stage with embeddings, or prediction layers.
  void embed(const at::Tensor& tokens, const at::Tensor& positions, const Exchange* exchange,
             const char* phase, const at::Tensor& x) const;
  // What the layers get of these tokens beside x, as embed() has made it: [n, L*P], or of this rank's rows;
  // undefined: nothing. saved may be null. Of a stage with embeddings.
  at::Tensor layer_inputs(const at::Tensor& tokens, const at::Tensor& x, const Exchange* exchange,
                          const char* phase, int64_t row_tile, const Linear::Packed& packed,
                          PerLayerSaved* saved) const;
  // Null: the layers get nothing.
  const PerLayerEmbeddings* per_layer() const { return per_layer_ ? &*per_layer_ : nullptr; }
  // Of a stage with embeddings of a model that reads images; null: of any other.
  VisionTower* vision() { return vision_ ? &*vision_ : nullptr; }
  RowContext row_context(const at::Tensor& positions, const ops::Segments& segments, int64_t row_tile);
  // Tables for positions below this.
  const RotaryTables& rotary(int64_t positions);

 private:
  // The one place that orders the leases of a pass: calls `embed`, `block` for each layer and `head`, each
  // while its parameters are gathered.
  template <typename Embed, typename BlockWork, typename Head>
  void in_forward_order(StagePass& pass, Embed&& embed, BlockWork&& block, Head&& head);
  template <typename Head, typename BlockWork, typename Embed>
  void in_backward_order(StagePass& pass, Head&& head, BlockWork&& block, Embed&& embed);
  Lease lease(const std::vector<size_t>& groups, const char* phase,
              Lease::Of of = Lease::Of::kParameters) const {
    return {access_, groups, phase, of};
  }
  void prefetch_block(size_t layer, const char* phase) const;
  at::Tensor hidden_states(const PackedTokens& packed, const at::Tensor& x, StagePass& pass) const;
  // further: what else the gradient by the last block's output has; undefined: nothing.
  at::Tensor hidden_states_backward(const at::Tensor& d_hidden, const at::Tensor& further,
                                    const StagePass& pass) const;
  // Rows of a table of words, this rank's part of which is `table`: to out [n, C], or those of this rank.
  void look_up(const at::Tensor& table, const at::Tensor& tokens, const Exchange* exchange,
               const CollectiveLabel& label, const at::Tensor& out) const;
  // Of `tokens`, of which the first real_rows belong to a sequence, from the gradient by their embeddings.
  void accumulate_embeddings(const at::Tensor& dx, const at::Tensor& tokens, int64_t real_rows) const;
  // The same for any table, the rows of which were multiplied by `scale`.
  void accumulate_words(const at::Tensor& gradient, const at::Tensor& d, const at::Tensor& tokens,
                        int64_t real_rows, double scale, const CollectiveLabel& label) const;
  // Through what the layers get of tokens: adds to dx.
  void per_layer_backward(const at::Tensor& dx, const StagePass& pass) const;
  void accumulate_positions(const at::Tensor& dx, const StagePass& pass) const;
  // Which of `tokens` this rank holds the embeddings of: places in `tokens` (undefined: all), rows of embed_.
  struct HeldTokens {
    at::Tensor places, rows;
  };
  HeldTokens held(const at::Tensor& tokens) const;
  at::TensorOptions row_options() const { return at::TensorOptions().dtype(dtype_).device(device_); }
  // What the rows have of images, in a stage with a tower, and the tables by which they turn then
  // (stage_images.cc).
  void read_images(const PackedTokens& packed, RowContext& rows, StagePass& pass);
  void compute_images(const PackedTokens& packed, StagePass& pass);
  // Of the ranks that share the rows of micro-batches, each of which computes some of their images; null:
  // this one computes all.
  Communicator* image_ranks() const;
  // Features of this rank's images -> of all places (ImageParts).
  ImageFeatures gather_features(const ImageFeatures& own, const ImageParts& parts) const;
  // Of the gradient d by this rank's rows of a layer's output, or of the embeddings: that by the features at
  // all places, zero where the rows are of ranks that have other parts of the micro-batch.
  at::Tensor image_gradient(const at::Tensor& d, const StagePass& pass) const;
  // These of all ranks -> the gradient by the features of this rank's images; undefined where it has none.
  ImageFeatures sum_gradients(const ImageFeatures& all, const ImageParts& parts) const;
  // Takes what belongs to images out of the gradient dx by the embeddings, and through the tower.
  void images_backward(const at::Tensor& dx, StagePass& pass);
  // The layers that predict further tokens, forward and backward (stage_predictions.cc): the gradient by
  // pass.outputs, undefined where they are detached. And without rows.
  at::Tensor predictions_backward(StagePass& pass);
  void predictions_without_rows();
  RouterWork router_work(const PackedTokens& packed) const;
  void attend_without_values(size_t layer, int64_t rows, RowContext& context, BlockSaved& saved) const;

  ModelConfig config_;
  at::Device device_;
  at::ScalarType dtype_;
  StageRange range_;
  double embedding_scale_;  // rounded to the compute dtype, as Hugging Face does
  at::Tensor embed_, embed_grad_, pos_embed_, pos_embed_grad_;
  std::vector<Block> blocks_;
  Norm final_norm_;
  at::Tensor head_weight_, head_weight_grad_, head_bias_, head_bias_grad_;
  RotaryTables rotary_;
  std::optional<VisionTower> vision_;
  std::optional<PerLayerEmbeddings> per_layer_;
  ParameterAccess* access_;
  const SequenceGroup* sequence_;
  const Exchange* exchange_;
  Communicator* ep_;
  RouterOrders orders_;
  const ContextGroup* context_;
  int64_t first_token_ = 0;                        // of the embeddings held here
  std::vector<std::vector<size_t>> block_groups_;  // of the store, by block
  std::vector<size_t> embedding_groups_, per_layer_groups_, head_groups_;
  bool embeds_again_ = false;  // a tied head, or a prediction layer, uses the embeddings of this stage, too
  std::vector<PredictionLayer> predictions_;
  bool trains_predictions_ = false;
  std::vector<size_t> prediction_groups_;
};

}  // namespace troupe
