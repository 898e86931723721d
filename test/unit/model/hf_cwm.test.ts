import { resolve, small } from './small_config';

const llama3 = {
  rope_type: 'llama3',
  factor: 16,
  high_freq_factor: 4,
  low_freq_factor: 1,
  original_max_position_embeddings: 8192,
};

test('CWM: Llama with a window on three layers of four, the first of which sees all', () => {
  const hub = { ...small, model_type: 'cwm', rope_theta: 1e6, rope_scaling: llama3 };
  const c = resolve(hub);
  expect(c.slidingWindows).toEqual([0, 8192, 8192, 8192]);
  expect(c).toMatchObject({ headDim: 128, qkvBias: false, normEps: 1e-5, maxPositions: 131072 });
  // Nothing of RoPE, or its theta alone, which transformers then leaves unread.
  const { rope_scaling: _, ...bare } = hub;
  expect(resolve(bare)).toEqual(c);
  expect(resolve({ ...bare, rope_theta: 10 })).toEqual(c);
  expect(resolve({ ...bare, rope_scaling: {} })).toEqual(c);
  expect(resolve({ ...bare, rope_parameters: {} }).ropeInvFreq).not.toEqual(c.ropeInvFreq);
  expect(resolve({ ...hub, rope_theta: 10 }).ropeInvFreq[1]).toBeCloseTo(10 ** (-1 / 64), 15);
  const types = ['sliding_attention', 'full_attention', 'full_attention', 'full_attention'];
  expect(resolve({ ...hub, layer_types: types, sliding_window: 3 }).slidingWindows).toEqual([3, 0, 0, 0]);
  expect(() => resolve({ ...hub, sliding_window: null })).toThrow(/no sliding_window/);
});
