// How the routers of a decoder spread tokens over experts, and the loss that evens them out.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "base/metrics.h"

namespace troupe {

class Communicator;

// Sums over tokens, by layer: how often each expert was chosen, the probabilities that the router gave it,
// and the entropy of those. All are sums in double precision over tokens of their own, so that neither
// micro-batches nor ranks show in them.
class ExpertLoad {
 public:
  // Of a decoder with `layers` layers, of which some have `experts` experts.
  ExpertLoad(int64_t layers, int64_t experts, at::Device device);

  void clear();
  // Of rows of one layer: probs [T, E] float32, experts [T, k] int64, and how many tokens each row stands
  // for, [T] float32: a row of a shared prompt for one of each response, one that pads for none.
  void add(int64_t layer, const at::Tensor& probs, const at::Tensor& experts, const at::Tensor& tokens);
  // Over the ranks of `all`, those of which have `counted` what the others have not. All at the same time.
  void sum(Communicator& all, bool counted);

  // By layer with experts, of the share c_e of the choices that fell on expert e: the violations E c_e - 1 of
  // an even share, the largest of them (max_vio, the MaxVio of Wang et al. 2024, arXiv:2408.15664), the
  // smallest (min_vio), and the mean of their sizes (avg_vio), under verl's names of the same in a rollout:
  // moe/{max,min,avg}_vio/{max,avg} over the layers; moe/entropy: of the routers' probabilities, nats, mean
  // over tokens and layers. None without tokens.
  Metrics metrics() const;
  // E sum_e f_e P_e: f_e how often a token chose expert e, P_e its mean probability, over all tokens and
  // layers at once. As the Mixtral and Qwen MoE models of transformers compute it, after equations 4 to 6 of
  // Fedus et al. 2021 (arXiv:2101.03961); k where all experts are equally likely. 0 without tokens.
  double balance_loss() const;
  // Its gradient by the probabilities of one token in one layer, the choices held fixed: E f_e / tokens, [E]
  // float32.
  at::Tensor balance_gradient() const;

 private:
  at::Tensor counts() const { return sums_.narrow(1, 0, experts_); }
  at::Tensor probabilities() const { return sums_.narrow(1, experts_, experts_); }
  double tokens() const;  // of all layers

  int64_t experts_;
  at::Device device_;
  at::Tensor sums_;  // [layers, 2 E + 2] float64: counts, probabilities, entropy, tokens
};

}  // namespace troupe
