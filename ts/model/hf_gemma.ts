// What config.json says of the Gemma models: norms that add 1 to their weights, embeddings that are scaled.
import { show } from '../base/text';
import type { NativeModelConfig } from '../native/bridge';
import {
  activation,
  invalid,
  type Raw,
  rmsDecoder,
  ropeOfTypes,
  typedWindows,
  withTurningWindows,
} from './hf_decoder';
import type { DecoderConfig, FamilyConfig } from './hf_schema';

/** Of layers with a window, where config.json says nothing. */
export const LOCAL_THETA = 10_000;

const scaled = (c: DecoderConfig) => ({ normUnitOffset: true, embeddingScale: Math.sqrt(c.hidden_size) });

function refuseLookingAhead(c: { use_bidirectional_attention: boolean }, where: string): void {
  if (c.use_bidirectional_attention)
    throw invalid(where, 'use_bidirectional_attention: true is not supported; supported: false');
}

export function gemma(c: FamilyConfig<'gemma'>, raw: Raw, where: string): NativeModelConfig {
  refuseLookingAhead(c, where);
  // Of the official releases, which mean the approximation.
  const name = c.hidden_act === 'gelu' ? 'gelu_pytorch_tanh' : c.hidden_act;
  const chosen = activation(name, 'hidden_act', where);
  // The key of Gemma 2, which some of them have as well.
  const other = c.hidden_activation ?? name;
  if (activation(other === 'gelu' ? name : other, 'hidden_activation', where) !== chosen)
    throw invalid(
      where,
      `hidden_activation ${show(other)} and hidden_act ${show(c.hidden_act)}: expected the same`,
    );
  return {
    ...rmsDecoder('gemma', c, raw, where),
    ...scaled(c),
    activation: chosen,
    qkvBias: c.attention_bias,
    outputBias: c.attention_bias,
  };
}

export function gemma2(c: FamilyConfig<'gemma2'>, raw: Raw, where: string): NativeModelConfig {
  refuseLookingAhead(c, where);
  const types =
    c.layer_types ??
    Array.from({ length: c.num_hidden_layers }, (_, i) =>
      i % 2 === 0 ? 'sliding_attention' : 'full_attention',
    );
  return {
    ...rmsDecoder('gemma2', c, raw, where),
    ...scaled(c),
    activation: activation(c.hidden_activation, 'hidden_activation', where),
    postNorms: true,
    attentionScale: c.query_pre_attn_scalar ** -0.5,
    attentionSoftcap: c.attn_logit_softcapping ?? 0,
    finalSoftcap: c.final_logit_softcapping ?? 0,
    slidingWindows: typedWindows(types, c.num_hidden_layers, c.sliding_window, where),
    qkvBias: c.attention_bias,
    outputBias: c.attention_bias,
  };
}

export function gemma3(c: FamilyConfig<'gemma3_text'>, raw: Raw, where: string): NativeModelConfig {
  refuseLookingAhead(c, where);
  if (typeof raw.attn_logit_softcapping === 'number')
    throw invalid(where, 'attn_logit_softcapping: Gemma 3 has no cap on its scores: expected null');
  const types =
    c.layer_types ??
    Array.from({ length: c.num_hidden_layers }, (_, i) =>
      (i + 1) % c.sliding_window_pattern === 0 ? 'full_attention' : 'sliding_attention',
    );
  const turns = ropeOfTypes(raw, where);
  const decoder = rmsDecoder('gemma3_text', c, { rope_parameters: turns.full }, where, { defaultTheta: 1e6 });
  const slidingWindows = typedWindows(types, c.num_hidden_layers, c.sliding_window, where);
  const typed = withTurningWindows({ ...decoder, slidingWindows }, c, turns.sliding, LOCAL_THETA, where);
  return {
    ...typed,
    ...scaled(c),
    activation: activation(c.hidden_activation, 'hidden_activation', where),
    postNorms: true,
    qkNorm: true,
    attentionScale: c.query_pre_attn_scalar ** -0.5,
    finalSoftcap: c.final_logit_softcapping ?? 0,
    qkvBias: c.attention_bias,
    outputBias: c.attention_bias,
  };
}
