// Experts: products of the rows that chose them, forward and backward, and the sum of a token's experts.
#include "model/moe.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "base/parallel.h"
#include "kernels/chosen_rows.h"
#include "kernels/grouped_gemm.h"

namespace troupe {

namespace {

using ops::PackedMatrix;

// Rows of every product whose weights are not packed: how a BLAS rounds depends on the shape, so there is
// one.
constexpr int64_t kPlainRows = 32;
// From so many active experts per thread on, one thread computes an expert from start to end.
constexpr int64_t kExpertsPerThread = 2;

at::Tensor rows_of(const at::Tensor& tensor, int64_t begin, int64_t end) {
  return tensor.narrow(0, begin, end - begin);
}

// y = x W for rows of the same expert. On a CPU without packed weights: in pieces of kPlainRows rows, the
// last padded with zeros.
void multiply(const at::Tensor& x, const PackedMatrix& weight, const at::Tensor& y) {
  if (weight.packed() || !x.is_cpu() || simulated(x)) return ops::gemm(x, weight, y, false);
  const int64_t rows = x.size(0);
  for (int64_t begin = 0; begin < rows; begin += kPlainRows) {
    const int64_t end = std::min(rows, begin + kPlainRows);
    if (end - begin == kPlainRows) {
      ops::gemm(rows_of(x, begin, end), weight, rows_of(y, begin, end), false);
      continue;
    }
    const at::Tensor padded = at::zeros({kPlainRows, x.size(1)}, x.options());
    const at::Tensor result = at::empty({kPlainRows, y.size(1)}, y.options());
    rows_of(padded, 0, end - begin).copy_(rows_of(x, begin, end));
    ops::gemm(padded, weight, result, false);
    rows_of(y, begin, end).copy_(rows_of(result, 0, end - begin));
  }
}

void add_bias(const Linear& linear, at::Tensor y) {
  if (linear.bias.defined()) y.add_(linear.bias);
}

// W of y = x W^T, packed, or as it lies.
PackedMatrix operand(const at::Tensor& weight, bool transposed, bool pack) {
  return pack ? PackedMatrix::of(weight, transposed) : PackedMatrix::as_it_lies(weight, transposed);
}

at::Tensor stack(const std::vector<Linear>& experts, at::Tensor Linear::*of) {
  std::vector<at::Tensor> matrices;
  for (const Linear& expert : experts) matrices.push_back(expert.*of);
  return ops::stacked(matrices);
}

}  // namespace

MoeMlp::MoeMlp(const ParameterStore& store, const ModelConfig& config, int64_t layer, const DecoderPart& part)
    : activation_(config.activation),
      gated_(config.gated_mlp),
      first_(part.first_expert(config)),
      all_(part.ep == 1) {
  const std::string prefix = "layers." + std::to_string(layer) + ".moe.";
  router_ = Router(store, config, prefix + "router");
  if (config.moe->beside_mlp) in_norm_ = Norm(store, config, prefix + "in_norm");
  for (int64_t expert = first_; expert < first_ + part.experts(config); ++expert) {
    in_.emplace_back(store, prefix + "experts." + std::to_string(expert) + ".in");
    out_.emplace_back(store, prefix + "experts." + std::to_string(expert) + ".out");
    if (part.tp_rank == 0) continue;
    // Of the ranks whose parts are summed the first adds it.
    out_.back().bias.reset();
    out_.back().bias_grad.reset();
  }
  intermediate_size_ = out_[0].weight.size(1);  // of this rank
  stacks_ = {stack(in_, &Linear::weight),      stack(out_, &Linear::weight),
             stack(in_, &Linear::weight_grad), stack(out_, &Linear::weight_grad),
             stack(in_, &Linear::bias),        stack(out_, &Linear::bias),
             stack(in_, &Linear::bias_grad),   stack(out_, &Linear::bias_grad)};
  if (config.moe->latent_size > 0) latent_.emplace(store, prefix + "latent");
  if (config.moe->shared_intermediate_size > 0) shared_.emplace(store, config, prefix + "shared");
}

void MoeMlp::sum_slots(const at::Tensor& rows, const at::Tensor& places, const at::Tensor& weights,
                       const at::Tensor& target) {
  for_each_row_tile(target.size(0), kRowTile, target.device(), [&](int64_t begin, int64_t end) {
    ops::sum_rows(rows, rows_of(places, begin, end),
                  weights.defined() ? rows_of(weights, begin, end) : weights, rows_of(target, begin, end));
  });
}

at::Tensor MoeMlp::places_of(const at::Tensor& slot_of, const OwnSlots& own) {
  const at::Tensor places = slot_of - own.first;
  return places.masked_fill(at::logical_or(places.lt(0), places.ge(own.count)), own.count);
}

MoeMlp::OwnSlots MoeMlp::own_slots(const ExpertRouting& routing) const {
  const auto first = static_cast<size_t>(first_);
  return {routing.offsets[first], routing.offsets[first + in_.size()] - routing.offsets[first]};
}

at::Tensor MoeMlp::own_places(const ExpertRouting& routing) const {
  if (all_) return routing.slot_of;
  return places_of(routing.slot_of, own_slots(routing));
}

// Runs body(expert) for every expert that has rows: many experts side by side, the largest first; few one
// after the other, each on all threads.
template <typename Body>
void MoeMlp::for_each_expert(const ExpertRouting& routing, const at::Device& device, Body&& body) const {
  std::vector<size_t> active;
  const auto rows = [&](size_t expert) {
    expert += static_cast<size_t>(first_);
    return routing.offsets[expert + 1] - routing.offsets[expert];
  };
  for (size_t expert = 0; expert < in_.size(); ++expert) {
    if (rows(expert) > 0) active.push_back(expert);
  }
  const bool threads = on_cpu_threads(device);
  if (!threads || static_cast<int64_t>(active.size()) < kExpertsPerThread * at::get_num_threads()) {
    for (const size_t expert : active) body(expert);
    return;
  }
  std::stable_sort(active.begin(), active.end(), [&](size_t a, size_t b) { return rows(a) > rows(b); });
  parallel_items(device, static_cast<int64_t>(active.size()),
                 [&](int64_t i) { body(active[static_cast<size_t>(i)]); });
}

void MoeMlp::expert_forward(size_t expert, const at::Tensor& x, const MoeSaved& state,
                            const at::Tensor& outputs, const PackedMatrix& in,
                            const PackedMatrix& out) const {
  const size_t of_all = expert + static_cast<size_t>(first_);
  const int64_t first = state.routing.offsets[of_all], last = state.routing.offsets[of_all + 1];
  const int64_t own = own_slots(state.routing).first;
  for_each_row_tile(
      last - first, kRowTile, x.device(),
      [&](int64_t begin, int64_t end) {
        begin += first;
        end += first;
        const at::Tensor inner = rows_of(state.inner, begin - own, end - own);
        const at::Tensor gathered = at::empty({end - begin, x.size(1)}, x.options());
        ops::gather_rows(x, rows_of(state.routing.token_of, begin, end), {}, gathered);
        multiply(gathered, in, inner);
        add_bias(in_[expert], inner);
        const at::Tensor activated = at::empty({end - begin, intermediate_size_}, x.options());
        ops::activation_forward(activation_, gated_, inner, activated);
        const at::Tensor result = rows_of(outputs, begin - own, end - own);
        multiply(activated, out, result);
        add_bias(out_[expert], result);
      },
      in.packed());
}

MoeMlp::Packed MoeMlp::pack() const {
  Packed packed{router_.pack(),
                {},
                {},
                latent_ ? latent_->pack() : ExpertLatent::Packed(),
                shared_ ? shared_->pack() : SharedExpert::Packed()};
  for (size_t expert = 0; expert < in_.size(); ++expert) {
    packed.in.push_back(PackedMatrix::of(in_[expert].weight, true));
    packed.out.push_back(PackedMatrix::of(out_[expert].weight, true));
  }
  return packed;
}

void MoeMlp::forward(const at::Tensor& x, const at::Tensor& out, int64_t row_tile, MoeSaved* saved,
                     const Pass& pass, const Packed& packed) const {
  MoeSaved local;
  forward_chosen(x, out, row_tile, saved != nullptr ? *saved : local, pass, packed);
  if (shared_) shared_->forward(x, out, row_tile, saved != nullptr ? &saved->shared : nullptr, packed.shared);
}

void MoeMlp::forward_chosen(const at::Tensor& x, const at::Tensor& out, int64_t row_tile, MoeSaved& state,
                            const Pass& pass, const Packed& packed) const {
  at::Tensor given = pass.router.given;
  if (!pass.rows.shared()) return forward_part(x, out, row_tile, state, pass, packed, given);
  if (!pass.rows.any()) return;
  const at::Tensor all = pass.rows.gather(x, pass.label);
  if (given.defined()) given = pass.rows.gather(given, pass.label);
  const at::Tensor part = at::empty_like(all);
  forward_part(all, part, row_tile, state, pass, packed, given);
  pass.rows.sum(part, out, pass.label);
}

void MoeMlp::forward_part(const at::Tensor& x, const at::Tensor& out, int64_t row_tile, MoeSaved& state,
                          const Pass& pass, const Packed& packed, const at::Tensor& given) const {
  const bool here = packed.router.defined();
  state.routing = router_.route(x, row_tile, here ? packed.router : router_.pack(), given, grouped(x));
  router_.count(state.routing, pass.router, pass.rows.first());
  if (in_norm_.defined()) {
    state.in_norm = NormStats::make(in_norm_, x.size(0));
    return forward_experts(norm_rows(in_norm_, x, state.in_norm), out, row_tile, state, packed);
  }
  if (!latent_) return forward_experts(x, out, row_tile, state, packed);
  state.latent.inputs = latent_->inputs(x, row_tile, packed.latent);
  state.latent.sum = at::empty_like(state.latent.inputs);
  forward_experts(state.latent.inputs, state.latent.sum, row_tile, state, packed);
  latent_->outputs(state.latent.sum, out, row_tile, packed.latent);
}

void MoeMlp::forward_experts(const at::Tensor& x, const at::Tensor& sum, int64_t row_tile, MoeSaved& state,
                             const Packed& packed) const {
  if (grouped(x)) {
    if (!all_) keep_own(state.routing);
    return forward_grouped(x, sum, state);
  }
  const bool here = packed.router.defined();
  const int64_t slots = own_slots(state.routing).count;
  state.inner = at::empty({slots, intermediate_size_ * (gated_ ? 2 : 1)}, x.options());
  const at::Tensor outputs = at::empty({slots + (all_ ? 0 : 1), x.size(1)}, x.options());
  if (!all_) outputs.narrow(0, slots, 1).zero_();
  for_each_expert(state.routing, x.device(), [&](size_t expert) {
    if (here) return expert_forward(expert, x, state, outputs, packed.in[expert], packed.out[expert]);
    const bool pack = row_tile != kDecodeRowTile;
    expert_forward(expert, x, state, outputs, operand(in_[expert].weight, true, pack),
                   operand(out_[expert].weight, true, pack));
  });
  sum_slots(outputs, own_places(state.routing), state.routing.weights, sum);
}

at::Tensor MoeMlp::expert_backward(size_t expert, const at::Tensor& dout, const at::Tensor& x,
                                   const MoeSaved& saved, const at::Tensor& d_gathered) const {
  const ExpertRouting& routing = saved.routing;
  const size_t of_all = expert + static_cast<size_t>(first_);
  const int64_t first = routing.offsets[of_all], rows = routing.offsets[of_all + 1] - first;
  const int64_t own = own_slots(routing).first;
  const PackedMatrix in = PackedMatrix::of(in_[expert].weight, false);
  const PackedMatrix out = PackedMatrix::of(out_[expert].weight, false);
  const at::Tensor weights =
      routing.weights.flatten().index_select(0, routing.choice_of.narrow(0, first, rows));
  const at::Tensor d_weights = at::empty({rows}, weights.options());
  const at::Tensor d_output = at::empty({rows, x.size(1)}, x.options());
  const at::Tensor d_inner = at::empty({rows, saved.inner.size(1)}, x.options());
  const at::Tensor activated = at::empty({rows, intermediate_size_}, x.options());
  const at::Tensor gathered = at::empty({rows, x.size(1)}, x.options());
  for_each_row_tile(
      rows, kRowTile, x.device(),
      [&](int64_t begin, int64_t end) {
        const auto kept = [&](const at::Tensor& t) {
          return rows_of(t, first - own + begin, first - own + end);
        };
        const auto here = [&](const at::Tensor& t) { return rows_of(t, begin, end); };
        const at::Tensor tokens = rows_of(routing.token_of, first + begin, first + end);
        const at::Tensor incoming = at::empty({end - begin, x.size(1)}, x.options());
        ops::gather_rows(dout, tokens, {}, incoming);
        ops::scale_rows(incoming, here(weights), here(d_output));
        ops::gather_rows(x, tokens, {}, here(gathered));
        // What the activations would get with a weight of 1: its product with them is the weight's gradient,
        // since dout . (W activated) = (dout W) . activated, and the expert's output need not be kept.
        const at::Tensor unweighted = at::empty({end - begin, intermediate_size_}, x.options());
        multiply(incoming, out, unweighted);
        const at::Tensor d_activated = at::empty_like(unweighted);
        ops::scale_rows(unweighted, here(weights), d_activated);
        ops::activation_backward(activation_, gated_, d_activated, kept(saved.inner), here(d_inner),
                                 here(activated));
        ops::dot_rows(unweighted, here(activated), here(d_weights));
        if (out_[expert].bias.defined())  // dout . (W activated + b)
          here(d_weights).add_(at::mv(incoming.to(at::kFloat), out_[expert].bias.to(at::kFloat)));
        multiply(here(d_inner), in, kept(d_gathered));
      },
      in.packed());
  out_[expert].accumulate_grad(d_output, activated);
  in_[expert].accumulate_grad(d_inner, gathered);
  return d_weights;
}

void MoeMlp::backward(const at::Tensor& dout, const at::Tensor& x, const MoeSaved& saved,
                      const at::Tensor& dx, const Pass& pass) const {
  backward_chosen(dout, x, saved, dx, pass);
  if (shared_) shared_->backward(dout, x, saved.shared, dx);
}

void MoeMlp::backward_chosen(const at::Tensor& dout, const at::Tensor& x, const MoeSaved& saved,
                             const at::Tensor& dx, const Pass& pass) const {
  if (!pass.rows.shared()) return backward_part(dout, x, saved, dx, pass);
  if (!pass.rows.any()) return;
  const at::Tensor all = pass.rows.gather(x, pass.label);
  const at::Tensor part = at::empty_like(all);
  backward_part(pass.rows.gather(dout, pass.label), all, saved, part, pass);
  pass.rows.sum(part, dx, pass.label);
}

void MoeMlp::backward_part(const at::Tensor& dout, const at::Tensor& x, const MoeSaved& saved,
                           const at::Tensor& dx, const Pass& pass) const {
  at::Tensor d_weights;
  if (in_norm_.defined()) {
    const at::Tensor d_inputs = at::empty_like(x);
    d_weights = backward_experts(dout, norm_rows(in_norm_, x, {}), saved, d_inputs);
    dx.copy_(norm_rows_backward(in_norm_, d_inputs, x, saved.in_norm));
  } else if (latent_) {
    const at::Tensor d_sum = latent_->outputs_backward(dout, saved.latent.sum);
    const at::Tensor d_inputs = at::empty_like(d_sum);
    d_weights = backward_experts(d_sum, saved.latent.inputs, saved, d_inputs);
    latent_->inputs_backward(d_inputs, x, dx);
  } else {
    d_weights = backward_experts(dout, x, saved, dx);
  }
  router_.backward(d_weights, x, saved.routing, pass.router, pass.rows.first(), dx);
}

at::Tensor MoeMlp::backward_experts(const at::Tensor& d_sum, const at::Tensor& x, const MoeSaved& saved,
                                    const at::Tensor& dx) const {
  if (grouped(x)) return backward_grouped(d_sum, x, saved, dx);
  const ExpertRouting& routing = saved.routing;
  const OwnSlots own = own_slots(routing);
  const int64_t behind = all_ ? 0 : 1;  // the place of other ranks' slots
  const at::Tensor d_gathered = at::empty({own.count + behind, x.size(1)}, x.options());
  const at::Tensor d_slots = at::empty({own.count + behind}, routing.weights.options());
  d_gathered.narrow(0, own.count, behind).zero_();
  d_slots.narrow(0, own.count, behind).zero_();
  for_each_expert(routing, x.device(), [&](size_t expert) {
    const size_t of_all = expert + static_cast<size_t>(first_);
    const int64_t first = routing.offsets[of_all] - own.first, last = routing.offsets[of_all + 1] - own.first;
    rows_of(d_slots, first, last).copy_(expert_backward(expert, d_sum, x, saved, d_gathered));
  });
  const at::Tensor places = own_places(routing);
  sum_slots(d_gathered, places, {}, dx);
  return d_slots.index_select(0, places.flatten()).view_as(routing.weights);
}

}  // namespace troupe
