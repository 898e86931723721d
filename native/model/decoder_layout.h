// The parameters of a decoder and of its adapters: names, shapes, groups.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "model/decoder_part.h"
#include "model/model_config.h"
#include "parameters/parameter_layout.h"

// Troupe's own parameter names. Matrices are [out, in]; "in" of an MLP is gate rows, then up rows, but with
// the clamped SwiGLU pairs of a gate row and an up row.
//
//   embed.weight [V, H]   pos_embed.weight [P, H] (learned positions)
//   layers.{i}.attn_norm.{weight,bias} [H]           (input_norms, and mlp_norm)
//   layers.{i}.attn.qkv.{weight [Q+2K, H], bias}     rows: q, then k, then v (values_from_keys: q and k;
//                                                    where keys are shared (shared_kv_layers): q)
//   layers.{i}.attn.{q_norm,k_norm}.weight [D], or [Q] and [K] (whole_qk_norm)
//   instead of qkv and these, latent attention (model/latent_projection.h):
//   layers.{i}.attn.{q_a.{weight [query_rank, H], bias}, q_norm.weight}   (query_rank)
//   layers.{i}.attn.q.weight [heads * (S+R), query_rank or H]
//   layers.{i}.attn.{kv_a.{weight [key_rank + R, H], bias}, kv_norm.weight [key_rank]}
//   layers.{i}.attn.kv_b.weight [heads * (S+V), key_rank]                 rows of a head: key, then value
//   with gates of attention (attention_gate) the rows of q in qkv are, by head, those of its query and its
//   gate, or those of all gates come behind v (gates_apart)
//   instead of all of these, linear attention (LinearAttentionConfig, with the order of the rows of in):
//   Gated DeltaNet (model/gated_delta_net.h)
//   layers.{i}.delta.in.weight [columns, H]          layers.{i}.delta.conv.weight [q, k, v; 4]
//   layers.{i}.delta.{a_log,dt_bias} [value_heads]   layers.{i}.delta.norm.weight [value_dim]
//   layers.{i}.delta.out.weight [H, values]
//   or Mamba 2 (model/mamba2.h)
//   layers.{i}.mamba.in.weight [columns, H]          layers.{i}.mamba.conv.{weight [x, B, C; 4], bias}
//   layers.{i}.mamba.{a_log,dt_bias,skip} [heads]    layers.{i}.mamba.norm.weight [values]
//   layers.{i}.mamba.out.weight [H, values]
//   or a short convolution of up to 4 rows (model/short_convolution.h)
//   layers.{i}.short_conv.in.{weight [3 values, H], bias}   layers.{i}.short_conv.conv.{weight, bias}
//   layers.{i}.short_conv.out.{weight [H, values], bias}
//   layers.{i}.attn.sinks [heads]                    (attention_sinks)
//   layers.{i}.attn.out.{weight [H, Q], bias}
//   layers.{i}.attn_post_norm.weight [H]             (post_norms)
//   layers.{i}.mlp_norm.{weight,bias} [H]            (this and what follows not in bare_layers)
//   layers.{i}.mlp.in.{weight [2I or I, H], bias}    layers.{i}.mlp.out.{weight [H, I], bias}
//   layers.{i}.mlp.{alpha_p,alpha_n,beta,eps} [1]    (xIELU, kernels/xielu.h: the last two are buffers)
//   layers.{i}.moe.router.{weight [E, H], bias [E]}  (biases of experts and router: moe.biases)
//   layers.{i}.moe.shared.{gate.weight [1, H], in.weight [2S, H], out.weight [H, S]}
//   (shared_intermediate_size S)
//   layers.{i}.moe.latent.{in.weight [L, H], out.weight [H, L]}   (latent_size L, in the place of H below)
//   layers.{i}.moe.experts.{e}.in.{weight [2F, H], bias}   layers.{i}.moe.experts.{e}.out.{weight [H, F],
//   bias} layers.{i}.mlp_post_norm.weight [H]              (post_norms) norm.{weight,bias} [H] head.weight
//   [V, H] (untied LM) or [1, H] (value)   head.bias [1] {site}.lora_a [r, in]   {site}.lora_b [rows, r]
//   (adapters)
//   beside the MLP (moe.beside_mlp) its own {mlp.in,mlp.out}, and layers.{i}.{mlp_out_norm,moe.in_norm,
//   moe.out_norm}.weight [H]   layers.{i}.moe.router.{scale [H], expert_scale [E]}
//   layers.{i}.scale [1]                             (layer_scale)
//   with numbers for every layer (per_layer_size P, over all layers A): per_layer.embed.weight [V, A]
//   per_layer.in.weight [A, H]   per_layer.norm.weight [P]
//   layers.{i}.token.{in.weight [P, H], out.weight [H, P], norm.weight [H]}
//   of a layer that predicts further tokens (prediction), beside those of any layer:
//   layers.{i}.predict.{token_norm,hidden_norm,norm}.weight [H]   layers.{i}.predict.in.weight [H, 2H]
//   with a tower for images of width C (vision): vision.patches.{weight [C, patch values], bias}
//   vision.patches.norm.{weight,bias} [C] (patch_norm)
//   vision.positions.weight [side^2, C]     vision.layers.{i}.*, as those of the decoder
//   vision.merger.*, vision.deepstack.{k}.* with M = C * merge_size^2:
//   norm.{weight,bias} [C, in deepstack M]   in.{weight [M, M], bias}   out.{weight [H, M], bias}
//   vision.merger.* with a gate (gated_merger_size G): norm.{weight,bias} [C]   merge.{weight [H, M], bias}
//   proj.weight [H, H]   proj_norm.{weight,bias} [H]   in.weight [2G, H]   out.weight [H, G]
namespace troupe {

// A place for a low-rank adapter: rows [row, row + rows) of the weight `param` of a linear layer. Our weights
// hold several of Hugging Face's, so one may have several sites. The adapter's parameters are
// `<name>.lora_a` [r, in] and `<name>.lora_b` [rows, r].
struct AdapterSite {
  std::string name;  // layers.{i}. and what follows
  std::string param;
  int64_t row = 0;
  int64_t rows = 0;
};

// Low-rank adaptation (model/adapter.h). Only the adapters and the head of a value model are trained; all
// other parameters are frozen and have neither gradients nor moments.
struct LoraOptions {
  int64_t rank = 0;
  double scale = 1;  // alpha / rank
  std::vector<AdapterSite> sites;
};

// Groups: "embed", with per_layer_size "per_layer" (the table) and "per_layer.product", "layers.{i}" (then
// "layers.{i}.buffers" where it has some, and with expert parallelism "layers.{i}.experts.{r}" for each rank
// r of the group, of which its own are here), "head" (with the final norm), those of the layers that predict
// further tokens, with a tower "vision.patches", "vision.layers.{i}" and "vision.mergers", all of it on all
// ranks that share matrices, then with adapters "layers.{i}.lora" for each layer that has some, and
// "value_head", trained beside them. Matrices start from N(0, 0.02), norms from the identity, biases from 0;
// adapters as in PEFT: A uniform (Kaiming, a = sqrt(5)), B 0, so that they begin by adding nothing.
//
// kInvalidArgument naming an adapter site that is not on a linear layer that takes adapters, or that leads
// out of it, and as validate() for a part.
ParameterLayout decoder_layout(const ModelConfig& config,
                               const std::optional<LoraOptions>& lora = std::nullopt,
                               const DecoderPart& part = {});

}  // namespace troupe
