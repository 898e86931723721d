// One decoder layer.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <memory>
#include <vector>

#include "kernels/attention.h"
#include "megatron/expert_rows.h"
#include "model/decoder_layout.h"
#include "model/layers.h"
#include "model/linear_attention.h"
#include "model/mlp_activation.h"
#include "model/moe.h"
#include "model/qkv_projection.h"
#include "model/token_gate.h"
#include "model/value_norm.h"
#include "model/whole_qk_norm.h"

namespace troupe {

class ContextGroup;
class Exchange;
class SequenceGroup;

// cos and sin of every position, [P, D/2] float32; grown on demand.
struct RotaryTable {
  at::Tensor cos = {}, sin = {};
};

// Those of a decoder's layers: of the most, and of the others where a family has others
// (second_rope_layers).
struct RotaryTables {
  RotaryTable first = {}, second = {};
};

// Keys and values that layers share with those behind them (ModelConfig::shared_kv_layers): of the layers
// that are not second_rope_layers, and of those. T rows.
struct SharedKeys {
  std::array<at::Tensor, 2> of;        // [T, 2K*D] after norms and rotary
  std::array<at::Tensor, 2> gradient;  // [T, 2K*D] summed over the layers that took them
};

// The rows of one micro-batch. T rows, of which the last may belong to no sequence.
struct RowContext {
  at::Tensor positions;  // [T] int32
  ops::Segments segments;
  RotaryTables rotary;
  int64_t row_tile;
  // Where a sequence group shares the micro-batch, T is the number of this rank's rows, and segments are
  // those of all S * T rows.
  const SequenceGroup* sequence = nullptr;
  // Where ranks share the block's matrices: T rows are all that attention and matrices see, and between them
  // a rank has those that the exchange says.
  const Exchange* exchange = nullptr;
  // Where ranks share the sequences by context: T rows are this rank's, the segments' share; places [T of
  // all] int64 as in ContextGroup.
  const ContextGroup* context = nullptr;
  at::Tensor places = {};
  // Where ranks share experts: how many rows each of them has.
  ExpertRows experts = {};
  // What is asked of the routers: `layer` is each block's own.
  RouterWork routers = {};
  // Of a rollout that keeps latents: what the block's queries and values go through; null: its attention is
  // over heads.
  const LatentHeads* latents = nullptr;
  // Null: no layer shares its keys.
  std::shared_ptr<SharedKeys> shared_keys = {};
  // [T', L*P] what the layers get of the rows' tokens (model/per_layer_embeddings.h), and the gradient by it,
  // which each layer writes its own part of; undefined: nothing.
  at::Tensor layer_inputs = {}, layer_input_gradient = {};
  const char* phase = "forward";
};

// What the backward pass of a block reads; with an exchange that scatters rows, x, mid and the inputs of the
// post norms have this rank's [T', H] of them. With gradient checkpointing x alone is kept until then, in an
// ActivationStack, and the rest is recomputed.
struct BlockSaved {
  at::Tensor x;  // [T, H] the block's input
  NormStats attn_norm, mlp_norm, attn_post_norm, mlp_post_norm;
  QkvSaved projection;
  at::Tensor qkv_pre, qk_rstd;  // before q/k norm; undefined without it
  at::Tensor v_rstd;            // [T, K] of the values' norm; undefined without it
  at::Tensor qk_squares;        // [2, T] of the norms over all heads, in the place of qk_rstd
  // What attention took (after rotary) and gave; [Q, T]. Of linear attention the same without lse: [T,
  // P], and what its backward pass takes.
  at::Tensor qkv, heads_attn, lse;
  at::Tensor gated;  // [T, 2*Q*D] gates and what they are multiplied with; undefined without them
  at::Tensor attn;  // [T, Q*V] its output for the rows at hand: heads_attn itself in a group of one, if V = D
  at::Tensor attn_proj, mlp_proj;  // inputs of the post norms; undefined without them
  at::Tensor mid;                  // [T, H] after the attention residual
  at::Tensor inner;                // [T, 2I or I] input of the activation; undefined for MoE
  MoeSaved moe;
  at::Tensor mlp_out, moe_out;  // of an MLP and experts side by side: inputs of the norms behind each
  NormStats mlp_out_norm, moe_out_norm;
  TokenGateSaved token;
};

// One decoder layer: attention and an MLP, or attention alone. A row passes through it in fixed-size tiles
// (norm, projections, rotary, activation and residuals of a tile run back to back while it is in the cache);
// only attention and the experts look beyond a tile.
class Block {
 public:
  // config: of the whole model; part: what the store has of it.
  Block(const ParameterStore& store, const ModelConfig& config, int64_t layer, const DecoderPart& part = {});

  // Pieces, also used one by one while decoding.
  void attention_inputs(const at::Tensor& x, const RowContext& rows, const at::Tensor& qkv, BlockSaved* saved,
                        const QkvProjection::Packed& qkv_weight = {}) const;
  struct OutputWeights {
    Linear::Packed attn_out, mlp_in, mlp_out;
    MoeMlp::Packed experts;
    TokenGate::Packed token;
  };
  // attn [n, Q*V]. out undefined: ends when all that `saved` keeps has been computed, for recompute().
  void output_and_mlp(const at::Tensor& x, const at::Tensor& attn, const RowContext& rows,
                      const at::Tensor& out, BlockSaved* saved, const OutputWeights& weights = {}) const;

  // What the pieces take, for many calls with the same weights.
  struct PackedWeights {
    QkvProjection::Packed qkv;
    OutputWeights output;
  };
  // last: also those of the block's last product, which recompute() leaves out.
  OutputWeights pack_output(bool last = true) const;
  // For a generation, experts included; latents: for one that keeps them.
  PackedWeights pack(ops::Quantization quantization, bool latents) const;
  // Of latent attention.
  LatentHeads latent_heads() const { return qkv_->latent_heads(); }
  // Whether the products of every row are then of packed operands, so that its bits depend on no other row.
  bool packs() const;

  // y [T, H]. saved may be null.
  at::Tensor forward(const at::Tensor& x, const RowContext& rows, BlockSaved* saved) const;
  // What a forward would leave in `saved`, without its output.
  void recompute(const at::Tensor& x, const RowContext& rows, BlockSaved& saved) const;
  // Gradient by the block's input, from dy [T, H]; adds to the gradients of what is trained. Consumes
  // `saved`: the gradient of `inner` takes its place.
  at::Tensor backward(const at::Tensor& dy, const RowContext& rows, BlockSaved& saved) const;

  // The collectives of a forward and of its backward on a rank without rows: ranks that share experts wait
  // for each other.
  void experts_without_rows(const at::TensorOptions& options, const RowContext& rows,
                            BlockSaved* saved) const;
  void experts_backward_without_rows(const at::TensorOptions& options, const RowContext& rows,
                                     const BlockSaved& saved) const;

  void enable_adapters(bool enabled);

  // Attention between the row-local halves, and the exchange around it where ranks share rows: the output [T,
  // Q*V] from qkv [T, (Q+2K)*D], and the gradient of qkv from that of the output. The second reads qkv,
  // heads_attn and lse of `saved`; the first writes them and attn where it is given. With gates, or in a
  // layer of linear attention, of what such a layer's projection gives [T, qkv_size()].
  at::Tensor attend(at::Tensor qkv, const RowContext& rows, BlockSaved* saved) const;
  at::Tensor attend_backward(const at::Tensor& d_attn, const RowContext& rows, const BlockSaved& saved) const;
  int64_t qkv_size() const {
    return linear_ ? linear_->columns() : head_columns() + (gated_heads_ ? query_columns() : 0);
  }
  // Null: the layer has attention.
  const LinearAttention* linear_attention() const { return linear_.get(); }
  // Multiplies attn [n, Q*D] by the sigmoid of the gates in qkv [n, (2Q+2K)*D], where there are such.
  // Returned: a product, or attn itself.
  at::Tensor gate_heads(const at::Tensor& attn, const at::Tensor& qkv, int64_t row_tile,
                        BlockSaved* saved) const;
  // Of this rank's heads; undefined: none.
  const at::Tensor& attention_sinks() const { return attention_.sinks; }
  // Of what attention gives [n, Q*D], what the output projection takes [n, Q*V]: all of it but the zeros
  // behind values that are narrower than keys; or of what attention over latents gives.
  at::Tensor values_of(const at::Tensor& attn, const LatentHeads* latents = nullptr) const;

 private:
  // The two passes of attend() in a layer of linear attention. Ranks that share rows each have all rows of
  // their own heads.
  at::Tensor attend_linearly(at::Tensor mixed, const RowContext& rows, BlockSaved* saved) const;
  at::Tensor attend_linearly_backward(const at::Tensor& d_attn, const RowContext& rows,
                                      const BlockSaved& saved) const;
  bool has_dense() const { return mlp_in_.weight.defined(); }
  int64_t query_columns() const { return attention_.num_heads * attention_.head_dim; }
  int64_t head_columns() const { return query_columns() + 2 * attention_.num_kv_heads * attention_.head_dim; }
  // What goes through norms and rotary, and the values: queries, keys and values without gates, or queries
  // where keys are those of another layer.
  at::Tensor heads_of(const at::Tensor& qkv) const {
    return qkv.defined() ? qkv.narrow(1, 0, takes_keys_ ? query_columns() : head_columns()) : qkv;
  }
  at::Tensor keys_of(const at::Tensor& qkv) const {
    return qkv.narrow(1, query_columns(), head_columns() - query_columns());
  }
  at::Tensor& shared_of(std::array<at::Tensor, 2>& kinds) const { return kinds[second_rope_ ? 1 : 0]; }
  // Gradients of gates and of what they multiplied, side by side, from that of the product.
  at::Tensor gate_heads_backward(const at::Tensor& d_attn, int64_t row_tile, const BlockSaved& saved) const;
  // Keys and values of all rows that attention reads: this rank's own, or with context parallelism those of
  // all its ranks.
  at::Tensor seen_keys(const ops::AttentionSpec& spec, const at::Tensor& qkv, const RowContext& rows) const;
  // Adds what the backward pass of attention finds of the sinks' gradient, where they are trained. spec: of
  // the heads that this rank attended with; d_output [n, Q*D].
  void accumulate_sinks(const ops::AttentionSpec& spec, const at::Tensor& d_output, const RowContext& rows,
                        const BlockSaved& saved) const;
  // [n, Q*V] as [n, Q*D]: what values_of() takes away.
  at::Tensor with_zeros(const at::Tensor& d_attn) const;
  at::Tensor backward_mlp(const at::Tensor& dy, const RowContext& rows, BlockSaved& saved,
                          const at::Tensor& d_attn) const;
  void backward_attention_inputs(const at::Tensor& dqkv, const RowContext& rows, const BlockSaved& saved,
                                 const at::Tensor& dx) const;
  void own_attention_inputs(const at::Tensor& x, const RowContext& rows, const at::Tensor& qkv,
                            BlockSaved* saved, const QkvProjection::Packed& qkv_weight) const;
  // The same with collectives between (block_exchange.cc).
  void exchange_attention_inputs(const at::Tensor& x, const RowContext& rows, const at::Tensor& qkv,
                                 BlockSaved* saved, const QkvProjection::Packed& qkv_weight) const;
  void exchange_output_and_mlp(const at::Tensor& x, const at::Tensor& attn, const RowContext& rows,
                               const at::Tensor& out, BlockSaved* saved, const OutputWeights& weights) const;
  at::Tensor exchange_backward_mlp(const at::Tensor& dy, const RowContext& rows, BlockSaved& saved,
                                   const at::Tensor& d_attn) const;
  void exchange_backward_attention_inputs(const at::Tensor& dqkv, const RowContext& rows,
                                          const BlockSaved& saved, const at::Tensor& dx) const;
  const RotaryTable& turns(const RowContext& rows) const {
    return second_rope_ ? rows.rotary.second : rows.rotary.first;
  }
  // Rows [begin, end) of qkv from those of the norm's output: their product, and what norms over all heads
  // are to know of it, in squares [2, T].
  void project_tile(const RowContext& rows, const at::Tensor& normed, int64_t begin, int64_t end,
                    const at::Tensor& qkv, const at::Tensor& squares, BlockSaved* saved,
                    const QkvProjection::Packed& qkv_weight) const;
  // And these rows through the norms of q and k and rotary.
  void turn_tile(const RowContext& rows, int64_t begin, int64_t end, const at::Tensor& qkv,
                 const at::Tensor& squares, BlockSaved* saved) const;
  // [2, T], for norms over all heads; undefined without them.
  at::Tensor qk_sums(const at::Tensor& qkv) const;
  // Rows [begin, end) of dqkv back through rotary and the norms of q and k, whose gradients go to qk_parts
  // [2, tiles, D]. Those over all heads get what they are to know of the rows, in products [2, T].
  void rotary_backward_tile(const at::Tensor& dqkv, const RowContext& rows, int64_t begin, int64_t end,
                            const BlockSaved& saved, const at::Tensor& qk_parts,
                            const at::Tensor& products) const;
  // And the rows of dqkv through these; qk_parts then is [tiles, (Q+K)*D].
  void whole_norm_backward_tile(const at::Tensor& dqkv, const RowContext& rows, int64_t begin, int64_t end,
                                const BlockSaved& saved, const at::Tensor& qk_parts,
                                const at::Tensor& products) const;
  at::Tensor make_qk_parts(const at::Tensor& dqkv, int64_t row_tile) const;
  void finish_qk_norms(const at::Tensor& qk_parts) const;
  // Of output_and_mlp() the two sums with what attention and the MLP add.
  void residuals(const at::Tensor& x, const at::Tensor& attn, const RowContext& rows, const at::Tensor& out,
                 BlockSaved* saved, const OutputWeights& weights) const;
  // What a layer does at its very end, in place on out [n, H]: its token's gate and its scale.
  void finish(const at::Tensor& out, const RowContext& rows, BlockSaved* saved,
              const OutputWeights& weights) const;
  // The gradient by the input of finish() from that by its output: dy itself where finish() does nothing.
  at::Tensor finish_backward(const at::Tensor& dy, const RowContext& rows, const BlockSaved& saved) const;
  // The layer's part of what all layers have side by side.
  at::Tensor own_inputs(const at::Tensor& of_layers) const {
    return of_layers.narrow(1, layer_ * token_gate_->size(), token_gate_->size());
  }
  // Where keys are shared: takes their gradient out of dqkv, or adds those of other layers to it.
  void share_gradient(const at::Tensor& dqkv, const RowContext& rows) const;
  // x + post norm(W_out attn), of a layer with post norms [T', H].
  at::Tensor attention_residual(const at::Tensor& x, const at::Tensor& attn, const RowContext& rows,
                                BlockSaved& saved, const OutputWeights& weights) const;
  at::Tensor attention_residual_backward(const at::Tensor& d_mid, const RowContext& rows,
                                         const BlockSaved& saved, const at::Tensor& d_attn) const;
  // An MLP and experts side by side (block_beside.cc).
  void output_beside(const at::Tensor& x, const at::Tensor& attn, const RowContext& rows,
                     const at::Tensor& out, BlockSaved* saved, const OutputWeights& weights) const;
  at::Tensor backward_beside(const at::Tensor& dy, const RowContext& rows, BlockSaved& saved,
                             const at::Tensor& d_attn) const;
  // The same two passes of a layer without an MLP (block_bare.cc).
  void output_alone(const at::Tensor& x, const at::Tensor& attn, const RowContext& rows,
                    const at::Tensor& out, const OutputWeights& weights) const;
  at::Tensor backward_alone(const at::Tensor& dy, const RowContext& rows, const BlockSaved& saved,
                            const at::Tensor& d_attn) const;
  // Makes what attention_inputs() and output_and_mlp() save; T rows of qkv.
  MoeMlp::Pass expert_pass(const RowContext& rows) const;
  // target = residual + residual_scale * linear(input)
  void add_product(const Linear& linear, const at::Tensor& input, const at::Tensor& residual,
                   const at::Tensor& target, const Linear::Packed& packed) const;
  // to = residual_scale * d_sum, the gradient by what was added to a row.
  void scale_gradient(const at::Tensor& d_sum, const at::Tensor& to) const;
  NormStats save_inputs(const at::Tensor& x, const at::Tensor& qkv, BlockSaved* saved) const;
  void save_output(const at::Tensor& x, int64_t total, BlockSaved* saved) const;

  int64_t layer_;
  std::string name_, mlp_name_;  // for collectives
  ops::AttentionSpec attention_;
  ops::RotarySpec rotary_, latent_rotary_;  // the second: over latents
  bool second_rope_, takes_keys_, gives_keys_;
  double residual_scale_;
  Norm attn_norm_, attn_post_norm_, mlp_norm_, mlp_post_norm_;
  at::Tensor q_norm_, k_norm_, q_norm_grad_, k_norm_grad_;
  std::unique_ptr<WholeQkNorm> whole_qk_norm_;
  std::unique_ptr<ValueNorm> value_norm_;
  at::Tensor sinks_grad_;
  std::unique_ptr<QkvProjection> qkv_;
  std::unique_ptr<LinearAttention> linear_;
  bool gated_heads_;
  int64_t value_dim_;
  bool has_mlp_;
  Linear attn_out_, mlp_in_, mlp_out_;
  MlpActivation activation_;
  std::unique_ptr<MoeMlp> moe_;
  Norm mlp_out_norm_, moe_out_norm_;  // behind an MLP and experts side by side
  std::unique_ptr<TokenGate> token_gate_;
  at::Tensor scale_;                      // [1] float32; undefined: none
  int64_t top_k_ = 0, first_choice_ = 0;  // of its choices among those of all layers
};

}  // namespace troupe
