// The decoder as a generation sees it.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <numeric>
#include <vector>

#include "base/error.h"
#include "batch/images.h"
#include "model/decoding_form.h"
#include "model/model_config.h"
#include "model/vision_tower.h"

// The rows-local pieces that the rollout uses; the packed forward/backward of training live beside them.
// Everything here is inference: no gradient is recorded.
namespace troupe {

class LinearAttention;

// Layers by what they keep of a sequence: keys and values, of the first or of second heads
// (ModelConfig::second_heads), or a state.
struct MixerLayers {
  int64_t attention = 0, second = 0, linear = 0;
};
// Of these layers of a model; those that share keys keep nothing.
MixerLayers mixer_layers(const ModelConfig& config, const std::vector<int64_t>& layers);

class Decoder {
 public:
  virtual ~Decoder() = default;
  virtual const ModelConfig& config() const = 0;
  virtual at::Device device() const = 0;
  virtual at::ScalarType dtype() const = 0;  // compute dtype

  // ---- which layers ----
  // Those that this rank computes, ascending: in a pipeline not all. attention_inputs() and block_output()
  // are of these alone; all else is called on all ranks alike.
  virtual std::vector<int64_t> own_layers() const {
    std::vector<int64_t> all(static_cast<size_t>(config().num_layers));
    std::iota(all.begin(), all.end(), 0);
    return all;
  }
  // The most of each kind that any rank of the pipeline has. predicts: with the layer for further tokens.
  virtual MixerLayers most_layers(bool predicts) const {
    MixerLayers all = mixer_layers(config(), own_layers());
    if (predicts) ++all.attention;
    return all;
  }
  // Called before every layer of the decoder, whichever rank computes it: moves x [n, H] from the rank of the
  // layer before to that of this one, where they differ.
  virtual void enter_layer(int64_t layer, const at::Tensor& x) {}

  // ---- one step over rows, prompts and decodes alike: n rows, any sequences, any positions ----
  // x [n, H] in the compute dtype. Rows run through fixed-size GEMM tiles of this many rows, so
  // n must be a multiple of it for results that do not depend on n (pad with token 0, position 0).
  virtual int64_t decode_row_tile() const = 0;
  // Before the first and after the last step of a generation, during which no weight changes: room for a form
  // of the weights that serves all steps. decode_row_tile() may differ in between. kInvalidArgument for
  // quantised mixtures of experts.
  virtual void begin_decoding(const DecodingForm& form = {}) {}
  virtual void end_decoding() {}
  // Before a step whose rows turn by positions below `positions`. rows [3, n] int32 on the CPU: the times,
  // rows and columns that they turn by (batch/images.h), in place of the positions that attention_inputs() is
  // given; undefined: those.
  virtual void begin_step(int64_t positions, const at::Tensor& rows = {}) {}
  // From here on a step's rows are these alone: index [m] int64 on the device, of those so far. The layers
  // behind this share their keys with layers before it.
  virtual void keep_rows(const at::Tensor& index) {}
  // Of a model that reads images; undefined on a rank whose layers they do not enter.
  virtual ImageFeatures image_features(const std::vector<Image>& images) {
    fail(ErrorCode::kInternal, "[rollout] this decoder reads no images");
  }
  virtual void embed(const at::Tensor& tokens, const at::Tensor& positions, const at::Tensor& x) = 0;
  // What the layers get of these tokens beside x as embed() has made it (model/per_layer_embeddings.h), a row
  // for each of x; undefined: nothing.
  virtual at::Tensor layer_inputs(const at::Tensor& tokens, const at::Tensor& x) { return {}; }
  // norm, QKV projection, q/k norm, RoPE: qkv [n, (Q+2K)*D], heads laid out q, k, v, then gates where the
  // model has them (ModelConfig::mixer_inputs); over latents [n, (Q+1)*D], q and k; in a layer of
  // linear attention what that takes.
  virtual void attention_inputs(int64_t layer, const at::Tensor& x, const at::Tensor& positions,
                                const at::Tensor& qkv) = 0;
  // What the attention of a layer takes beside them: the sinks of its heads [Q], undefined where it has none.
  virtual at::Tensor attention_sinks(int64_t layer) const { return {}; }
  // What a layer has in the place of attention; null: it has attention.
  virtual const LinearAttention* linear_attention(int64_t layer) const { return nullptr; }
  // attn [n, Q*D] times the sigmoid of its gates in qkv, as attention_inputs() wrote it; without gates attn
  // itself.
  virtual at::Tensor gate_heads(int64_t layer, const at::Tensor& attn, const at::Tensor& qkv) const {
    return attn;
  }
  // out = x + Wo attn, then the MLP (or MoE) half of the block. attn [n, Q*D], gated; inputs: the rows of
  // layer_inputs(); out [n, H] may alias x.
  virtual void block_output(int64_t layer, const at::Tensor& x, const at::Tensor& attn,
                            const at::Tensor& inputs, const at::Tensor& out) = 0;
  // From here on block_output() writes which experts a row goes to: rows [n, width] (batch/routed_experts.h),
  // of its own layers alone; undefined: nowhere.
  virtual void record_experts(const at::Tensor& rows) {}
  // The vocabulary by the ranks that share it, [ranks + 1] offsets: training sums each one's part by itself.
  virtual std::vector<int64_t> vocabulary_parts() const { return {0, config().vocab_size}; }
  // Final norm and LM head: logits [n, V] float32, before the final soft cap and any temperature.
  virtual void logits(const at::Tensor& x, const at::Tensor& logits) = 0;

  // ---- the first layer that predicts further tokens (ModelConfig::prediction), layer num_layers ----
  // Whether this rank computes it: in a pipeline that of the last stage does. attention_inputs(),
  // block_output() and prediction_inputs() are then of it, too.
  virtual bool predicts() const { return false; }
  // What the layer's block takes, x [n, H], of tokens [n] int32 at positions [n], each behind the row of
  // `before` [n, H]: that is the output of the last block, or with `again` that of this layer's own block,
  // from which it predicts one token further.
  virtual void prediction_inputs(const at::Tensor& tokens, const at::Tensor& positions,
                                 const at::Tensor& before, bool again, const at::Tensor& x) {
    fail(ErrorCode::kInternal, "[rollout] this decoder has no layer for further tokens");
  }
  // As logits(), of the output of its block.
  virtual void prediction_logits(const at::Tensor& y, const at::Tensor& logits) {
    fail(ErrorCode::kInternal, "[rollout] this decoder has no layer for further tokens");
  }
};

}  // namespace troupe
