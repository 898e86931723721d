import { architectureName } from '../../../ts/model/tensor_names';
import { resolve, small } from './small_config';

const rope = {
  rope_type: 'yarn',
  rope_theta: 1e6,
  factor: 4,
  original_max_position_embeddings: 64,
  mscale: 1,
  mscale_all_dim: 1,
  llama_4_scaling_beta: 0.1,
};
const ministral = { ...small, model_type: 'ministral3', max_position_embeddings: 256, rope_parameters: rope };

test('Ministral 3 is Mistral up to the length of pretraining, from which on its queries are scaled', () => {
  const c = resolve(ministral);
  expect(c).toMatchObject({
    headDim: 128,
    maxPositions: 64,
    ropeAttentionFactor: 1,
    attentionScale: 128 ** -0.5,
  });
  expect(c.slidingWindows).toEqual([0, 0, 0, 0]);
  expect(architectureName(c)).toBe('Ministral3ForCausalLM');
  const { rope_parameters: _, ...hub } = ministral;
  const { rope_theta, ...scaling } = rope;
  expect(resolve({ ...hub, rope_theta, rope_scaling: scaling })).toEqual(c);
  for (const llama_4_scaling_beta of [0, null, undefined])
    expect(resolve({ ...ministral, rope_parameters: { ...rope, llama_4_scaling_beta } })).toEqual({
      ...c,
      maxPositions: 256,
    });
  expect(resolve({ ...ministral, sliding_window: 7 }).slidingWindows).toEqual([7, 7, 7, 7]);
  expect(resolve({ model_type: 'ministral3' })).toMatchObject({ maxPositions: 16384, numLayers: 34 });
});

test.each<[object, RegExp]>([
  [
    { rope_parameters: { ...rope, llama_4_scaling_beta: 'much' } },
    /rope_parameters.llama_4_scaling_beta: expected a number, got "much"/,
  ],
  [
    { rope_parameters: { ...rope, original_max_position_embeddings: undefined } },
    /rope_parameters.original_max_position_embeddings is missing, llama_4_scaling_beta needs it/,
  ],
  [
    {
      sliding_window: 4,
      layer_types: ['full_attention', 'sliding_attention', 'full_attention', 'full_attention'],
    },
    /layer_types: model_type 'ministral3' has the sliding window on every layer/,
  ],
])('no model is like that: %j', (changes, message) => {
  expect(() => resolve({ ...ministral, ...changes })).toThrow(message);
});
