// Weights in files that are quantised: which are read, and what to do about the others.
import { show } from '../base/text';

const FROM_TRANSFORMERS = (config: string): string =>
  `load the model in transformers with quantization_config=${config} and dtype=torch.bfloat16, remove quantization_config from its config, and ` +
  'save_pretrained() to a directory, which is a bfloat16 checkpoint';

/** By quant_method; those that lose nothing when transformers dequantises them. */
const WHAT_TO_DO: Readonly<Record<string, string>> = {
  fp8: FROM_TRANSFORMERS('FineGrainedFP8Config(dequantize=True)'),
  'compressed-tensors': FROM_TRANSFORMERS('CompressedTensorsConfig(dequantize=True)'),
};

/** Why weights of this quantization_config are refused; null: MXFP4 of gpt-oss, which is read (checkpoint/mxfp4.ts). */
export function refusedQuantization(quantized: unknown, modelType: unknown): string | null {
  const { quant_method: method } = Object(quantized) as { quant_method?: unknown };
  if (method === 'mxfp4' && modelType === 'gpt_oss') return null;
  const by = method === undefined ? 'an unnamed quant_method' : show(method);
  const what = method === 'mxfp4' ? `weights in MXFP4 of ${show(modelType)}` : `weights quantised by ${by}`;
  const todo =
    (typeof method === 'string' && Object.hasOwn(WHAT_TO_DO, method) ? WHAT_TO_DO[method] : null) ??
    'use the float32, float16 or bfloat16 checkpoint that they were made from';
  return `quantised weights are not supported but for MXFP4 of gpt_oss, these are ${what}: ${todo}`;
}
