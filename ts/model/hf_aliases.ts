// Keys of config.json that have several names.
import { isDeepStrictEqual } from 'node:util';
import { show } from '../base/text';
import { TroupeError } from '../errors';
import { type Family, isFamily } from './hf_schema';
import { textTypeOf } from './text_part';

/** Names that transformers writes, or takes, in place of those of the schema. */
const ALIASES: { readonly [F in Family]?: Readonly<Record<string, string>> } = {
  mixtral: { num_experts: 'num_local_experts' },
  qwen3_moe: { num_local_experts: 'num_experts' },
  qwen3_next: { num_local_experts: 'num_experts' },
  qwen3_5_moe_text: { num_local_experts: 'num_experts' },
  mellum: { num_local_experts: 'num_experts' },
  glm4_moe: { num_local_experts: 'n_routed_experts' },
  dots1: { num_local_experts: 'n_routed_experts' },
  solar_open: { num_local_experts: 'n_routed_experts' },
  olmoe: { num_local_experts: 'num_experts' },
  ernie4_5_moe: { num_experts: 'moe_num_experts', num_experts_per_tok: 'moe_k' },
  minimax_m2: { num_experts: 'num_local_experts' },
  granitemoehybrid: { layers_block_type: 'layer_types' },
  nemotron_h: {
    layer_types: 'layers_block_type',
    num_local_experts: 'n_routed_experts',
    mamba_n_groups: 'n_groups',
    mamba_d_conv: 'conv_kernel',
    mamba_conv_bias: 'use_conv_bias',
    mamba_dt_min: 'time_step_min',
  },
  exaone: {
    num_layers: 'num_hidden_layers',
    layer_norm_epsilon: 'rms_norm_eps',
    activation_function: 'hidden_act',
  },
  hy_v3: { num_local_experts: 'num_experts' },
  deepseek_v2: { num_experts: 'n_routed_experts' },
  deepseek_v3: { num_local_experts: 'n_routed_experts' },
  kimi_k2: { num_local_experts: 'n_routed_experts' },
  glm4_moe_lite: { num_local_experts: 'n_routed_experts', head_dim: 'qk_rope_head_dim' },
  gpt_oss: { num_experts: 'num_local_experts' },
  gpt2: {
    hidden_size: 'n_embd',
    max_position_embeddings: 'n_positions',
    num_attention_heads: 'n_head',
    num_hidden_layers: 'n_layer',
  },
};

/** Of families whose decoder is that of another one. */
const DECODERS: { readonly [F in Family]?: Family } = { qwen3_vl_moe: 'qwen3_moe', glm4v_moe: 'glm4_moe' };

/** A config.json in the names of the schema. */
export function withoutAliases(
  family: Family,
  raw: Readonly<Record<string, unknown>>,
): Record<string, unknown> {
  const named: Record<string, unknown> = { ...raw };
  for (const [alias, name] of Object.entries(ALIASES[family] ?? {})) named[name] = raw[name] ?? raw[alias];
  const inner = innerPart(family, raw);
  return inner === null ? named : { ...named, text_config: withoutAliases(...inner) };
}

/** Of a model that is read with its tower, the family in whose names the language model in it is described, and its config.json. */
function innerPart(
  family: Family,
  { text_config: text }: Readonly<Record<string, unknown>>,
): [Family, Record<string, unknown>] | null {
  const type = DECODERS[family] ?? textTypeOf(family);
  return isFamily(type) && typeof text === 'object' && text !== null
    ? [type, text as Record<string, unknown>]
    : null;
}

/** @throws TroupeError INVALID_MODEL where two names of one thing have different values */
export function checkAliases(family: Family, raw: Readonly<Record<string, unknown>>, where: string): void {
  for (const [alias, name] of Object.entries(ALIASES[family] ?? {})) {
    const [value, other] = [raw[alias], raw[name]];
    if (isThere(value) && isThere(other) && !isDeepStrictEqual(other, value))
      throw new TroupeError(
        'INVALID_MODEL',
        `[model] ${where}: ${alias} ${show(value)} and ${name} ${show(other)}: expected the same`,
      );
  }
  const inner = innerPart(family, raw);
  if (inner !== null) checkAliases(...inner, `${where}: text_config`);
}

const isThere = (value: unknown): boolean => value !== undefined && value !== null;
