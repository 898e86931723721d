// Models that are more than a language model: the part that reads text.

type Raw = Readonly<Record<string, unknown>>;

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
    model_type: 'gemma3_text',
  };
  for (const key of OF_THE_WHOLE) {
    const value = raw[key];
    if (value !== undefined && value !== null) own[key] = value;
  }
  return own;
}

/** Gemma 3 with images. */
export const hasOtherParts = (raw: Raw): boolean => raw['model_type'] === 'gemma3';

/**
 * The name that a tensor of such a model has where the language model is all there is, from that of the hub and that of transformers 5;
 * null: it is of another part.
 */
export function textTensorName(hf: string): string | null {
  if (hf.startsWith('lm_head.')) return hf;
  if (/^language_model\.(model|lm_head)\./.test(hf)) return hf.slice('language_model.'.length);
  return hf.startsWith('model.language_model.') ? hf.replace('language_model.', '') : null;
}
