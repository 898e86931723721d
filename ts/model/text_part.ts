// Models that are more than a language model: the part that reads text.

type Raw = Readonly<Record<string, unknown>>;

/** The `model_type` of the language model, by that of the whole. */
const TEXT_TYPES: Readonly<Record<string, string>> = {
  gemma3: 'gemma3_text',
  qwen3_5: 'qwen3_5_text',
  qwen3_5_moe: 'qwen3_5_moe_text',
};

/** Keys that may stand beside `text_config`, where they are those of the whole. */
const OF_THE_WHOLE = [
  'tie_word_embeddings',
  'eos_token_id',
  'max_position_embeddings',
  'dtype',
  'torch_dtype',
  'quantization_config',
  'transformers_version',
];

/** The part of a config.json that is the language model, as a config.json of its own; all of it where it is nothing else. */
export function textPart(raw: Raw): Record<string, unknown> {
  if (!hasOtherParts(raw)) return raw;
  const text = raw['text_config'];
  const own: Record<string, unknown> = {
    ...(typeof text === 'object' ? text : null),
    model_type: TEXT_TYPES[raw['model_type'] as string],
  };
  for (const key of OF_THE_WHOLE) {
    const value = raw[key];
    if (value !== undefined && value !== null) own[key] = value;
  }
  return own;
}

/** Gemma 3 and Qwen3.5 with images. */
export const hasOtherParts = (raw: Raw): boolean =>
  typeof raw['model_type'] === 'string' && Object.hasOwn(TEXT_TYPES, raw['model_type']);

/**
 * The name that a tensor of such a model has where the language model is all there is, from that of the hub and that of transformers 5;
 * null: it is of another part.
 */
export function textTensorName(hf: string): string | null {
  if (hf.startsWith('lm_head.')) return hf;
  if (/^language_model\.(model|lm_head)\./.test(hf)) return hf.slice('language_model.'.length);
  return hf.startsWith('model.language_model.') ? hf.replace('language_model.', '') : null;
}
