// Keys of config.json that have several names.
import { show } from '../base/text';
import { TroupeError } from '../errors';
import type { Family } from './hf_schema';

/** Names that transformers writes, or takes, in place of those of the schema. */
const ALIASES: { readonly [F in Family]?: Readonly<Record<string, string>> } = {
  mixtral: { num_experts: 'num_local_experts' },
  qwen3_moe: { num_local_experts: 'num_experts' },
  qwen3_next: { num_local_experts: 'num_experts' },
  qwen3_5_moe_text: { num_local_experts: 'num_experts' },
  glm4_moe: { num_local_experts: 'n_routed_experts' },
  dots1: { num_local_experts: 'n_routed_experts' },
  deepseek_v3: { num_local_experts: 'n_routed_experts' },
  kimi_k2: { num_local_experts: 'n_routed_experts' },
  gpt_oss: { num_experts: 'num_local_experts' },
  gpt2: {
    hidden_size: 'n_embd',
    max_position_embeddings: 'n_positions',
    num_attention_heads: 'n_head',
    num_hidden_layers: 'n_layer',
  },
};

/** A config.json in the names of the schema. */
export function withoutAliases(
  family: Family,
  raw: Readonly<Record<string, unknown>>,
): Record<string, unknown> {
  const named: Record<string, unknown> = { ...raw };
  for (const [alias, name] of Object.entries(ALIASES[family] ?? {})) named[name] = raw[name] ?? raw[alias];
  return named;
}

/** @throws TroupeError INVALID_MODEL where two names of one thing have different values */
export function checkAliases(family: Family, raw: Readonly<Record<string, unknown>>, where: string): void {
  for (const [alias, name] of Object.entries(ALIASES[family] ?? {})) {
    const [value, other] = [raw[alias], raw[name]];
    if (isThere(value) && isThere(other) && other !== value)
      throw new TroupeError(
        'INVALID_MODEL',
        `[model] ${where}: ${alias} ${show(value)} and ${name} ${show(other)}: expected the same`,
      );
  }
}

const isThere = (value: unknown): boolean => value !== undefined && value !== null;
