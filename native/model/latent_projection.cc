// Latents, their norms, and heads out of them, with the backward pass.
#include "model/latent_projection.h"

#include <ATen/ATen.h>

// Legend: n rows of a tile, T of all; Q heads of D numbers, of which R turn and S do not in queries and keys,
// and V are there in values.
namespace troupe {

namespace {

at::Tensor rows_of(const at::Tensor& t, int64_t begin, int64_t count) {
  return t.narrow(0, begin, count);
}

// What is kept of a tile, or a buffer for as long as it takes.
at::Tensor room_for(const at::Tensor& kept, const at::Tensor& x, int64_t cols) {
  return kept.defined() ? kept : at::empty({x.size(0), cols}, x.options());
}

// [n, Q * X] as [n, Q, X]
at::Tensor by_head(const at::Tensor& rows, int64_t heads) {
  return rows.view({rows.size(0), heads, rows.size(1) / heads});
}

// Queries (0), keys (1) or values (2) of [n, 3 * Q * D], as [n, Q, D].
at::Tensor part_of(const at::Tensor& qkv, int64_t part, int64_t heads) {
  return by_head(qkv.narrow(1, part * (qkv.size(1) / 3), qkv.size(1) / 3), heads);
}

// [..., R] as [..., 2, R/2]: i and R/2 + i turn together, the order of rotary.
at::Tensor halves(const at::Tensor& turning) {
  return turning.unflatten(-1, {2, turning.size(-1) / 2});
}

}  // namespace

LatentProjection::LatentProjection(const ParameterStore& store, const ModelConfig& config,
                                   const std::string& name)
    : latent_(*config.latent),
      heads_(config.num_heads),
      head_dim_(config.head_dim),
      q_(store, name + ".q"),
      kv_a_(store, name + ".kv_a"),
      kv_b_(store, name + ".kv_b"),
      kv_norm_(store, config, name + ".kv_norm") {
  kv_norm_.spec.eps = latent_.norm_eps;
  if (latent_.query_rank == 0) return;
  q_a_ = Linear(store, name + ".q_a");
  q_norm_ = Norm(store, config, name + ".q_norm");
  q_norm_.spec.eps = latent_.norm_eps;
}

std::vector<const Linear*> LatentProjection::matrices() const {
  std::vector<const Linear*> all{&q_a_, &q_, &kv_a_, &kv_b_};
  if (!has_query_latent()) all.erase(all.begin());
  return all;
}

void LatentProjection::enable_adapters(bool enabled) {
  for (Linear* linear : {&q_a_, &q_, &kv_a_, &kv_b_}) linear->adapters_enabled = enabled;
}

at::Tensor LatentProjection::pairs(const at::Tensor& turning) const {
  if (!latent_.interleaved) return halves(turning);
  return turning.unflatten(-1, {turning.size(-1) / 2, 2}).transpose(-1, -2);
}

QkvSaved LatentProjection::make_saved(int64_t rows, const at::TensorOptions& options) const {
  QkvSaved saved;
  saved.kv_latent = at::empty({rows, kv_a_.out_features()}, options);
  saved.kv_norm = NormStats::make(kv_norm_, rows);
  if (!has_query_latent()) return saved;
  saved.q_latent = at::empty({rows, q_a_.out_features()}, options);
  saved.q_norm = NormStats::make(q_norm_, rows);
  return saved;
}

const Linear::Packed& LatentProjection::packed_of(const Packed& packed, Matrix matrix) const {
  static const Linear::Packed none;
  return packed.empty() ? none : packed[(has_query_latent() ? 1 : 0) + static_cast<size_t>(matrix)];
}

at::Tensor LatentProjection::queries(const at::Tensor& x, const Packed& packed, const QkvSaved& saved) const {
  at::Tensor source = x;
  if (has_query_latent()) {
    const at::Tensor latent = room_for(saved.q_latent, x, q_a_.out_features());
    q_a_.forward(x, latent, packed.empty() ? Linear::Packed() : packed[0]);
    source = at::empty_like(latent);
    norm_forward(q_norm_, latent, source, saved.q_norm);
  }
  const at::Tensor all = room_for({}, x, q_.out_features());
  q_.forward(source, all, packed_of(packed, kQuery));
  return by_head(all, heads_);
}

LatentProjection::Latents LatentProjection::latents(const at::Tensor& x, const Packed& packed,
                                                    const QkvSaved& saved) const {
  const Latents made{room_for(saved.kv_latent, x, kv_a_.out_features()), room_for({}, x, latent_.key_rank)};
  kv_a_.forward(x, made.both, packed_of(packed, kLatent));
  norm_forward(kv_norm_, made.both.narrow(1, 0, latent_.key_rank), made.normed, saved.kv_norm);
  return made;
}

void LatentProjection::forward(const at::Tensor& x, const at::Tensor& qkv, const Packed& packed,
                               const QkvSaved& saved) const {
  const int64_t still = latent_.still_dim, turning = latent_.rotary_dim, rank = latent_.key_rank;
  const auto write = [&](const at::Tensor& head, int64_t begin, const at::Tensor& source) {
    head.narrow(2, begin, source.size(2)).copy_(source);
  };
  const auto zero_behind = [&](const at::Tensor& head, int64_t begin) {
    if (begin < head_dim_) head.narrow(2, begin, head_dim_ - begin).zero_();
  };

  const at::Tensor q = queries(x, packed, saved), to_q = part_of(qkv, 0, heads_);
  halves(to_q.narrow(2, 0, turning)).copy_(pairs(q.narrow(2, still, turning)));
  write(to_q, turning, q.narrow(2, 0, still));
  zero_behind(to_q, turning + still);

  const Latents latent = latents(x, packed, saved);
  const at::Tensor expanded = room_for({}, x, kv_b_.out_features());
  kv_b_.forward(latent.normed, expanded, packed_of(packed, kExpand));
  const at::Tensor kv = by_head(expanded, heads_), to_k = part_of(qkv, 1, heads_),
                   to_v = part_of(qkv, 2, heads_);
  halves(to_k.narrow(2, 0, turning)).copy_(pairs(latent.both.narrow(1, rank, turning)).unsqueeze(1));
  write(to_k, turning, kv.narrow(2, 0, still));
  zero_behind(to_k, turning + still);
  write(to_v, 0, kv.narrow(2, still, latent_.value_dim));
  zero_behind(to_v, latent_.value_dim);
}

LatentHeads LatentProjection::latent_heads() const {
  return LatentHeads(kv_b_, latent_, heads_);
}

void LatentProjection::forward_latents(const at::Tensor& x, const at::Tensor& qkv, const Packed& packed,
                                       const LatentHeads& heads) const {
  const int64_t still = latent_.still_dim, turning = latent_.rotary_dim, rank = latent_.key_rank;
  const at::Tensor rows = by_head(qkv, heads_ + 1);  // of the queries, then of the key
  const at::Tensor q = queries(x, packed, {}), to_q = rows.narrow(1, 0, heads_);
  halves(to_q.narrow(2, 0, turning)).copy_(pairs(q.narrow(2, still, turning)));
  heads.absorb(q.narrow(2, 0, still), to_q.narrow(2, turning, rank));
  const Latents latent = latents(x, packed, {});
  const at::Tensor key = rows.select(1, heads_);
  halves(key.narrow(1, 0, turning)).copy_(pairs(latent.both.narrow(1, rank, turning)));
  key.narrow(1, turning, rank).copy_(latent.normed);
}

class LatentProjection::Pass final : public QkvProjection::Backward {
 public:
  Pass(const LatentProjection& projection, const QkvSaved& saved, int64_t rows, int64_t row_tile)
      : p_(projection),
        saved_(saved),
        q_norm_(p_.q_norm_, rows, row_tile),
        kv_norm_(p_.kv_norm_, rows, row_tile),
        q_weight_(p_.q_.pack_backward()),
        kv_a_weight_(p_.kv_a_.pack_backward()),
        kv_b_weight_(p_.kv_b_.pack_backward()) {
    const auto room = [&](int64_t cols) { return at::empty({rows, cols}, saved.kv_latent.options()); };
    d_queries_ = room(p_.q_.out_features());
    d_expanded_ = room(p_.kv_b_.out_features());
    d_latent_ = room(p_.kv_a_.out_features());
    normed_ = room(p_.latent_.key_rank);
    if (!p_.has_query_latent()) return;
    q_a_weight_ = p_.q_a_.pack_backward();
    d_q_latent_ = room(p_.q_a_.out_features());
    q_normed_ = room(p_.q_a_.out_features());
  }

  void tile(int64_t begin, const at::Tensor& dqkv, const at::Tensor& dx) override {
    const int64_t count = dqkv.size(0);
    const QkvSaved saved = saved_.rows(begin, count);
    back_to_matrices(begin, dqkv);

    const at::Tensor latent = saved.kv_latent.narrow(1, 0, p_.latent_.key_rank);
    norm_forward(p_.kv_norm_, latent, rows_of(normed_, begin, count), {});
    const at::Tensor d_normed = at::empty_like(rows_of(normed_, begin, count));
    p_.kv_b_.backward_input(rows_of(d_expanded_, begin, count), d_normed, kv_b_weight_);
    const at::Tensor d_latent = rows_of(d_latent_, begin, count);
    kv_norm_.backward(begin, d_normed, latent, saved.kv_norm, d_latent.narrow(1, 0, p_.latent_.key_rank),
                      false);
    p_.kv_a_.backward_input(d_latent, dx, kv_a_weight_);

    const at::Tensor by_queries = at::empty_like(dx);
    const at::Tensor d_queries = rows_of(d_queries_, begin, count);
    if (p_.has_query_latent()) {
      norm_forward(p_.q_norm_, saved.q_latent, rows_of(q_normed_, begin, count), {});
      const at::Tensor d_q_normed = at::empty_like(saved.q_latent);
      p_.q_.backward_input(d_queries, d_q_normed, q_weight_);
      const at::Tensor d_q_latent = rows_of(d_q_latent_, begin, count);
      q_norm_.backward(begin, d_q_normed, saved.q_latent, saved.q_norm, d_q_latent, false);
      p_.q_a_.backward_input(d_q_latent, by_queries, q_a_weight_);
    } else {
      p_.q_.backward_input(d_queries, by_queries, q_weight_);
    }
    dx.add_(by_queries);
  }

  void finish(const at::Tensor& dqkv, const at::Tensor& x) override {
    kv_norm_.finish();
    p_.kv_b_.accumulate_grad(d_expanded_, normed_);
    p_.kv_a_.accumulate_grad(d_latent_, x);
    if (!p_.has_query_latent()) return p_.q_.accumulate_grad(d_queries_, x);
    q_norm_.finish();
    p_.q_.accumulate_grad(d_queries_, q_normed_);
    p_.q_a_.accumulate_grad(d_q_latent_, x);
  }

 private:
  // Gradients of heads as those of what the matrices gave.
  void back_to_matrices(int64_t begin, const at::Tensor& dqkv) const {
    const int64_t count = dqkv.size(0), still = p_.latent_.still_dim, turning = p_.latent_.rotary_dim;
    const at::Tensor dq = part_of(dqkv, 0, p_.heads_), dk = part_of(dqkv, 1, p_.heads_),
                     dv = part_of(dqkv, 2, p_.heads_);
    const at::Tensor q = by_head(rows_of(d_queries_, begin, count), p_.heads_);
    q.narrow(2, 0, still).copy_(dq.narrow(2, turning, still));
    p_.pairs(q.narrow(2, still, turning)).copy_(halves(dq.narrow(2, 0, turning)));
    const at::Tensor kv = by_head(rows_of(d_expanded_, begin, count), p_.heads_);
    kv.narrow(2, 0, still).copy_(dk.narrow(2, turning, still));
    kv.narrow(2, still, p_.latent_.value_dim).copy_(dv.narrow(2, 0, p_.latent_.value_dim));
    const at::Tensor of_all_heads = dk.narrow(2, 0, turning).sum(1, /*keepdim=*/false, at::kFloat);
    p_.pairs(rows_of(d_latent_, begin, count).narrow(1, p_.latent_.key_rank, turning))
        .copy_(halves(of_all_heads));
  }

  const LatentProjection& p_;
  const QkvSaved& saved_;
  NormGradient q_norm_, kv_norm_;
  Linear::Packed q_weight_, kv_a_weight_, kv_b_weight_, q_a_weight_;
  at::Tensor d_queries_, d_expanded_, d_latent_, d_q_latent_;  // by what the matrices gave, [T, ...]
  at::Tensor normed_, q_normed_;                               // what the second ones took
};

std::unique_ptr<QkvProjection::Backward> LatentProjection::backward(const QkvSaved& saved, int64_t rows,
                                                                    int64_t row_tile) const {
  return std::make_unique<Pass>(*this, saved, rows, row_tile);
}

}  // namespace troupe
