#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "model/model_config.h"

// Troupe's own parameter names. Matrices are [out, in]; "in" of an MLP is gate rows, then up rows.
//
//   embed.weight [V, H]   pos_embed.weight [P, H] (learned positions)
//   layers.{i}.attn_norm.{weight,bias} [H]
//   layers.{i}.attn.qkv.{weight [Q+2K, H], bias}     rows: q, then k, then v
//   layers.{i}.attn.{q_norm,k_norm}.weight [D]
//   layers.{i}.attn.out.{weight [H, Q], bias}
//   layers.{i}.attn_post_norm.weight [H]             (post_norms)
//   layers.{i}.mlp_norm.{weight,bias} [H]
//   layers.{i}.mlp.in.{weight [2I or I, H], bias}    layers.{i}.mlp.out.{weight [H, I], bias}
//   layers.{i}.moe.router.weight [E, H]
//   layers.{i}.moe.experts.{e}.in.weight [2F, H]     layers.{i}.moe.experts.{e}.out.weight [H, F]
//   layers.{i}.mlp_post_norm.weight [H]              (post_norms)
//   norm.{weight,bias} [H]
//   head.weight [V, H] (untied LM) or [1, H] (value)   head.bias [1]
//   {site}.lora_a [r, in]   {site}.lora_b [rows, r]  (adapters; engine/engine.h)
namespace troupe {

// The parameters of a decoder in the order in which they lie in the flat buffers.
std::vector<ParameterInfo> parameter_layout(const ModelConfig& config);

// The parameters of the adapters on `base`. kInvalidArgument naming a site that is not on a linear layer
// of attention or a dense MLP, or that leads out of it.
std::vector<ParameterInfo> adapter_layout(const std::vector<ParameterInfo>& base, const LoraOptions& lora);

std::string adapter_a(const AdapterSite& site);  // names
std::string adapter_b(const AdapterSite& site);

}  // namespace troupe
