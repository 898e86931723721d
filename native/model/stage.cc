// Passes through the layers of a stage, and the order in which they ask for their parameters.
#include "model/stage.h"

#include <ATen/ATen.h>

#include "base/parallel.h"
#include "base/range.h"
#include "base/simulated.h"
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

DecoderPart part_of(const Exchange* exchange, const Communicator* ep) {
  DecoderPart part;
  if (exchange != nullptr) part = {exchange->size(), exchange->rank(), exchange->scattered()};
  if (ep != nullptr) {
    part.ep = ep->size();
    part.ep_rank = ep->rank();
  }
  return part;
}

Stage::Stage(const ModelConfig& config, const ParameterStore& store, at::Device device, at::ScalarType dtype,
             const StageRange& range, ParameterAccess* access, const SequenceGroup* sequence,
             const Exchange* exchange, Communicator* ep, const ContextGroup* context)
    : config_(config),
      device_(device),
      dtype_(dtype),
      range_(range),
      embedding_scale_(at::scalar_tensor(config.embedding_scale, at::kDouble).to(dtype).item<double>()),
      access_(access),
      sequence_(sequence),
      exchange_(exchange),
      ep_(ep),
      context_(context) {
  const DecoderPart part = part_of(exchange, ep);
  const std::vector<int64_t> words = vocabulary_offsets(config.vocab_size, part.tp);
  first_token_ = words[static_cast<size_t>(part.tp_rank)];
  const Parameter& embed = store.at("embed.weight");
  const Parameter* head = store.find("head.weight");
  if (range.embedding && config.vision) vision_.emplace(config, store, device, dtype);
  const bool predicts = range.head && config.prediction.has_value();
  if (range.embedding || predicts) {
    embed_ = embed.compute;
    embed_grad_ = embed.grad;
  }
  if (range.embedding) {
    if (config.positions == PositionKind::kLearned) {
      pos_embed_ = store.at("pos_embed.weight").compute;
      pos_embed_grad_ = store.at("pos_embed.weight").grad;
    }
    embedding_groups_ = {embed.group};
    if (config.per_layer_size > 0) {
      per_layer_.emplace(store, config, dtype);
      per_layer_groups_ = {per_layer_->table_group(), per_layer_->product_group()};
    }
  }
  blocks_.reserve(static_cast<size_t>(range.layers()));
  for (int64_t layer = range.first; layer < range.last; ++layer) {
    blocks_.emplace_back(store, config, layer, part);
    block_groups_.push_back(store.groups_of_layer(layer));
  }
  if (!range.head) return;
  final_norm_ = Norm(store, config, "norm");
  head_weight_ = head != nullptr ? head->compute : embed.compute;
  head_weight_grad_ = head != nullptr ? head->grad : embed.grad;
  if (const Parameter* bias = store.find("head.bias")) {
    head_bias_ = bias->compute;
    head_bias_grad_ = bias->grad;
  }
  if (exchange != nullptr && config.head == HeadKind::kLm) {
    // Parts of the vocabulary are padded to one size; the head leaves the padding out.
    const int64_t rows = words[static_cast<size_t>(part.tp_rank + 1)] - first_token_;
    head_weight_ = head_weight_.narrow(0, 0, rows);
    if (head_weight_grad_.defined()) head_weight_grad_ = head_weight_grad_.narrow(0, 0, rows);
  }
  head_groups_ = {store.at("norm.weight").group};
  if (head != nullptr && head->group != head_groups_.back()) head_groups_.push_back(head->group);
  const bool again = head == nullptr || predicts;
  if (again) head_groups_.insert(head_groups_.begin(), embed.group);
  embeds_again_ = again && range.embedding;
  trains_predictions_ = config.trains_predictions();
  for (int64_t layer = config.num_layers; layer < config.num_layers + config.prediction_layers(); ++layer) {
    predictions_.emplace_back(store, config, layer, part);
    for (const size_t group : store.groups_of_layer(layer)) prediction_groups_.push_back(group);
  }
}

void Stage::prefetch_block(size_t layer, const char* phase) const {
  if (access_ == nullptr) return;
  for (const size_t group : block_groups_[layer]) access_->prefetch(group, phase);
}

void Stage::enable_adapters(bool enabled) {
  for (Block& block : blocks_) block.enable_adapters(enabled);
}

RouterWork Stage::router_work(const PackedTokens& packed) const {
  RouterWork work;
  if (orders_.load != nullptr || orders_.balance.defined() || orders_.z_loss != nullptr) {
    work.load = orders_.load;
    work.tokens = upload(packed.sequences, device_);
    work.balance = orders_.balance;
    work.z_loss = orders_.z_loss;
  }
  if (packed.routed_experts.defined())
    work.given = upload(packed.routed_experts, device_).view(routing_shape(config_).dtype());
  if (orders_.record != nullptr) work.record = orders_.record->rows(packed, device_);
  return work;
}

template <typename Embed, typename BlockWork, typename Head>
void Stage::in_forward_order(StagePass& pass, Embed&& embed, BlockWork&& block, Head&& head) {
  if (range_.embedding) {
    Lease embeddings = lease(embedding_groups_, "forward"), per_layer = lease(per_layer_groups_, "forward");
    prefetch_block(0, "forward");
    embed();
    per_layer.end();
    if (embeds_again_) {
      pass.embeddings = std::move(embeddings);
    } else {
      embeddings.end();
    }
  }
  for (size_t layer = 0; layer < blocks_.size(); ++layer) {
    Lease own = lease(block_groups_[layer], "forward");
    if (layer + 1 < blocks_.size()) prefetch_block(layer + 1, "forward");
    block(layer);
    if (pass.training && layer + 1 == blocks_.size()) {
      pass.last_block = std::move(own);
    } else {
      own.end();
    }
  }
  if (!range_.head) return;
  pass.head = lease(head_groups_, "forward");
  head();
}

void Stage::enter_head_backward(StagePass& pass) {
  pass.head_gradient = lease(head_groups_, "backward", Lease::Of::kGradients);
  // With tied weights the head adds to this gradient, and at the end of the pass the embeddings do.
  if (embeds_again_) pass.embedding_gradient = lease(embedding_groups_, "backward", Lease::Of::kGradients);
}

template <typename Head, typename BlockWork, typename Embed>
void Stage::in_backward_order(StagePass& pass, Head&& head, BlockWork&& block, Embed&& embed) {
  if (range_.head) {
    head();
    pass.head_gradient.end();
    pass.head.end();
  }
  for (size_t layer = blocks_.size(); layer-- > 0;) {
    Lease own = lease(block_groups_[layer], "backward", Lease::Of::kBoth);
    if (layer + 1 == blocks_.size()) pass.last_block.end();
    if (layer > 0) prefetch_block(layer - 1, "backward");
    block(layer);
    own.end();
  }
  if (range_.embedding) {
    if (!embeds_again_) pass.embedding_gradient = lease(embedding_groups_, "backward", Lease::Of::kGradients);
    Lease table, product;  // of per-layer embeddings
    if (per_layer_ && per_layer_->trained()) {
      table = lease({per_layer_->table_group()}, "backward", Lease::Of::kGradients);
      product = lease({per_layer_->product_group()}, "backward", Lease::Of::kBoth);
    }
    embed();
    product.end();
    table.end();
    pass.embedding_gradient.end();
    pass.embeddings.end();
  }
  if (access_ != nullptr) access_->settle_gradients();
}

at::Tensor Stage::forward(const PackedTokens* packed, const at::Tensor& x, StagePass& pass) {
  const auto experts = [&](int64_t own) {
    return ep_ != nullptr ? ExpertRows::of(*ep_, own, {"forward", "rows"}) : ExpertRows();
  };
  if (packed == nullptr) {
    if (vision_) vision_->forward({}, nullptr, false, "forward", access_);
    pass.rows.experts = experts(0);
    pass.rows.routers.given = orders_.no_choices;
    simulated_forward(0, pass);
    return {};
  }
  RowContext rows = row_context(packed->positions, packed->segments, kRowTile);
  rows.sequence = sequence_;
  rows.exchange = exchange_;
  if (context_ != nullptr) {
    rows.context = context_;
    rows.places = upload(packed->places, device_);
  }
  const int64_t total = packed->tokens.size(0);
  if (config_.vision) read_images(*packed, rows, pass);
  rows.experts = experts(total);
  rows.routers = router_work(*packed);
  at::Tensor y = x;
  if (pass.training) {
    pass.blocks.resize(blocks_.size());
    pass.rows = rows;
    // A block that is recomputed must not count and record its choices of experts a second time.
    pass.rows.routers.load = nullptr;
    pass.rows.routers.record.reset();
    pass.real_rows = packed->real_rows;
    pass.total_rows = total;
  }
  in_forward_order(
      pass,
      [&] {
        const Range range("embedding");
        const at::Tensor tokens = upload(packed->tokens, device_);
        const int64_t own = exchange_ != nullptr ? exchange_->own_rows(total) : total;
        y = at::empty({own, config_.hidden_size}, at::TensorOptions().dtype(dtype_).device(device_));
        embed(tokens, rows.positions, exchange_, "forward", y);
        const bool trained = pass.training && per_layer_ && per_layer_->trained();
        rows.layer_inputs = layer_inputs(tokens, y, exchange_, "forward", kRowTile,
                                         per_layer_ ? per_layer_->pack() : Linear::Packed(),
                                         trained ? &pass.per_layer : nullptr);
        pass.images.place(y);
        if (!pass.training) return;
        pass.tokens = tokens;
        pass.rows.layer_inputs = rows.layer_inputs;
        if (trained) pass.rows.layer_input_gradient = at::empty_like(rows.layer_inputs);
      },
      [&](size_t layer) {
        const Range range("layer", range_.first + static_cast<int64_t>(layer));
        BlockSaved* saved = pass.training ? &pass.blocks[layer] : nullptr;
        if (pass.checkpointing) pass.inputs.push(y);
        y = blocks_[layer].forward(y, rows, pass.checkpointing ? nullptr : saved);
        pass.images.add(range_.first + static_cast<int64_t>(layer), y);
      },
      [&] {
        if (exchange_ != nullptr) y = exchange_->gather(y, {"forward", "outputs"});
        if (pass.training && trains_predictions_) pass.outputs = y;
        y = hidden_states(*packed, y, pass);
      });
  if (orders_.record != nullptr) orders_.record->keep(*packed, rows.routers.record);
  return y;
}

at::Tensor Stage::hidden_states(const PackedTokens& packed, const at::Tensor& x, StagePass& pass) const {
  const Range range("final_norm");
  const at::Tensor predict_rows = upload(packed.predict_rows, device_);
  const int64_t predictions = predict_rows.size(0);
  const int64_t padded = round_up(predictions, kRowTile);
  at::Tensor inputs = at::zeros({padded, config_.hidden_size}, x.options());
  at::Tensor filled = inputs.narrow(0, 0, predictions);
  at::index_select_out(filled, x, 0, predict_rows);
  const NormStats stats = pass.training ? NormStats::make(final_norm_, padded) : NormStats{};
  const at::Tensor hidden = norm_rows(final_norm_, inputs, stats);
  if (pass.training) {
    pass.predict_rows = predict_rows;
    pass.predict_inputs = inputs;
    pass.final_norm = stats;
  }
  return hidden;
}

at::Tensor Stage::hidden_states_backward(const at::Tensor& d_hidden, const at::Tensor& further,
                                         const StagePass& pass) const {
  const Range range("final_norm backward");
  const int64_t predictions = pass.predict_rows.size(0);
  const at::Tensor d_inputs = norm_rows_backward(final_norm_, d_hidden, pass.predict_inputs, pass.final_norm);
  const at::Tensor dx = at::zeros({pass.total_rows, config_.hidden_size}, d_hidden.options());
  // Responses that share a prompt share its last row.
  ops::add_rows(dx, pass.predict_rows, d_inputs.narrow(0, 0, predictions));
  if (further.defined()) dx.add_(further);
  // All ranks of a tensor-parallel group have the gradient of all rows here; each keeps that of its own.
  return exchange_ != nullptr ? exchange_->own(dx) : dx;
}

at::Tensor Stage::backward(const at::Tensor& dy, StagePass& pass) {
  if (pass.total_rows == 0) {
    simulated_backward(0, pass);
    return {};
  }
  at::Tensor dx = dy;
  pass.rows.phase = "backward";
  pass.inputs.fetch();
  in_backward_order(
      pass,
      [&] {
        const at::Tensor further = trains_predictions_ ? predictions_backward(pass) : at::Tensor();
        dx = hidden_states_backward(dx, further, pass);
      },
      [&](size_t layer) {
        const Range range("layer", range_.first + static_cast<int64_t>(layer), " backward");
        BlockSaved& saved = pass.blocks[layer];
        if (pass.image_training && pass.images.adds(range_.first + static_cast<int64_t>(layer)))
          pass.image_gradients.deepstack.push_back(image_gradient(dx, pass));
        if (pass.checkpointing) blocks_[layer].recompute(pass.inputs.pop(), pass.rows, saved);
        dx = blocks_[layer].backward(dx, pass.rows, saved);
        saved = BlockSaved{};
      },
      [&] {
        if (vision_) images_backward(dx, pass);
        const Range range("embedding backward");
        if (per_layer_ && per_layer_->trained()) per_layer_backward(dx, pass);
        if (pos_embed_grad_.defined()) accumulate_positions(dx, pass);
        if (embed_grad_.defined()) accumulate_embeddings(dx, pass.tokens, pass.real_rows);
        dx.reset();
      });
  return dx;
}

void Stage::end(StagePass& pass) {
  pass.head.end();
  pass.embeddings.end();
}

void Stage::attend_without_values(size_t layer, int64_t rows, RowContext& context, BlockSaved& saved) const {
  if (rows == 0 || sequence_ == nullptr) return;
  context.sequence = sequence_;
  const auto options = at::TensorOptions().dtype(dtype_).device(device_);
  blocks_[layer].attend(at::empty({rows, blocks_[layer].qkv_size()}, options), context, &saved);
}

void Stage::simulated_forward(int64_t rows, StagePass& pass) {
  pass.blocks.resize(blocks_.size());
  pass.rows.row_tile = kRowTile;
  in_forward_order(
      pass, [] {},
      [&](size_t layer) {
        attend_without_values(layer, rows, pass.rows, pass.blocks[layer]);
        const bool kept = pass.training && !pass.checkpointing;
        blocks_[layer].experts_without_rows(row_options(), pass.rows, kept ? &pass.blocks[layer] : nullptr);
      },
      [] {});
}

void Stage::simulated_backward(int64_t rows, StagePass& pass) {
  pass.rows.phase = "backward";
  in_backward_order(
      pass, [&] { predictions_without_rows(); },
      [&](size_t layer) {
        BlockSaved& saved = pass.blocks[layer];
        if (pass.checkpointing) {
          attend_without_values(layer, rows, pass.rows, saved);
          blocks_[layer].experts_without_rows(row_options(), pass.rows, &saved);
        }
        blocks_[layer].experts_backward_without_rows(row_options(), pass.rows, saved);
        if (saved.attn.defined())
          blocks_[layer].attend_backward(at::empty_like(saved.attn), pass.rows, saved);
      },
      [&] {
        if (vision_ && vision_->trained()) vision_->backward({}, pass.vision, access_);
      });
}

const RotaryTables& Stage::rotary(int64_t positions) {
  if (config_.positions != PositionKind::kRope) return rotary_;
  const at::Tensor& known = rotary_.first.cos;
  if (known.defined() && known.size(0) >= positions) return rotary_;
  int64_t size = known.defined() ? known.size(0) : kFirstRotaryPositions;
  while (size < positions) size *= 2;
  const auto table = [&](const std::vector<double>& inv_freq, double factor) -> RotaryTable {
    if (inv_freq.empty()) return {};
    const at::Tensor angles = at::outer(at::arange(size, at::kDouble), at::tensor(inv_freq, at::kDouble));
    const auto stored = [&](const at::Tensor& values) {
      return (values * factor).to(at::kFloat).to(device_).contiguous();
    };
    return {stored(angles.cos()), stored(angles.sin())};
  };
  rotary_ = {table(config_.rope_inv_freq, config_.rope_attention_factor),
             table(config_.second_rope_inv_freq, config_.second_rope_attention_factor)};
  return rotary_;
}

RowContext Stage::row_context(const at::Tensor& positions, const ops::Segments& segments, int64_t row_tile) {
  RowContext rows{upload(positions, device_), segments, rotary(longest(segments)), row_tile};
  if (config_.shared_kv_layers > 0) rows.shared_keys = std::make_shared<SharedKeys>();
  return rows;
}

}  // namespace troupe
