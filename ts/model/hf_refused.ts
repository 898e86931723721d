// Keys of config.json that change what a model computes and that no supported family has here.
import { quantizationOf } from './hf_quantization';

const REFUSED: Readonly<Record<string, string>> = {
  attention_sinks: 'attention sinks are not supported',
  per_layer_config: 'layers of different sizes are not supported: one set of keys for all layers is',
  transformers_weights:
    'weights in a file of another name are not supported: name it model.safetensors and leave the key out',
};

/** Which read per_layer_config themselves. */
const HAS_LAYERS_OF_TWO_SHAPES: ReadonlySet<unknown> = new Set(['gemma4_text']);

/** The first such key that must not be ignored, and why; null: none. */
export function refusedKey(config: Readonly<Record<string, unknown>>): string | null {
  const quantized = config['quantization_config'];
  if (isSet(quantized)) {
    const found = quantizationOf(quantized, config['model_type']);
    if ('refused' in found) return `quantization_config: ${found.refused}`;
  }
  const { per_layer_config: _, ...others } = REFUSED;
  const refused = HAS_LAYERS_OF_TWO_SHAPES.has(config['model_type']) ? others : REFUSED;
  for (const [key, why] of Object.entries(refused)) if (isSet(config[key])) return `${key}: ${why}`;
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
