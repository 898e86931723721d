// Routing, and experts on blocks of rows.
#include "model/moe.h"

#include <ATen/ATen.h>

#include "base/parallel.h"

namespace troupe {

namespace {

constexpr int64_t kSlotBlock = 32;  // rows of every expert GEMM

// Rows `token_of` of source, zeros where it is -1.
at::Tensor gather_slots(const at::Tensor& source, const at::Tensor& token_of) {
  const at::Tensor rows = source.index_select(0, token_of.clamp_min(0));
  return rows.masked_fill_((token_of < 0).unsqueeze(1), 0);
}

}  // namespace

MoeMlp::MoeMlp(const ParameterStore& store, const ModelConfig& config, int64_t layer)
    : moe_(*config.moe), activation_(config.activation), gated_(config.gated_mlp) {
  const std::string prefix = "layers." + std::to_string(layer) + ".moe.";
  router_ = Linear(store, prefix + "router");
  for (int64_t expert = 0; expert < moe_.num_experts; ++expert) {
    in_.emplace_back(store, prefix + "experts." + std::to_string(expert) + ".in");
    out_.emplace_back(store, prefix + "experts." + std::to_string(expert) + ".out");
  }
}

void MoeMlp::route(const at::Tensor& x, int64_t row_tile, MoeSaved& saved) const {
  const int64_t tokens = x.size(0);
  const at::Tensor logits = at::empty({tokens, moe_.num_experts}, x.options());
  for_each_row_tile(tokens, row_tile, x.device(), [&](int64_t begin, int64_t end) {
    router_.forward(x.narrow(0, begin, end - begin), logits.narrow(0, begin, end - begin), {});
  });
  saved.probs = at::softmax(logits.to(at::kFloat), -1);
  auto [values, experts] = saved.probs.topk(moe_.top_k, -1);
  saved.experts = experts.contiguous();
  saved.weights = moe_.normalize_top_k ? values / values.sum(-1, true) : values;

  if (simulated(x)) return route_worst_case(tokens, saved);
  // Slots: tokens sorted by expert, every expert rounded up to whole blocks.
  const at::Tensor chosen = saved.experts.cpu();
  const int64_t* expert_of = chosen.data_ptr<int64_t>();
  std::vector<std::vector<int64_t>> by_expert(static_cast<size_t>(moe_.num_experts));
  for (int64_t i = 0; i < tokens * moe_.top_k; ++i) by_expert[static_cast<size_t>(expert_of[i])].push_back(i);
  const at::Tensor slot_of = at::empty({tokens, moe_.top_k}, at::kLong);
  std::vector<int64_t> token_of;
  saved.block_expert.clear();
  for (int64_t expert = 0; expert < moe_.num_experts; ++expert) {
    for (const int64_t choice : by_expert[static_cast<size_t>(expert)]) {
      slot_of.data_ptr<int64_t>()[choice] = static_cast<int64_t>(token_of.size());
      token_of.push_back(choice / moe_.top_k);
    }
    token_of.resize(static_cast<size_t>(round_up(static_cast<int64_t>(token_of.size()), kSlotBlock)), -1);
    saved.block_expert.resize(token_of.size() / kSlotBlock, expert);
  }
  saved.slot_of = slot_of.to(x.device());
  saved.token_of = at::tensor(token_of, at::kLong).to(x.device());
}

// Every expert with one row more than whole blocks: see [Note: simulated memory].
void MoeMlp::route_worst_case(int64_t tokens, MoeSaved& saved) const {
  const auto options = saved.experts.options();
  const int64_t choices = tokens * moe_.top_k;
  const int64_t used = std::min(choices, moe_.num_experts);
  const int64_t slots = round_up(choices + used * (kSlotBlock - 1), kSlotBlock);
  saved.slot_of = at::empty({tokens, moe_.top_k}, options);
  saved.token_of = at::empty({slots}, options);
  saved.block_expert.assign(static_cast<size_t>(slots / kSlotBlock), 0);
}

void MoeMlp::forward(const at::Tensor& x, const at::Tensor& out, int64_t row_tile, MoeSaved* saved) const {
  MoeSaved local;
  MoeSaved& state = saved != nullptr ? *saved : local;
  route(x, row_tile, state);
  const int64_t slots = state.token_of.size(0);
  const at::Tensor gathered = gather_slots(x, state.token_of);
  state.inner = at::empty({slots, in_[0].out_features()}, x.options());
  state.outputs = at::empty({slots, x.size(1)}, x.options());
  parallel_items(x.device(), static_cast<int64_t>(state.block_expert.size()), [&](int64_t block) {
    const size_t expert = static_cast<size_t>(state.block_expert[static_cast<size_t>(block)]);
    const at::Tensor inner = state.inner.narrow(0, block * kSlotBlock, kSlotBlock);
    in_[expert].forward(gathered.narrow(0, block * kSlotBlock, kSlotBlock), inner, {});
    const at::Tensor activated = at::empty({kSlotBlock, moe_.intermediate_size}, x.options());
    ops::activation_forward(activation_, gated_, inner, activated);
    out_[expert].forward(activated, state.outputs.narrow(0, block * kSlotBlock, kSlotBlock), {});
  });
  const at::Tensor picked =
      state.outputs.index_select(0, state.slot_of.flatten()).view({x.size(0), moe_.top_k, x.size(1)});
  out.copy_((picked.to(at::kFloat) * state.weights.unsqueeze(-1)).sum(1));
}

void MoeMlp::backward(const at::Tensor& dout, const at::Tensor& x, const MoeSaved& saved,
                      const at::Tensor& dx) const {
  const int64_t slots = saved.token_of.size(0);
  const at::Tensor weight_of = at::zeros({slots}, saved.weights.options());
  weight_of.index_copy_(0, saved.slot_of.flatten(), saved.weights.flatten());
  const at::Tensor dout_slots = gather_slots(dout, saved.token_of);
  const at::Tensor d_weight_slots = (dout_slots.to(at::kFloat) * saved.outputs.to(at::kFloat)).sum(1);
  const at::Tensor d_outputs = (dout_slots.to(at::kFloat) * weight_of.unsqueeze(1)).to(x.scalar_type());
  const at::Tensor gathered = gather_slots(x, saved.token_of);
  const at::Tensor d_inner = at::empty_like(saved.inner);
  const at::Tensor activated = at::empty({slots, moe_.intermediate_size}, x.options());
  const at::Tensor d_gathered = at::empty({slots, x.size(1)}, x.options());
  std::vector<Linear::Packed> in, out;
  for (const Linear& expert : in_) in.push_back(expert.pack_backward());
  for (const Linear& expert : out_) out.push_back(expert.pack_backward());
  parallel_items(x.device(), static_cast<int64_t>(saved.block_expert.size()), [&](int64_t block) {
    const size_t expert = static_cast<size_t>(saved.block_expert[static_cast<size_t>(block)]);
    const auto rows = [&](const at::Tensor& t) { return t.narrow(0, block * kSlotBlock, kSlotBlock); };
    const at::Tensor d_activated = at::empty({kSlotBlock, moe_.intermediate_size}, x.options());
    out_[expert].backward_input(rows(d_outputs), d_activated, out[expert]);
    ops::activation_backward(activation_, gated_, d_activated, rows(saved.inner), rows(d_inner),
                             rows(activated));
    in_[expert].backward_input(rows(d_inner), rows(d_gathered), in[expert]);
  });
  for (size_t block = 0; block < saved.block_expert.size();) {
    size_t end = block;
    while (end < saved.block_expert.size() && saved.block_expert[end] == saved.block_expert[block]) ++end;
    const size_t expert = static_cast<size_t>(saved.block_expert[block]);
    const int64_t begin = static_cast<int64_t>(block) * kSlotBlock;
    const int64_t count = static_cast<int64_t>(end - block) * kSlotBlock;
    out_[expert].accumulate_grad(d_outputs.narrow(0, begin, count), activated.narrow(0, begin, count));
    in_[expert].accumulate_grad(d_inner.narrow(0, begin, count), gathered.narrow(0, begin, count));
    block = end;
  }
  const at::Tensor index = saved.slot_of.flatten();
  dx.copy_(d_gathered.index_select(0, index).view({x.size(0), moe_.top_k, x.size(1)}).to(at::kFloat).sum(1));
  backward_router(d_weight_slots.index_select(0, index).view({x.size(0), moe_.top_k}), x, saved, dx);
}

void MoeMlp::backward_router(const at::Tensor& d_weights, const at::Tensor& x, const MoeSaved& saved,
                             const at::Tensor& dx) const {
  at::Tensor d_chosen = d_weights;  // by the probabilities of the chosen experts
  if (moe_.normalize_top_k) {
    const at::Tensor total = saved.probs.gather(1, saved.experts).sum(-1, true);
    d_chosen = (d_weights - (d_weights * saved.weights).sum(-1, true)) / total;
  }
  const at::Tensor d_probs = at::zeros_like(saved.probs).scatter_(1, saved.experts, d_chosen);
  const at::Tensor d_logits =
      (saved.probs * (d_probs - (d_probs * saved.probs).sum(-1, true))).to(x.scalar_type());
  router_.accumulate_grad(d_logits, x);
  dx.add_(at::mm(d_logits, router_.weight));
}

}  // namespace troupe
