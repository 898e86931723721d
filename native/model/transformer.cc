// Passes through all layers, and the order in which they ask for their parameters.
#include "model/transformer.h"

#include <ATen/ATen.h>

#include "base/error.h"
#include "base/parallel.h"
#include "base/upload.h"

namespace troupe {

namespace {

constexpr int64_t kFirstRotaryPositions = 2048;

int64_t longest(const ops::Segments& segments) {
  int64_t length = 0;
  for (const ops::Segment& segment : segments)
    length = std::max(length, ops::first_position(segments, segment) + segment.size());
  return length;
}

}  // namespace

Transformer::Transformer(const ModelConfig& config, const ParameterStore& store, at::Device device,
                         at::ScalarType dtype, ParameterAccess* access, const SequenceGroup* sequence)
    : config_(config),
      device_(device),
      dtype_(dtype),
      embedding_scale_(at::scalar_tensor(config.embedding_scale, at::kDouble).to(dtype).item<double>()),
      access_(access),
      sequence_(sequence) {
  const Parameter& embed = store.at("embed.weight");
  embed_ = embed.compute;
  embed_grad_ = embed.grad;
  if (config.positions == PositionKind::kLearned) {
    pos_embed_ = store.at("pos_embed.weight").compute;
    pos_embed_grad_ = store.at("pos_embed.weight").grad;
  }
  blocks_.reserve(static_cast<size_t>(config.num_layers));
  for (int64_t layer = 0; layer < config.num_layers; ++layer) blocks_.emplace_back(store, config, layer);
  final_norm_ = Norm(store, config, "norm");
  const Parameter* head = store.find("head.weight");
  head_weight_ = head != nullptr ? head->compute : embed_;
  head_weight_grad_ = head != nullptr ? head->grad : embed_grad_;
  if (const Parameter* bias = store.find("head.bias")) {
    head_bias_ = bias->compute;
    head_bias_grad_ = bias->grad;
  }
  for (int64_t layer = 0; layer < config.num_layers; ++layer) {
    block_groups_.push_back(store.groups_of_layer(layer));
  }
  embedding_groups_ = {embed.group};
  tied_ = head == nullptr;
  head_groups_ = {store.at("norm.weight").group};
  if (head != nullptr && head->group != head_groups_.back()) head_groups_.push_back(head->group);
  if (tied_) head_groups_.insert(head_groups_.begin(), embed.group);
}

void Transformer::acquire_groups(const std::vector<size_t>& groups, const char* phase) {
  if (access_ == nullptr) return;
  for (const size_t group : groups) access_->acquire(group, phase);
}

void Transformer::release_groups(const std::vector<size_t>& groups) {
  if (access_ == nullptr) return;
  for (const size_t group : groups) access_->release(group);
}

void Transformer::acquire_gradients(const std::vector<size_t>& groups) {
  if (access_ == nullptr) return;
  for (const size_t group : groups) access_->acquire_gradient(group);
}

void Transformer::release_gradients(const std::vector<size_t>& groups) {
  if (access_ == nullptr) return;
  for (const size_t group : groups) access_->release_gradient(group);
}

void Transformer::enter_embeddings() {
  acquire_groups(embedding_groups_, "forward");
}

void Transformer::leave_embeddings() {
  if (!tied_) release_groups(embedding_groups_);
}

void Transformer::enter_head(bool training) {
  acquire_groups(head_groups_, "forward");
  if (training) acquire_gradients(head_groups_);
}

void Transformer::leave_head(bool training) {
  if (training && !tied_) release_gradients(head_groups_);
  if (!training || !tied_) release_groups(head_groups_);
}

void Transformer::enter_embeddings_backward() {
  if (!tied_) acquire_gradients(embedding_groups_);
}

void Transformer::leave_embeddings_backward() {
  const std::vector<size_t>& groups = tied_ ? head_groups_ : embedding_groups_;
  release_gradients(groups);
  if (tied_) release_groups(groups);
}

void Transformer::acquire_block(size_t layer, const char* phase, bool gradient) {
  if (access_ == nullptr) return;
  for (const size_t group : block_groups_[layer]) {
    access_->acquire(group, phase);
    if (gradient) access_->acquire_gradient(group);
  }
}

void Transformer::release_block(size_t layer, bool gradient) {
  if (access_ == nullptr) return;
  for (const size_t group : block_groups_[layer]) {
    if (gradient) access_->release_gradient(group);
    access_->release(group);
  }
}

void Transformer::enter_forward(size_t layer) {
  acquire_block(layer, "forward", false);
  if (layer + 1 < blocks_.size()) prefetch_block(layer + 1, "forward");
}

void Transformer::leave_forward(size_t layer, bool training) {
  // The last block's backward comes next.
  if (!training || layer + 1 < blocks_.size()) release_block(layer, false);
}

void Transformer::enter_backward(size_t layer) {
  acquire_block(layer, "backward", true);
  if (layer > 0) prefetch_block(layer - 1, "backward");
}

void Transformer::prefetch_block(size_t layer, const char* phase) {
  if (access_ == nullptr) return;
  for (const size_t group : block_groups_[layer]) access_->prefetch(group, phase);
}

void Transformer::enable_adapters(bool enabled) {
  for (Block& block : blocks_) block.enable_adapters(enabled);
}

void Transformer::end_inference() {
  leave_head(false);
}

void Transformer::idle_pass(bool training) {
  simulated_pass(training, false, 0);
}

void Transformer::simulated_pass(bool training, bool checkpointing, int64_t rows) {
  RowContext context;
  context.sequence = sequence_;
  BlockSaved saved;
  const auto attend = [&](const Block& block) {
    if (rows == 0 || sequence_ == nullptr) return;
    block.attend(at::empty({rows, block.qkv_size()}, embed_.options()), context, &saved);
  };
  enter_embeddings();
  prefetch_block(0, "forward");
  leave_embeddings();
  for (size_t layer = 0; layer < blocks_.size(); ++layer) {
    enter_forward(layer);
    attend(blocks_[layer]);
    leave_forward(layer, training);
  }
  enter_head(training);
  leave_head(training);
  context.phase = "backward";
  for (size_t layer = training ? blocks_.size() : 0; layer-- > 0;) {
    enter_backward(layer);
    if (checkpointing) attend(blocks_[layer]);
    if (saved.attn.defined()) blocks_[layer].attend_backward(at::empty_like(saved.attn), context, saved);
    release_block(layer, true);
  }
  if (training) {
    enter_embeddings_backward();
    leave_embeddings_backward();
  }
}

void Transformer::ensure_rotary(int64_t positions) {
  if (config_.positions != PositionKind::kRope) return;
  if (rotary_.cos.defined() && rotary_.cos.size(0) >= positions) return;
  int64_t size = rotary_.cos.defined() ? rotary_.cos.size(0) : kFirstRotaryPositions;
  while (size < positions) size *= 2;
  const at::Tensor inv_freq = at::tensor(config_.rope_inv_freq, at::kDouble);
  const at::Tensor angles = at::outer(at::arange(size, at::kDouble), inv_freq);
  const auto table = [&](const at::Tensor& values) {
    return (values * config_.rope_attention_factor).to(at::kFloat).to(device_).contiguous();
  };
  rotary_ = {table(angles.cos()), table(angles.sin())};
}

RowContext Transformer::row_context(const at::Tensor& positions, const ops::Segments& segments,
                                    int64_t row_tile) {
  ensure_rotary(longest(segments));
  return {upload(positions, device_), segments, rotary_, row_tile};
}

void Transformer::embed(const at::Tensor& tokens, const at::Tensor& positions, const at::Tensor& x) {
  at::Tensor out = x;
  at::index_select_out(out, embed_, 0, tokens);
  if (embedding_scale_ != 1) out.mul_(embedding_scale_);
  if (pos_embed_.defined()) out.add_(pos_embed_.index_select(0, positions));
}

at::Tensor Transformer::forward(const PackedTokens& packed, ForwardState* state, bool checkpointing) {
  RowContext rows = row_context(packed.positions, packed.segments, kRowTile);
  rows.sequence = sequence_;
  const at::Tensor tokens = upload(packed.tokens, device_);
  const int64_t total = tokens.size(0);
  at::Tensor x = at::empty({total, config_.hidden_size}, at::TensorOptions().dtype(dtype_).device(device_));
  enter_embeddings();
  prefetch_block(0, "forward");
  embed(tokens, rows.positions, x);
  leave_embeddings();
  if (state != nullptr) state->blocks.resize(blocks_.size());
  for (size_t layer = 0; layer < blocks_.size(); ++layer) {
    enter_forward(layer);
    if (state != nullptr && checkpointing) {
      state->blocks[layer].x = x;
      x = blocks_[layer].forward(x, rows, nullptr);
    } else {
      x = blocks_[layer].forward(x, rows, state != nullptr ? &state->blocks[layer] : nullptr);
    }
    leave_forward(layer, state != nullptr);
  }

  enter_head(state != nullptr);
  const at::Tensor predict_rows = upload(packed.predict_rows, device_);
  const int64_t predictions = predict_rows.size(0);
  const int64_t padded = round_up(predictions, kRowTile);
  at::Tensor inputs = at::zeros({padded, config_.hidden_size}, x.options());
  at::Tensor filled = inputs.narrow(0, 0, predictions);
  at::index_select_out(filled, x, 0, predict_rows);
  const at::Tensor hidden = at::empty_like(inputs);
  const NormStats stats = state != nullptr ? NormStats::make(final_norm_, padded) : NormStats{};
  for_each_row_tile(padded, kRowTile, device_, [&](int64_t begin, int64_t end) {
    norm_forward(final_norm_, inputs.narrow(0, begin, end - begin), hidden.narrow(0, begin, end - begin),
                 stats.rows(begin, end - begin));
  });
  if (state != nullptr) {
    state->rows = rows;
    state->tokens = tokens;
    state->real_rows = std::clamp<int64_t>(ops::real_rows(packed.segments) - packed.first_row, 0, total);
    state->predict_rows = predict_rows;
    state->predict_inputs = inputs;
    state->final_norm = stats;
    state->total_rows = total;
  }
  return hidden;
}

void Transformer::backward(const at::Tensor& d_hidden, ForwardState& state) {
  const int64_t padded = d_hidden.size(0);
  const int64_t predictions = state.predict_rows.size(0);
  const at::Tensor d_inputs = at::empty_like(d_hidden);
  NormGradient final_norm(final_norm_, padded, kRowTile);
  for_each_row_tile(padded, kRowTile, device_, [&](int64_t begin, int64_t end) {
    const int64_t count = end - begin;
    final_norm.backward(begin, d_hidden.narrow(0, begin, count), state.predict_inputs.narrow(0, begin, count),
                        state.final_norm.rows(begin, count), d_inputs.narrow(0, begin, count), false);
  });
  final_norm.finish();
  leave_head(true);

  at::Tensor dx = at::zeros({state.total_rows, config_.hidden_size}, d_hidden.options());
  // Responses that share a prompt share its last row.
  ops::add_rows(dx, state.predict_rows, d_inputs.narrow(0, 0, predictions));
  state.rows.phase = "backward";
  for (size_t layer = blocks_.size(); layer-- > 0;) {
    BlockSaved& saved = state.blocks[layer];
    enter_backward(layer);
    if (!saved.qkv.defined()) blocks_[layer].recompute(saved.x, state.rows, saved);  // checkpointed
    dx = blocks_[layer].backward(dx, state.rows, saved);
    saved = BlockSaved{};
    release_block(layer, true);
  }
  enter_embeddings_backward();
  if (embed_grad_.defined()) accumulate_embeddings(dx, state);
  leave_embeddings_backward();
}

void Transformer::accumulate_embeddings(const at::Tensor& dx, const ForwardState& state) {
  const int64_t real_rows = state.real_rows;
  const at::Tensor used = dx.narrow(0, 0, real_rows).to(at::kFloat);
  if (pos_embed_grad_.defined())
    ops::add_rows(pos_embed_grad_, state.rows.positions.narrow(0, 0, real_rows), used);
  ops::add_rows(embed_grad_, state.tokens.narrow(0, 0, real_rows),
                embedding_scale_ == 1 ? used : used * embedding_scale_);
}

int64_t Transformer::decode_row_tile() const {
  return decode_weights_.empty() ? kDecodeRowTile : kDecodeRowMultiple;
}

void Transformer::begin_decoding() {
  const auto packs = [](const Block& block) { return block.packs(); };
  if (config_.head != HeadKind::kLm || !std::all_of(blocks_.begin(), blocks_.end(), packs)) return;
  // Kept only when memory has sufficed for all of it.
  std::vector<Block::PackedWeights> weights;
  for (const Block& block : blocks_) weights.push_back(block.pack());
  decode_head_ = ops::PackedMatrix::of(head_weight_, true);
  decode_weights_ = std::move(weights);
}

void Transformer::end_decoding() {
  decode_weights_.clear();
  decode_head_ = {};
}

void Transformer::attention_inputs(int64_t layer, const at::Tensor& x, const at::Tensor& positions,
                                   const at::Tensor& qkv) {
  if (config_.positions == PositionKind::kRope && layer == 0) {
    ensure_rotary(positions.max().item<int64_t>() + 1);
  }
  const RowContext rows{positions, {}, rotary_, kDecodeRowTile};
  const auto l = static_cast<size_t>(layer);
  blocks_[l].attention_inputs(x, rows, qkv, nullptr,
                              decode_weights_.empty() ? Linear::Packed{} : decode_weights_[l].qkv);
}

void Transformer::block_output(int64_t layer, const at::Tensor& x, const at::Tensor& attn,
                               const at::Tensor& out) {
  const auto l = static_cast<size_t>(layer);
  blocks_[l].output_and_mlp(x, attn, kDecodeRowTile, out, nullptr,
                            decode_weights_.empty() ? Block::OutputWeights{} : decode_weights_[l].output);
}

void Transformer::logits(const at::Tensor& x, const at::Tensor& logits) {
  require(config_.head == HeadKind::kLm, ErrorCode::kInvalidArgument,
          "[generate] expected a causal LM, got a value model");
  const at::Tensor hidden = at::empty_like(x);
  // The logits are float32 whatever the compute dtype, as in linear_log_prob.
  const at::Tensor weight = decode_head_.packed() ? at::Tensor() : head_weight_.to(at::kFloat);
  for_each_row_tile(
      x.size(0), kDecodeRowTile, device_,
      [&](int64_t begin, int64_t end) {
        const at::Tensor tile = hidden.narrow(0, begin, end - begin);
        norm_forward(final_norm_, x.narrow(0, begin, end - begin), tile, {});
        at::Tensor out = logits.narrow(0, begin, end - begin);
        if (decode_head_.packed()) {
          ops::gemm(tile, decode_head_, out, false);
        } else {
          at::mm_out(out, tile.to(at::kFloat), weight.t());
        }
        if (config_.final_softcap > 0) out.div_(config_.final_softcap).tanh_().mul_(config_.final_softcap);
      },
      decode_head_.packed());
}

at::Tensor Transformer::prefill(const PackedSequences& packed, const QkvSink& sink) {
  const int64_t total = packed.offsets.back();
  const int64_t padded = round_up(total, kRowTile);
  const auto pad = [&](const at::Tensor& values) {
    const at::Tensor out = at::zeros({padded}, values.options());
    out.narrow(0, 0, total).copy_(values);
    return out;
  };
  const RowContext rows =
      row_context(pad(packed.positions), ops::separate_segments(packed.offsets), kRowTile);
  at::Tensor x = at::empty({padded, config_.hidden_size}, at::TensorOptions().dtype(dtype_).device(device_));
  embed(pad(packed.tokens).to(device_), rows.positions, x);
  for (size_t layer = 0; layer < blocks_.size(); ++layer) {
    x = blocks_[layer].forward(x, rows, nullptr, [&](const at::Tensor& qkv) {
      sink(static_cast<int64_t>(layer), qkv.narrow(0, 0, total));
    });
  }
  return x.narrow(0, 0, total);
}

}  // namespace troupe
