import { resolveModelConfig } from '../../../ts/model/hf_config';
import type { NativeModelConfig } from '../../../ts/native/bridge';

const resolve = (raw: object): NativeModelConfig => resolveModelConfig(raw, 'lm', 'config.json').native;
const small = { hidden_size: 64, num_attention_heads: 4, num_key_value_heads: 2, num_hidden_layers: 4 };

describe('layers that turn in two ways', () => {
  const gemma = { ...small, model_type: 'gemma3_text', head_dim: 4, num_hidden_layers: 3, sliding_window: 5 };

  test('Gemma 3: those with a window by rope_local_base_freq, and a scaling is that of the others', () => {
    const hub = {
      ...gemma,
      sliding_window_pattern: 2,
      rope_theta: 100,
      rope_local_base_freq: 25,
      rope_scaling: { rope_type: 'linear', factor: 8 },
    };
    const five = {
      ...gemma,
      layer_types: ['sliding_attention', 'full_attention', 'sliding_attention'],
      rope_parameters: {
        full_attention: { rope_type: 'linear', factor: 8, rope_theta: 100 },
        sliding_attention: { rope_type: 'default', rope_theta: 25 },
      },
    };
    const c = resolve(hub);
    expect(resolve(five)).toEqual(c);
    expect([Array.from(c.ropeInvFreq), Array.from(c.secondRopeInvFreq)]).toEqual([
      [1 / 8, 1 / 10 / 8],
      [1, 1 / 5],
    ]);
    expect(c).toMatchObject({
      slidingWindows: [5, 0, 5],
      secondRopeLayers: [true, false, true],
      secondRopeAttentionFactor: 1,
      maxPositions: 131072, // those of layers without a scaling
      qkNorm: true,
      postNorms: true,
      normUnitOffset: true,
      attentionScale: 1 / 16,
      attentionSoftcap: 0,
      finalSoftcap: 0,
      embeddingScale: 8,
      tiedEmbeddings: true,
    });
  });

  test('Gemma 3 when config.json does not say', () => {
    const c = resolve({ ...gemma, num_hidden_layers: 7 });
    expect(c.slidingWindows).toEqual([5, 5, 5, 5, 5, 0, 5]);
    expect([c.ropeInvFreq[1], c.secondRopeInvFreq[1]]).toEqual([1 / 1000, 1 / 100]);
    expect(resolve({ ...gemma, rope_parameters: { full_attention: null } })).toEqual(resolve(gemma));
  });

  test('SmolLM3: every fourth not at all, or those of no_rope_layers; windows are on these', () => {
    const smol = { ...small, model_type: 'smollm3', num_hidden_layers: 5 };
    const turns = { secondRopeLayers: [false, false, false, true, false], slidingWindows: [0, 0, 0, 0, 0] };
    expect(resolve(smol)).toMatchObject({ ...turns, secondRopeInvFreq: new Float64Array(0) });
    expect(resolve(smol).ropeInvFreq[1]).toBeCloseTo(2e6 ** (-2 / 16), 15);
    const windows = { use_sliding_window: true, sliding_window: 3 };
    expect(resolve({ ...smol, ...windows, no_rope_layer_interval: 2 })).toMatchObject({
      secondRopeLayers: [false, true, false, true, false],
      slidingWindows: [0, 3, 0, 3, 0],
    });
    const given = { no_rope_layers: [0, 1, 1, 1, 0], layer_types: new Array(5).fill('full_attention') };
    expect(resolve({ ...smol, ...windows, ...given })).toMatchObject({
      secondRopeLayers: [true, false, false, false, true],
      slidingWindows: [0, 0, 0, 0, 0],
    });
  });

  test.each<[object, RegExp]>([
    [{ ...gemma, rope_parameters: { rope_type: 'default' } }, /rope_parameters: expected those of full_att/],
    [{ ...gemma, rope_parameters: { full_attention: 3 } }, /rope_parameters: expected those of full_att/],
    [{ ...gemma, attn_logit_softcapping: 50 }, /attn_logit_softcapping: Gemma 3 has no cap/],
    [{ ...gemma, use_bidirectional_attention: true }, /use_bidirectional_attention: true is not supported/],
    [{ ...gemma, sliding_window: null }, /layer_types\[0\] is sliding_attention but no sliding_window/],
    [
      { ...small, model_type: 'smollm3', no_rope_layers: [1] },
      /no_rope_layers has 1 entries but the model has 4 layers/,
    ],
  ])('%j', (raw, message) => {
    expect(() => resolve(raw)).toThrow(message);
  });
});

test('dynamic: up to max_position_embeddings as without a scaling', () => {
  const plain = { ...small, model_type: 'llama', rope_theta: 5e5, max_position_embeddings: 300 };
  expect(resolve({ ...plain, rope_scaling: { type: 'dynamic', factor: 4 } })).toEqual(resolve(plain));
});

describe('longrope', () => {
  const [short_factor, long_factor] = [
    [1, 1.5],
    [2, 4],
  ];
  // Heads of 8, of which a half turns: Phi-4-mini in small.
  const phi = {
    model_type: 'phi3',
    hidden_size: 32,
    num_attention_heads: 4,
    num_hidden_layers: 2,
    max_position_embeddings: 1024,
    original_max_position_embeddings: 64,
    partial_rotary_factor: 0.5,
    rope_theta: 100,
  };

  test('has the short factors up to the length of pretraining, beyond which a sequence is refused', () => {
    for (const type of ['longrope', 'su', 'yarn']) {
      const c = resolve({ ...phi, rope_scaling: { type, short_factor, long_factor } });
      expect(Array.from(c.ropeInvFreq)).toEqual([1, 1 / (10 * 1.5)]);
      expect(c.ropeAttentionFactor).toBeCloseTo(Math.sqrt(1 + Math.log(16) / Math.log(64)), 15);
      expect(c.maxPositions).toBe(64);
    }
    const given = { rope_type: 'longrope', short_factor, long_factor, attention_factor: 1.25 };
    expect(resolve({ ...phi, rope_scaling: given }).ropeAttentionFactor).toBe(1.25);
    const { original_max_position_embeddings: _, ...plain } = phi;
    const c = resolve({ ...plain, rope_scaling: given, max_position_embeddings: 131072 });
    expect(c.maxPositions).toBe(4096); // of the class
  });

  test('reaches as far as the model where long and short factors are the same', () => {
    const rope_scaling = { type: 'longrope', short_factor, long_factor: short_factor };
    expect(resolve({ ...phi, rope_scaling }).maxPositions).toBe(1024);
  });

  test.each<[object, RegExp]>([
    [
      { type: 'longrope', short_factor },
      /rope_scaling.long_factor is missing, rope type 'longrope' needs it/,
    ],
    [{ type: 'su', short_factor: [1], long_factor }, /rope_scaling.short_factor: expected 2 factors, got 1/],
    [
      { type: 'linear', factor: 2 },
      /rope_scaling.rope_type "linear" is not supported; supported: default, longrope, su, yarn/,
    ],
    [{ type: 'longrope', short_factor: [1, 0], long_factor }, /rope_scaling.short_factor.1: /],
  ])('%j', (rope_scaling, message) => {
    expect(() => resolve({ ...phi, rope_scaling })).toThrow(message);
  });
});
