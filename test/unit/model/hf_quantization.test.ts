import { quantizationOf, scaleLayouts } from '../../../ts/model/hf_quantization';

const WEIGHTS = { type: 'float', num_bits: 8, strategy: 'channel', symmetric: true, dynamic: false };
const channelWise = (
  changes: Record<string, unknown> = {},
  weights: Record<string, unknown> | null = WEIGHTS,
): Record<string, unknown> => ({
  quant_method: 'compressed-tensors',
  format: 'float-quantized',
  config_groups: { group_0: { targets: ['Linear'], weights, input_activations: { dynamic: true } } },
  ignore: ['lm_head'],
  ...changes,
});

test.each([
  ['fp8 with blocks', { quant_method: 'fp8', weight_block_size: [64, 32] }, [[64, 32], 'tensor']],
  [
    'DeepSeek-V3.1',
    {
      activation_scheme: 'dynamic',
      fmt: 'e4m3',
      quant_method: 'fp8',
      scale_fmt: 'ue8m0',
      weight_block_size: [128, 128],
    },
    [[128, 128], 'tensor'],
  ],
  ['fp8 that says nothing of blocks', { quant_method: 'fp8' }, [[128, 128], 'tensor']],
  ['fp8 without blocks', { quant_method: 'fp8', weight_block_size: null }, ['tensor']],
  ['a scale for each row', channelWise(), ['channel']],
  ['a scale for each matrix', channelWise({}, { ...WEIGHTS, strategy: 'tensor' }), ['tensor']],
  ['a strategy that is left out', channelWise({}, { type: 'float', num_bits: 8 }), ['tensor']],
  ['one by the size of groups', channelWise({}, { ...WEIGHTS, strategy: null, group_size: -1 }), ['channel']],
  ['blocks', channelWise({}, { ...WEIGHTS, strategy: 'block', block_structure: [128, 128] }), [[128, 128]]],
  [
    'blocks as they were written once',
    channelWise({}, { ...WEIGHTS, strategy: 'block', block_structure: '128x64' }),
    [[128, 64]],
  ],
  [
    'groups with formats of their own, one of which has no weights',
    channelWise({
      format: 'mixed-precision',
      config_groups: {
        a: { format: 'float-quantized', weights: WEIGHTS },
        b: { format: 'float-quantized', weights: { ...WEIGHTS, strategy: 'tensor' } },
        c: { weights: null },
      },
    }),
    ['channel', 'tensor'],
  ],
  [
    'a cache of keys and values',
    channelWise({ kv_cache_scheme: { type: 'float', num_bits: 8, dynamic: false } }),
    ['channel'],
  ],
])('%s is read', (_, quantization_config, layouts) => {
  expect(quantizationOf(quantization_config, 'qwen3')).toEqual({ layouts });
  expect(scaleLayouts({ model_type: 'qwen3', quantization_config })).toEqual(layouts);
  const text_config = { model_type: 'qwen3_vl_text', quantization_config };
  expect(scaleLayouts({ model_type: 'qwen3_vl', text_config })).toEqual(layouts);
});

test.each([
  [{}, /quantised by an unnamed quant_method: use the/],
  [{ quant_method: 'gptq' }, /quantised by "gptq": use the .*bfloat16 checkpoint/],
  [{ quant_method: 'mxfp4' }, /weights in MXFP4 of "qwen3": use the/],
  [{ quant_method: 'fp8', fmt: 'e5m2' }, /fmt "e5m2", expected "e4m3": load .*FineGrainedFP8Config/],
  [{ quant_method: 'fp8', expert_dtype: 'fp4' }, /expert_dtype "fp4", expected "fp8"/],
  [{ quant_method: 'fp8', weight_block_size: [128] }, /weight_block_size \[128\], expected two positive/],
  [{ quant_method: 'fp8', weight_block_size: [0, 128] }, /weight_block_size \[0,128\]/],
  [{ quant_method: 'fp8', weight_block_size: 128 }, /weight_block_size 128/],
  [channelWise({ format: 'pack-quantized' }), /the format "pack-quantized", expected "float-quantized"/],
  [channelWise({ format: 'nvfp4-pack-quantized' }), /CompressedTensorsConfig\(dequantize=True\)/],
  [channelWise({ config_groups: null }), /config_groups of which none has weights/],
  [channelWise({}, null), /config_groups of which none has weights/],
  [
    channelWise({}, { ...WEIGHTS, type: 'int' }),
    /config_groups."group_0".weights.type "int", expected "float"/,
  ],
  [channelWise({}, { ...WEIGHTS, num_bits: 4 }), /weights.num_bits 4, expected 8/],
  [channelWise({}, { ...WEIGHTS, symmetric: false }), /weights.symmetric false, expected true/],
  [channelWise({}, { ...WEIGHTS, strategy: 'group', group_size: 32 }), /weights.strategy "group", expected/],
  [channelWise({}, { ...WEIGHTS, strategy: 'block' }), /weights.block_structure undefined, expected two/],
  [
    channelWise({ sparsity_config: { format: 'sparse-24-bitmask' } }),
    /sparsity_config.format "sparse-24-bitmask"/,
  ],
  [channelWise({ transform_config: { config_groups: { u: {} } } }), /a transform_config, expected none/],
])('%j is refused', (quantization, message) => {
  const found = quantizationOf(quantization, 'qwen3');
  expect('refused' in found && found.refused).toMatch(message);
  expect('refused' in found && found.refused).toMatch(/^quantised weights are not supported but for FP8 /);
});
