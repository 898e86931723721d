// Keys of config.json that change what a model computes and that no supported family has here.

const REFUSED: Readonly<Record<string, string>> = {
  quantization_config: 'quantised weights are not supported: use the float32, float16 or bfloat16 checkpoint',
  attention_sinks: 'attention sinks are not supported',
  per_layer_config: 'layers of different sizes are not supported: one set of keys for all layers is',
  transformers_weights:
    'weights in a file of another name are not supported: name it model.safetensors and leave the key out',
};

/** gpt-oss is published in this format alone. */
const MXFP4 =
  'quantization_config: weights in MXFP4 are not supported: load the model in transformers with ' +
  'quantization_config=Mxfp4Config(dequantize=True) and dtype=torch.bfloat16, remove quantization_config from its config, and ' +
  'save_pretrained() to a directory, which is a bfloat16 checkpoint';

/** The first such key that must not be ignored, and why; null: none. */
export function refusedKey(config: Readonly<Record<string, unknown>>): string | null {
  const quantized = config['quantization_config'];
  if (isSet(quantized) && (quantized as { quant_method?: unknown }).quant_method === 'mxfp4') return MXFP4;
  for (const [key, why] of Object.entries(REFUSED)) if (isSet(config[key])) return `${key}: ${why}`;
  // transformers masks nothing also where it is null.
  if ('is_causal' in config && !config['is_causal'])
    return 'is_causal: attention that looks ahead is not supported: expected true, or no such key';
  return null;
}

const isSet = (value: unknown): boolean =>
  value !== undefined &&
  value !== null &&
  value !== false &&
  !(typeof value === 'object' && Object.keys(value).length === 0);
