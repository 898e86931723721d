import { readFileSync } from 'node:fs';
import path from 'node:path';
import { resolveModelConfig } from '../../../ts/model/hf_config';
import { isPredictionLayer } from '../../../ts/model/prediction_layers';
import { architectureName, tensorMapping } from '../../../ts/model/tensor_names';
import type { NativeModelConfig } from '../../../ts/native/bridge';
import { CONFORMANCE } from '../../helpers/conformance';

const raw = JSON.parse(
  readFileSync(path.join(CONFORMANCE, 'models', 'mellum', 'actor', 'config.json'), 'utf8'),
) as Record<string, unknown>;
const resolve = (config: object): NativeModelConfig => resolveModelConfig(config, 'lm', 'config.json').native;

test('the conformance model: windows that turn by parameters of their own, and experts on some layers', () => {
  const c = resolve(raw);
  expect(c).toMatchObject({
    qkNorm: true,
    headDim: 8,
    slidingWindows: [6, 0, 6, 6],
    secondRopeLayers: [true, false, true, true],
    secondRopeAttentionFactor: 1,
    moeLayers: [false, true, true, true],
  });
  expect(c.moe).toMatchObject({
    numExperts: 6,
    topK: 2,
    intermediateSize: 10,
    score: 'softmax',
    normalizeTopK: true,
  });
  expect(c.secondRopeInvFreq[1]).toBeCloseTo(1000 ** -0.25, 15);
  expect(c.ropeAttentionFactor).toBeCloseTo(0.1 * Math.log(8) + 1, 15); // of yarn
  expect(architectureName(c)).toBe('MellumForCausalLM');
  const names = tensorMapping(c).map(({ hf }) => hf);
  expect(names).toEqual(
    expect.arrayContaining([
      'model.layers.0.mlp.gate_proj.weight',
      'model.layers.1.mlp.gate.weight',
      'model.layers.3.mlp.experts.5.down_proj.weight',
    ]),
  );
  expect(isPredictionLayer(c, 'mtp.layers.0.mlp.gate.weight')).toBe(true);
});

test('defaults of the Hugging Face class', () => {
  const c = resolve({ model_type: 'mellum', rope_theta: 77 }); // which it does not read
  expect(c).toMatchObject({ numLayers: 28, hiddenSize: 2304, numHeads: 32, numKvHeads: 4, vocabSize: 98304 });
  expect(new Set(c.slidingWindows)).toEqual(new Set([0]));
  expect(c.moeLayers.every(Boolean)).toBe(true);
  expect(c.ropeInvFreq[1]).toBeCloseTo(500_000 ** (-2 / 128), 15);
  expect(c.secondRopeInvFreq[1]).toBeCloseTo(10_000 ** (-2 / 128), 15);
});

test.each<[object, RegExp]>([
  [{ layer_types: ['full_attention'] }, /layer_types has 1 entries but the model has 4 layers/],
  [{ mlp_layer_types: ['dense', 'dense', 'dense', 'moe'] }, /mlp_layer_types\[3\] "moe" is not supported/],
  [{ sliding_window: null }, /layer_types\[0\] is sliding_attention but no sliding_window/],
  [
    { rope_parameters: { full_attention: { rope_type: 'default', rope_theta: 10 } } },
    /rope_parameters\.sliding_attention undefined: expected an object with rope_theta/,
  ],
  [
    { rope_parameters: { rope_type: 'default', rope_theta: 10 } },
    /rope_parameters\.sliding_attention undefined: expected an object with rope_theta/,
  ],
  [
    { rope_parameters: { full_attention: { rope_theta: 10 }, sliding_attention: { rope_type: 'default' } } },
    /rope_parameters\.sliding_attention .*: expected an object with rope_theta/,
  ],
])('%j is refused', (change, message) => {
  expect(() => resolve({ ...raw, ...change })).toThrow(message);
});
