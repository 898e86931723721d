// The experts of a mixture on a GPU, in one product for each of their two matrices.
#include <ATen/ATen.h>

#include "base/parallel.h"
#include "kernels/grouped_gemm.h"
#include "model/moe.h"

namespace troupe {

// [Note: own slots on a GPU] Where ranks share experts the host must know how many slots are of experts that
// are here: it is the size of all that follows. Buffers for as many as there could be (all slots of all
// ranks) would take ep times the memory, and the first product's result is kept for the backward pass;
// buffers for a share and a margin would drop what does not fit, or wait all the same. So the host reads the
// places where its experts begin, once in each forward pass of the layer; the backward pass asks nothing.
void MoeMlp::keep_own(ExpertRouting& routing) const {
  const auto experts = static_cast<int64_t>(in_.size()), all = routing.starts.size(0) - 1;
  const at::Tensor bounds = routing.starts.narrow(0, first_, experts + 1);
  OwnSlots own{0, 0};
  if (simulated(bounds)) {
    own.count = (routing.slots() * experts + all - 1) / all;
  } else {
    const at::Tensor here = bounds.cpu();
    own.first = here.const_data_ptr<int32_t>()[0];
    own.count = here.const_data_ptr<int32_t>()[experts] - own.first;
  }
  const at::Tensor other = at::zeros({1}, routing.token_of.options());
  const auto with_one_behind = [&](const at::Tensor& slots) {
    return at::cat({slots.narrow(0, own.first, own.count), other});
  };
  routing.token_of = with_one_behind(routing.token_of);
  routing.choice_of = with_one_behind(routing.choice_of);
  routing.starts = bounds - own.first;
  routing.slot_of = places_of(routing.slot_of, own);
}

void MoeMlp::clear_other(const at::Tensor& slots) const {
  if (!all_) slots.narrow(0, slots.size(0) - 1, 1).zero_();
}

bool MoeMlp::grouped(const at::Tensor& x) const {
  const bool gradients = stacks_.in_grad.defined() == in_[0].weight_grad.defined() &&
                         stacks_.out_grad.defined() == out_[0].weight_grad.defined();
  const auto whole = [](const at::Tensor& stack, const at::Tensor& of_one) {
    return stack.defined() == of_one.defined();
  };
  const bool biases = whole(stacks_.in_bias, in_[0].bias) && whole(stacks_.out_bias, out_[0].bias) &&
                      whole(stacks_.in_bias_grad, in_[0].bias_grad) &&
                      whole(stacks_.out_bias_grad, out_[0].bias_grad);
  return stacks_.in.defined() && stacks_.out.defined() && gradients && biases && !on_cpu_threads(x.device());
}

at::Tensor MoeMlp::experts_of(const ExpertRouting& routing) const {
  const at::Tensor experts = routing.experts.flatten().index_select(0, routing.choice_of);
  return (experts - first_).clamp(0, static_cast<int64_t>(in_.size()) - 1);
}

void MoeMlp::forward_grouped(const at::Tensor& x, const at::Tensor& sum, MoeSaved& state) const {
  const ExpertRouting& routing = state.routing;
  const at::Tensor gathered = x.index_select(0, routing.token_of);
  state.inner = ops::grouped_gemm(gathered, stacks_.in.transpose(1, 2), routing.starts);
  const at::Tensor experts = stacks_.in_bias.defined() ? experts_of(routing) : at::Tensor();
  if (stacks_.in_bias.defined()) state.inner.add_(stacks_.in_bias.index_select(0, experts));
  const at::Tensor activated = at::empty({routing.slots(), intermediate_size_}, x.options());
  ops::activation_forward(activation_, gated_, state.inner, activated);
  at::Tensor outputs = ops::grouped_gemm(activated, stacks_.out.transpose(1, 2), routing.starts);
  if (stacks_.out_bias.defined()) outputs.add_(stacks_.out_bias.index_select(0, experts));
  clear_other(outputs);
  sum_slots(outputs, routing.slot_of, routing.weights, sum);
}

// As expert_backward, for the slots of all experts at once.
at::Tensor MoeMlp::backward_grouped(const at::Tensor& d_sum, const at::Tensor& x, const MoeSaved& saved,
                                    const at::Tensor& dx) const {
  const ExpertRouting& routing = saved.routing;
  const at::Tensor weights = routing.weights.flatten().index_select(0, routing.choice_of).unsqueeze(1);
  at::Tensor d_output = d_sum.index_select(0, routing.token_of);
  const at::Tensor unweighted = ops::grouped_gemm(d_output, stacks_.out, routing.starts);
  const at::Tensor d_activated = (unweighted.to(at::kFloat) * weights).to(unweighted.scalar_type());
  const at::Tensor d_inner = at::empty_like(saved.inner);
  const at::Tensor activated = at::empty_like(d_activated);
  ops::activation_backward(activation_, gated_, d_activated, saved.inner, d_inner, activated);
  at::Tensor d_slots = (unweighted.to(at::kFloat) * activated).sum(1);
  const at::Tensor experts = stacks_.in_bias.defined() ? experts_of(routing) : at::Tensor();
  if (stacks_.out_bias.defined())
    d_slots.add_((stacks_.out_bias.index_select(0, experts).to(at::kFloat) * d_output).sum(1));
  clear_other(d_slots);
  // Without the place behind them, in the order of the slots.
  const auto add_to = [&](const at::Tensor& gradient, const at::Tensor& rows) {
    if (!gradient.defined()) return;
    const int64_t own = rows.size(0) - (all_ ? 0 : 1);
    ops::add_rows(gradient, experts.narrow(0, 0, own), rows.narrow(0, 0, own).to(at::kFloat));
  };
  if (stacks_.out_grad.defined()) {
    d_output.mul_(weights);  // in float32, rounded once
    ops::grouped_gemm_transposed(d_output, activated, routing.starts, stacks_.out_grad);
    add_to(stacks_.out_bias_grad, d_output);
  }
  d_output.reset();
  add_to(stacks_.in_bias_grad, d_inner);
  if (stacks_.in_grad.defined()) {
    const at::Tensor gathered = x.index_select(0, routing.token_of);
    ops::grouped_gemm_transposed(d_inner, gathered, routing.starts, stacks_.in_grad);
  }
  const at::Tensor d_gathered = ops::grouped_gemm(d_inner, stacks_.in, routing.starts);
  clear_other(d_gathered);
  sum_slots(d_gathered, routing.slot_of, {}, dx);
  return d_slots.index_select(0, routing.slot_of.flatten()).view_as(routing.weights);
}

}  // namespace troupe
