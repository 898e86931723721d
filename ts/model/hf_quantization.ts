// Weights in files that are quantised: which are read, and what to do about the others.
import { show } from '../base/text';

/** Which values of a matrix have a scale in common: all, those of a row, those of a block of so many rows and columns. */
export type ScaleLayout = 'tensor' | 'channel' | readonly [rows: number, columns: number];

/** Of a quantization_config: the layouts that scales of matrices in FP8 may have (none: it is MXFP4 of gpt-oss), or why it is refused. */
export type Quantization = { layouts: readonly ScaleLayout[] } | { refused: string };

type Raw = Readonly<Record<string, unknown>>;

/** Keys of those that quantise: a null is as good as none. */
const objectOf = (value: unknown): Raw => Object(value ?? {}) as Raw;

/**
 * What the quantization_config of a model says of its files: MXFP4 of gpt-oss (checkpoint/mxfp4.ts), or FP8 (checkpoint/fp8.ts) as
 * FineGrainedFP8Config of transformers and compressed-tensors have it. Which modules are quantised is in the files.
 */
export function quantizationOf(quantized: unknown, modelType: unknown): Quantization {
  const config = objectOf(quantized);
  const method = config['quant_method'];
  if (method === 'mxfp4' && modelType === 'gpt_oss') return { layouts: [] };
  if (method === 'fp8') return fineGrained(config);
  if (method === 'compressed-tensors') return compressedTensors(config);
  const by = method === undefined ? 'an unnamed quant_method' : show(method);
  return refused(
    method === 'mxfp4' ? `weights in MXFP4 of ${show(modelType)}` : `weights quantised by ${by}`,
    'use the float32, float16 or bfloat16 checkpoint that they were made from',
  );
}

/** Of a config.json whose quantization_config is not refused: the layouts of scales, none where it has no matrix in FP8. */
export function scaleLayouts(config: Raw): readonly ScaleLayout[] {
  const own = config['quantization_config'];
  const text = objectOf(config['text_config']);
  const found = isSet(own)
    ? quantizationOf(own, config['model_type'])
    : quantizationOf(text['quantization_config'], text['model_type']);
  return 'layouts' in found ? found.layouts : [];
}

const isSet = (value: unknown): boolean => Object.keys(objectOf(value)).length > 0;

const refused = (what: string, todo: string): Quantization => ({
  refused:
    'quantised weights are not supported but for FP8 (E4M3; quant_method fp8, and compressed-tensors in the format float-quantized) and MXFP4 of gpt_oss, ' +
    `these are ${what}: ${todo}`,
});

const FROM_TRANSFORMERS = (config: string): string =>
  `load the model in transformers with quantization_config=${config} and dtype=torch.bfloat16, remove quantization_config from its config, and ` +
  'save_pretrained() to a directory, which is a bfloat16 checkpoint';

/** What publishers call the one format of weights, which is not that of gradients, E5M2. */
const E4M3: ReadonlySet<unknown> = new Set([undefined, null, 'e4m3', 'float8_e4m3fn']);

const USUAL_BLOCK = [128, 128] as const;

function fineGrained(config: Raw): Quantization {
  const { fmt, expert_dtype: experts, weight_block_size: given } = config;
  const todo = FROM_TRANSFORMERS('FineGrainedFP8Config(dequantize=True)');
  if (!E4M3.has(fmt)) return refused(`weights in FP8 with fmt ${show(fmt)}, expected "e4m3"`, todo);
  if (experts !== undefined && experts !== null && experts !== 'fp8')
    return refused(`experts with expert_dtype ${show(experts)}, expected "fp8"`, todo);
  if (given === null) return { layouts: ['tensor'] };
  const block = given === undefined ? USUAL_BLOCK : blockOf(given);
  if (block === null)
    return refused(`weights with weight_block_size ${show(given)}, expected two positive integers`, todo);
  // What transformers writes without blocks, and what is too small for more than one.
  return { layouts: [block, 'tensor'] };
}

const FLOAT_FORMATS: ReadonlySet<unknown> = new Set(['float-quantized', 'naive-quantized']);

function compressedTensors(config: Raw): Quantization {
  const todo = FROM_TRANSFORMERS('CompressedTensorsConfig(dequantize=True)');
  const { format, config_groups: given, sparsity_config: sparsity, transform_config: transforms } = config;
  const no = (what: string): Quantization =>
    refused(`weights quantised by "compressed-tensors" with ${what}`, todo);
  const sparse = objectOf(sparsity)['format'];
  if (sparse !== undefined && sparse !== null && sparse !== 'dense')
    return no(`sparsity_config.format ${show(sparse)}, expected "dense"`);
  if (isSet(objectOf(transforms)['config_groups'])) return no('a transform_config, expected none');
  // Groups may be about something else than weights: keys and values in a cache.
  const groups = Object.entries(objectOf(given)).filter(([, group]) => isSet(objectOf(group)['weights']));
  if (groups.length === 0) return no('config_groups of which none has weights, expected at least one');
  const layouts: ScaleLayout[] = [];
  for (const [name, group] of groups) {
    const own = objectOf(group)['format'] ?? format;
    if (!FLOAT_FORMATS.has(own)) return no(`the format ${show(own)}, expected "float-quantized"`);
    const layout = groupLayout(objectOf(objectOf(group)['weights']));
    if ('expected' in layout) return no(`config_groups.${show(name)}.weights.${layout.expected}`);
    layouts.push(layout.layout);
  }
  return { layouts };
}

/** `expected`: the key that is not as it must be, and how it must be. */
function groupLayout(weights: Raw): { layout: ScaleLayout } | { expected: string } {
  const { type, num_bits: bits, symmetric, block_structure: structure, group_size: size } = weights;
  if (type !== 'float') return { expected: `type ${show(type)}, expected "float"` };
  if (bits !== 8) return { expected: `num_bits ${show(bits)}, expected 8` };
  if (symmetric === false) return { expected: 'symmetric false, expected true' };
  const strategy = weights['strategy'] ?? (size === -1 ? 'channel' : 'tensor');
  if (strategy === 'tensor' || strategy === 'channel') return { layout: strategy };
  if (strategy !== 'block')
    return { expected: `strategy ${show(strategy)}, expected "tensor", "channel" or "block"` };
  const block = blockOf(structure);
  return block === null
    ? { expected: `block_structure ${show(structure)}, expected two positive integers` }
    : { layout: block };
}

/** Rows and columns; null: it is something else. Early versions of compressed-tensors write "128x128". */
function blockOf(value: unknown): readonly [number, number] | null {
  const sizes = typeof value === 'string' && /^\d+x\d+$/.test(value) ? value.split('x').map(Number) : value;
  if (!Array.isArray(sizes) || sizes.length !== 2) return null;
  const [rows, columns] = sizes as [unknown, unknown];
  return isSize(rows) && isSize(columns) ? [rows, columns] : null;
}

const isSize = (value: unknown): value is number => Number.isSafeInteger(value) && (value as number) > 0;
