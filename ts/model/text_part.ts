// Models that are more than a language model: the part that reads text.

type Raw = Readonly<Record<string, unknown>>;

/** The `model_type` of the language model, by that of the whole. */
const TEXT_TYPES: Readonly<Record<string, string>> = {
  gemma3: 'gemma3_text',
  gemma4: 'gemma4_text',
  mistral3: 'mistral',
  qwen3_5: 'qwen3_5_text',
  qwen3_5_moe: 'qwen3_5_moe_text',
};

/** Of these text_config may say another: Mistral Small 3.1 has a `mistral`, Ministral 3 a `ministral3`. */
const WITH_SEVERAL: ReadonlySet<unknown> = new Set(['mistral3']);

/** What the class of the whole takes a missing key for, where that of the language model does not. */
const DEFAULTS: Readonly<Record<string, Raw>> = { mistral3: { tie_word_embeddings: true } };

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

/** Of these the tower that reads images is there, too. */
const WITH_TOWER: ReadonlySet<string> = new Set(['qwen3_5', 'qwen3_5_moe']);

/**
 * The part of a config.json that is read, as a config.json of its own: the language model, or all of it where it is nothing else.
 * `readsImages`: with the tower, where it is there.
 */
export function textPart(raw: Raw, readsImages = false): Record<string, unknown> {
  if (!hasOtherParts(raw, readsImages)) return raw;
  const type = raw['model_type'] as string;
  const text = isObject(raw['text_config']) ? (raw['text_config'] as Raw) : {};
  const own: Record<string, unknown> = {
    ...text,
    model_type: (WITH_SEVERAL.has(type) ? text['model_type'] : null) ?? textTypeOf(type),
    ...DEFAULTS[type],
  };
  for (const key of OF_THE_WHOLE) {
    const value = raw[key];
    if (value !== undefined && value !== null) own[key] = value;
  }
  return own;
}

/**
 * With the keys of the decoder in `text_config`: Qwen2-VL and Qwen2.5-VL are published with them beside `vision_config`, and transformers
 * writes them there since its version 4.52.
 */
export const withTextConfig = (raw: Raw): Raw =>
  !FLAT.has(raw['model_type']) || isObject(raw['text_config']) ? raw : { ...raw, text_config: raw };

const FLAT: ReadonlySet<unknown> = new Set(['qwen2_vl', 'qwen2_5_vl']);

const isObject = (value: unknown): boolean => typeof value === 'object' && value !== null;

/** Gemma 3, Gemma 4 and Mistral 3 with images, and Qwen3.5 where it is not read with its tower. */
export const hasOtherParts = (raw: Raw, readsImages = false): boolean =>
  textTypeOf(raw['model_type']) !== undefined && !(readsImages && hasOwnTower(raw));

/** Qwen3.5 with images: read with its tower, or as the language model that it has. */
export const hasOwnTower = (raw: Raw): boolean => WITH_TOWER.has(raw['model_type'] as string);

/** undefined: of no model that is more than one. */
export const textTypeOf = (type: unknown): string | undefined =>
  typeof type === 'string' && Object.hasOwn(TEXT_TYPES, type) ? TEXT_TYPES[type] : undefined;

/**
 * The name that a tensor of such a model has where the language model is all there is, from that of the hub and that of transformers 5;
 * null: it is of another part.
 */
export function textTensorName(hf: string): string | null {
  if (/^(lm_head|mtp)\./.test(hf)) return hf;
  if (/^language_model\.(model|lm_head)\./.test(hf)) return hf.slice('language_model.'.length);
  return hf.startsWith('model.language_model.') ? hf.replace('language_model.', '') : null;
}
