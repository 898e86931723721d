// Forward and backward of one decoder layer.
#include "model/block.h"

#include <ATen/ATen.h>

#include "base/parallel.h"
#include "base/range.h"

namespace troupe {

namespace {

at::Tensor rows_of(const at::Tensor& t, int64_t begin, int64_t end) {
  return t.defined() ? t.narrow(0, begin, end - begin) : t;
}

}  // namespace

Block::Block(const ParameterStore& store, const ModelConfig& whole, int64_t layer, const DecoderPart& part)
    : layer_(layer),
      name_(whole.prefix + "layers." + std::to_string(layer) + " attention"),
      mlp_name_(whole.prefix + "layers." + std::to_string(layer) + " mlp"),
      second_rope_(whole.has_second_rope(layer)),
      takes_keys_(whole.shares_keys(layer)),
      gives_keys_(whole.gives_keys(layer)),
      residual_scale_(whole.residual_scale),
      has_mlp_(whole.has_mlp(layer)) {
  const ModelConfig config = own_heads(whole, part).at_layer(layer);
  attention_ = {config.num_heads,       config.num_kv_heads,      config.head_dim,
                config.attention_scale, config.attention_softcap, config.sliding_window(layer)};
  if (!part.whole()) attention_.shape_groups = whole.num_heads / whole.heads(layer).num_kv_heads;
  rotary_ = {config.num_heads,       takes_keys_ ? 0 : config.num_kv_heads,
             config.head_dim,        config.rotary_dim(layer),
             config.qk_norm,         config.norm_eps,
             config.norm_unit_offset};
  // The key turns as one more query does; behind it there is no value.
  if (config.latent)
    latent_rotary_ = {config.num_heads + 1, 0, config.latent->row_dim(), config.latent->rotary_dim};
  gated_heads_ = config.attention_gate && !config.is_linear_layer(layer);
  const std::string prefix = config.prefix + "layers." + std::to_string(layer) + ".";
  attention_.causal = config.causal;
  if (config.has_input_norms(layer)) {
    attn_norm_ = Norm(store, config, prefix + "attn_norm");
    if (has_mlp_) mlp_norm_ = Norm(store, config, prefix + "mlp_norm");
  }
  if (config.has_post_norms(layer)) {
    attn_post_norm_ = Norm(store, config, prefix + "attn_post_norm");
    mlp_post_norm_ = Norm(store, config, prefix + "mlp_post_norm");
  }
  if (config.is_linear_layer(layer)) {
    qkv_ = linear_attention_projection(store, config, prefix + linear_attention_name(*config.linear));
    linear_ = troupe::linear_attention(store, config, prefix);
    rotary_.qk_norm = false;
  } else {
    qkv_ = qkv_projection(store, config, prefix + "attn");
  }
  if (rotary_.qk_norm) {
    const Parameter& q = store.at(prefix + "attn.q_norm.weight");
    const Parameter* k = store.find(prefix + "attn.k_norm.weight");
    q_norm_ = q.compute;
    k_norm_ = k != nullptr ? k->compute : q.compute;  // that of no key
    q_norm_grad_ = q.grad;
    if (k != nullptr) k_norm_grad_ = k->grad;
  }
  if (config.value_norm && !takes_keys_)
    value_norm_ = std::make_unique<ValueNorm>(config.norm_eps, config.q_size() + config.kv_size(),
                                              config.num_kv_heads, config.head_dim, q_norm_.options());
  if (config.layer_scale) scale_ = store.at(prefix + "scale").compute;
  if (config.per_layer_size > 0) token_gate_ = std::make_unique<TokenGate>(store, config, prefix + "token");
  if (config.whole_qk_norm && !linear_)
    whole_qk_norm_ = std::make_unique<WholeQkNorm>(store, config, part, prefix + "attn");
  if (config.attention_sinks && !linear_) {
    const Parameter& sinks = store.at(prefix + "attn.sinks");
    attention_.sinks = sinks.compute;
    sinks_grad_ = sinks.grad;
  }
  value_dim_ = config.value_dim();
  attn_out_ = Linear(store, prefix + (linear_ ? linear_attention_name(*config.linear) : "attn") + ".out");
  if (!has_mlp_) return;
  if (config.is_moe_layer(layer)) {
    moe_ = std::make_unique<MoeMlp>(store, whole, layer, part);
    top_k_ = whole.moe->top_k;
    first_choice_ = whole.moe_layers_before(layer) * top_k_;
    if (!whole.moe->beside_mlp) return;
    mlp_out_norm_ = Norm(store, config, prefix + "mlp_out_norm");
    moe_out_norm_ = Norm(store, config, prefix + "moe.out_norm");
  }
  mlp_in_ = Linear(store, prefix + "mlp.in");
  mlp_out_ = Linear(store, prefix + "mlp.out");
  activation_ = MlpActivation(store, config, prefix + "mlp");
}

MoeMlp::Pass Block::expert_pass(const RowContext& rows) const {
  RouterWork router = rows.routers;
  router.layer = layer_;
  for (at::Tensor* choices : {&router.given, &router.record}) {
    if (choices->defined()) *choices = choices->narrow(1, first_choice_, top_k_);
  }
  return {rows.experts, {rows.phase, mlp_name_ + " experts"}, std::move(router)};
}

void Block::enable_adapters(bool enabled) {
  for (Linear* linear : {&attn_out_, &mlp_in_, &mlp_out_}) linear->adapters_enabled = enabled;
  qkv_->enable_adapters(enabled);
  if (moe_) moe_->enable_adapters(enabled);
  if (token_gate_) token_gate_->enable_adapters(enabled);
}

Block::OutputWeights Block::pack_output(bool last) const {
  OutputWeights weights;
  if (last || has_mlp_) weights.attn_out = attn_out_.pack_forward();
  if (has_dense()) {
    weights.mlp_in = mlp_in_.pack_forward();
    if (last) weights.mlp_out = mlp_out_.pack_forward();
  }
  if (token_gate_ && last) weights.token = token_gate_->pack();
  return weights;
}

Block::PackedWeights Block::pack(ops::Quantization quantization, bool latents) const {
  PackedWeights weights{qkv_->pack_forward(quantization, latents),
                        {attn_out_.pack_forward(quantization), {}, {}, {}, {}}};
  if (moe_) weights.output.experts = moe_->pack();
  if (has_dense()) {
    weights.output.mlp_in = mlp_in_.pack_forward(quantization);
    weights.output.mlp_out = mlp_out_.pack_forward(quantization);
  }
  if (token_gate_) weights.output.token = token_gate_->pack(quantization);
  return weights;
}

bool Block::packs() const {
  return qkv_->packs();
}

void Block::save_output(const at::Tensor& x, int64_t total, BlockSaved* saved) const {
  if (saved == nullptr) return;
  const int64_t own = x.size(0);
  saved->mlp_norm = NormStats::make(mlp_norm_, own);
  saved->attn_post_norm = NormStats::make(attn_post_norm_, own);
  saved->mlp_post_norm = NormStats::make(mlp_post_norm_, own);
  if (attn_post_norm_.defined()) {
    saved->attn_proj = at::empty_like(x);
    saved->mlp_proj = at::empty_like(x);
  }
  saved->mid = at::empty_like(x);
  if (has_dense()) saved->inner = at::empty({total, mlp_in_.out_features()}, x.options());
}

// Multiplied and added apart: a sum in one operation may round once or twice, by where in a tile a number is.
void Block::add_product(const Linear& linear, const at::Tensor& input, const at::Tensor& residual,
                        const at::Tensor& target, const Linear::Packed& packed) const {
  if (residual_scale_ == 1) return linear.forward_add(input, residual, target, packed);
  linear.forward(input, target, packed);
  target.mul_(residual_scale_).add_(residual);
}

void Block::scale_gradient(const at::Tensor& d_sum, const at::Tensor& to) const {
  to.copy_(d_sum);
  to.mul_(residual_scale_);
}

void Block::output_and_mlp(const at::Tensor& x, const at::Tensor& attn, const RowContext& rows,
                           const at::Tensor& out, BlockSaved* saved, const OutputWeights& weights) const {
  const Range range("output_and_mlp");
  residuals(x, attn, rows, out, saved, weights);
  if (out.defined()) finish(out, rows, saved, weights);
}

void Block::finish(const at::Tensor& out, const RowContext& rows, BlockSaved* saved,
                   const OutputWeights& weights) const {
  if (token_gate_)
    token_gate_->forward(out, own_inputs(rows.layer_inputs), rows.row_tile,
                         saved != nullptr ? &saved->token : nullptr, weights.token);
  if (scale_.defined()) at::Tensor(out).mul_(scale_);
}

at::Tensor Block::finish_backward(const at::Tensor& dy, const RowContext& rows,
                                  const BlockSaved& saved) const {
  if (!token_gate_ && !scale_.defined()) return dy;
  const at::Tensor d = dy.clone();
  if (scale_.defined()) at::Tensor(d).mul_(scale_);
  const at::Tensor& all = rows.layer_input_gradient;
  if (token_gate_)
    token_gate_->backward(d, all.defined() ? own_inputs(all) : all, rows.row_tile, saved.token);
  return d;
}

void Block::residuals(const at::Tensor& x, const at::Tensor& attn, const RowContext& rows,
                      const at::Tensor& out, BlockSaved* saved, const OutputWeights& weights) const {
  if (!has_mlp_) return output_alone(x, attn, rows, out, weights);
  if (mlp_out_norm_.defined()) return output_beside(x, attn, rows, out, saved, weights);
  if (rows.exchange != nullptr) return exchange_output_and_mlp(x, attn, rows, out, saved, weights);
  const int64_t total = x.size(0), row_tile = rows.row_tile;
  const bool post = attn_post_norm_.defined();
  BlockSaved unused;
  BlockSaved& s = saved != nullptr ? *saved : unused;
  save_output(x, total, saved);
  const at::Tensor moe_mid = moe_ && saved == nullptr ? at::empty_like(x) : s.mid;
  const at::Tensor moe_normed = moe_ ? at::empty_like(x) : at::Tensor();

  for_each_row_tile(
      total, row_tile, x.device(),
      [&](int64_t begin, int64_t end) {
        const auto tile = [&](const at::Tensor& kept, int64_t cols) {
          return kept.defined() ? rows_of(kept, begin, end) : at::empty({end - begin, cols}, x.options());
        };
        const int64_t hidden = x.size(1);
        const at::Tensor mid = tile(moe_ ? moe_mid : s.mid, hidden);
        if (post) {
          const at::Tensor proj = tile(s.attn_proj, hidden);
          attn_out_.forward(rows_of(attn, begin, end), proj, weights.attn_out);
          norm_forward(attn_post_norm_, proj, mid, s.attn_post_norm.rows(begin, end - begin));
          mid.add_(rows_of(x, begin, end));
        } else {
          add_product(attn_out_, rows_of(attn, begin, end), rows_of(x, begin, end), mid, weights.attn_out);
        }
        const at::Tensor room = mlp_norm_.defined() ? tile(moe_normed, hidden) : at::Tensor();
        const at::Tensor normed = normed_rows(mlp_norm_, mid, room, s.mlp_norm.rows(begin, end - begin));
        if (moe_) return;
        const at::Tensor inner = tile(s.inner, mlp_in_.out_features());
        mlp_in_.forward(normed, inner, weights.mlp_in);
        if (!out.defined() && !post) return;
        const at::Tensor activated = at::empty({end - begin, mlp_out_.weight.size(1)}, x.options());
        activation_.forward(inner, activated);
        const at::Tensor result = tile(out, hidden);
        if (post) {
          const at::Tensor proj = tile(s.mlp_proj, hidden);
          mlp_out_.forward(activated, proj, weights.mlp_out);
          norm_forward(mlp_post_norm_, proj, result, s.mlp_post_norm.rows(begin, end - begin));
          result.add_(mid);
        } else {
          add_product(mlp_out_, activated, mid, result, weights.mlp_out);
        }
      },
      !moe_ && weights.attn_out.packed());
  if (moe_) {
    const Range of_experts("experts");
    const at::Tensor result = out.defined() ? out : at::empty_like(x);
    const at::Tensor given = s.mlp_proj.defined() ? s.mlp_proj : post ? at::empty_like(x) : result;
    moe_->forward(moe_normed, given, row_tile, saved != nullptr ? &s.moe : nullptr, expert_pass(rows),
                  weights.experts);
    if (post) {
      for_each_row_tile(total, row_tile, x.device(), [&](int64_t begin, int64_t end) {
        norm_forward(mlp_post_norm_, rows_of(given, begin, end), rows_of(result, begin, end),
                     s.mlp_post_norm.rows(begin, end - begin));
      });
    }
    if (!out.defined()) return;
    if (residual_scale_ != 1) result.mul_(residual_scale_);
    result.add_(moe_mid);
  }
}

at::Tensor Block::forward(const at::Tensor& x, const RowContext& rows, BlockSaved* saved) const {
  at::Tensor qkv = at::empty({rows.positions.size(0), qkv_size()}, x.options());
  if (saved != nullptr) saved->x = x;
  attention_inputs(x, rows, qkv, saved, qkv_->pack_forward());
  const at::Tensor attn = attend(std::move(qkv), rows, saved);
  const at::Tensor out = at::empty_like(x);
  output_and_mlp(x, attn, rows, out, saved, pack_output());
  return out;
}

void Block::recompute(const at::Tensor& x, const RowContext& rows, BlockSaved& saved) const {
  const Range range("recompute");
  at::Tensor qkv = at::empty({rows.positions.size(0), qkv_size()}, x.options());
  saved.x = x;
  attention_inputs(x, rows, qkv, &saved, qkv_->pack_forward());
  const at::Tensor attn = attend(std::move(qkv), rows, &saved);
  // The token's gate keeps what the layer gives to it.
  const at::Tensor out = token_gate_ ? at::empty_like(x) : at::Tensor();
  output_and_mlp(x, attn, rows, out, &saved, pack_output(/*last=*/mlp_post_norm_.defined()));
}

at::Tensor Block::backward(const at::Tensor& dy, const RowContext& rows, BlockSaved& saved) const {
  const at::Tensor d_attn = at::empty_like(saved.attn);
  const at::Tensor d_out = finish_backward(dy, rows, saved);
  const at::Tensor dx = backward_mlp(d_out, rows, saved, d_attn);  // so far: by the attention residual
  const at::Tensor dqkv = attend_backward(d_attn, rows, saved);
  share_gradient(dqkv, rows);
  backward_attention_inputs(dqkv, rows, saved, dx);
  return dx;
}

void Block::share_gradient(const at::Tensor& dqkv, const RowContext& rows) const {
  if (!takes_keys_ && !gives_keys_) return;
  at::Tensor& sum = shared_of(rows.shared_keys->gradient);
  at::Tensor own = keys_of(dqkv);
  if (takes_keys_) {
    sum.defined() ? sum.add_(own) : sum = own.clone();
    return;
  }
  if (sum.defined()) own.add_(sum);
  sum.reset();
}

void Block::experts_without_rows(const at::TensorOptions& options, const RowContext& rows,
                                 BlockSaved* saved) const {
  if (!moe_ || !rows.experts.shared()) return;
  const at::Tensor none = at::empty({0, attn_norm_.weight.size(0)}, options);
  moe_->forward(none, none, rows.row_tile, saved != nullptr ? &saved->moe : nullptr, expert_pass(rows));
}

void Block::experts_backward_without_rows(const at::TensorOptions& options, const RowContext& rows,
                                          const BlockSaved& saved) const {
  if (!moe_ || !rows.experts.shared()) return;
  const at::Tensor none = at::empty({0, attn_norm_.weight.size(0)}, options);
  moe_->backward(none, none, saved.moe, none, expert_pass(rows));
}

at::Tensor Block::backward_mlp(const at::Tensor& dy, const RowContext& rows, BlockSaved& saved,
                               const at::Tensor& d_attn) const {
  const Range range("output_and_mlp backward");
  if (!has_mlp_) return backward_alone(dy, rows, saved, d_attn);
  if (mlp_out_norm_.defined()) return backward_beside(dy, rows, saved, d_attn);
  if (rows.exchange != nullptr) return exchange_backward_mlp(dy, rows, saved, d_attn);
  const int64_t total = dy.size(0);
  const int64_t hidden = dy.size(1);
  const bool post = attn_post_norm_.defined(), scaled = residual_scale_ != 1;
  const bool apart = post || scaled;  // gradients by what was added to a row are others than the row's
  const at::Tensor d_mid = at::empty_like(dy);
  const at::Tensor normed = mlp_norm_.defined() ? at::empty_like(dy) : saved.mid;
  const at::Tensor d_proj = apart ? at::empty_like(dy) : at::Tensor();  // by the attention projection
  const at::Tensor d_mlp_proj = apart ? at::empty_like(dy) : dy;        // by the MLP projection
  const at::Tensor d_inner = saved.inner;  // in place: the operation takes its own output as input
  const at::Tensor activated =
      moe_ ? at::Tensor() : at::empty({total, mlp_out_.weight.size(1)}, dy.options());
  const at::Tensor activation_sums = activation_.make_sums(total);
  const at::Tensor d_moe = moe_ ? at::empty_like(dy) : at::Tensor();
  const Linear::Packed attn_out_weight = attn_out_.pack_backward();
  const Linear::Packed mlp_in_weight = moe_ ? Linear::Packed() : mlp_in_.pack_backward();
  const Linear::Packed mlp_out_weight = moe_ ? Linear::Packed() : mlp_out_.pack_backward();
  NormGradient mlp_norm(mlp_norm_, total, rows.row_tile), attn_post(attn_post_norm_, total, rows.row_tile),
      mlp_post(mlp_post_norm_, total, rows.row_tile);

  if (moe_) {
    const Range of_experts("experts backward");
    for_each_row_tile(total, rows.row_tile, dy.device(), [&](int64_t begin, int64_t end) {
      norm_forward(mlp_norm_, rows_of(saved.mid, begin, end), rows_of(normed, begin, end), {});
      if (scaled) scale_gradient(rows_of(dy, begin, end), rows_of(d_mlp_proj, begin, end));
      if (!post) return;
      mlp_post.backward(begin, rows_of(dy, begin, end), rows_of(saved.mlp_proj, begin, end),
                        saved.mlp_post_norm.rows(begin, end - begin), rows_of(d_mlp_proj, begin, end), false);
    });
    moe_->backward(d_mlp_proj, normed, saved.moe, d_moe, expert_pass(rows));
  }
  for_each_row_tile(total, rows.row_tile, dy.device(), [&](int64_t begin, int64_t end) {
    const int64_t count = end - begin;
    const at::Tensor mid = rows_of(saved.mid, begin, end);
    const at::Tensor d_out = rows_of(dy, begin, end);
    at::Tensor d_normed;
    if (moe_) {
      d_normed = rows_of(d_moe, begin, end);
    } else {
      const at::Tensor d_result = rows_of(d_mlp_proj, begin, end);
      if (post) {
        mlp_post.backward(begin, d_out, rows_of(saved.mlp_proj, begin, end),
                          saved.mlp_post_norm.rows(begin, count), d_result, false);
      } else if (scaled) {
        scale_gradient(d_out, d_result);
      }
      const at::Tensor d_activated = at::empty({count, activated.size(1)}, dy.options());
      mlp_out_.backward_input(d_result, d_activated, mlp_out_weight);
      activation_.backward(d_activated, rows_of(saved.inner, begin, end), rows_of(d_inner, begin, end),
                           rows_of(activated, begin, end), rows_of(activation_sums, begin, end));
      d_normed = at::empty({count, hidden}, dy.options());
      mlp_in_.backward_input(rows_of(d_inner, begin, end), d_normed, mlp_in_weight);
      normed_rows(mlp_norm_, mid, rows_of(normed, begin, end), {});
    }
    const at::Tensor d_residual = rows_of(d_mid, begin, end);
    d_residual.copy_(d_out);
    mlp_norm.backward(begin, d_normed, mid, saved.mlp_norm.rows(begin, count), d_residual, true);
    const at::Tensor d_attn_proj = apart ? rows_of(d_proj, begin, end) : d_residual;
    if (post) {
      attn_post.backward(begin, d_residual, rows_of(saved.attn_proj, begin, end),
                         saved.attn_post_norm.rows(begin, count), d_attn_proj, false);
    } else if (scaled) {
      scale_gradient(d_residual, d_attn_proj);
    }
    attn_out_.backward_input(d_attn_proj, rows_of(d_attn, begin, end), attn_out_weight);
  });

  mlp_norm.finish();
  if (post) {
    attn_post.finish();
    mlp_post.finish();
  }
  if (!moe_) {
    mlp_out_.accumulate_grad(d_mlp_proj, activated);
    mlp_in_.accumulate_grad(d_inner, normed);
    activation_.finish(activation_sums);
  }
  attn_out_.accumulate_grad(apart ? d_proj : d_mid, saved.attn);
  return d_mid;
}

}  // namespace troupe
