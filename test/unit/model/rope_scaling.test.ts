import { resolve, small } from './small_config';

describe('RoPE scaling', () => {
  const base = { ...small, model_type: 'llama', head_dim: 16, max_position_embeddings: 128 };
  // Reference values: transformers 5.17, modeling_rope_utils, in float32.
  test.each<[string, object, number[], number]>([
    [
      'llama3',
      {
        rope_type: 'llama3',
        rope_theta: 500000,
        factor: 8,
        low_freq_factor: 1,
        high_freq_factor: 4,
        original_max_position_embeddings: 32,
      },
      [
        1.0, 0.024240345, 0.0047007538, 0.00091158313, 0.00017677668, 3.4281024e-5, 6.6478697e-6,
        1.2891732e-6,
      ],
      1,
    ],
    [
      'llama3, with a frequency between those that stay and those that are divided',
      {
        rope_type: 'llama3',
        rope_theta: 10000,
        factor: 8,
        low_freq_factor: 1,
        high_freq_factor: 4,
        original_max_position_embeddings: 512,
      },
      [1.0, 0.31622776, 0.1, 0.018496677, 0.00125, 0.00039528473, 0.00012500001, 3.9528473e-5],
      1,
    ],
    [
      'yarn',
      { rope_type: 'yarn', rope_theta: 10000, factor: 4, original_max_position_embeddings: 32 },
      [1.0, 0.19764236, 0.025, 0.0079056947, 0.0024999999, 0.00079056947, 0.00025000001, 7.9056947e-5],
      1.138629436111989,
    ],
    [
      'yarn with mscale, betas and no truncation',
      {
        rope_type: 'yarn',
        rope_theta: 10000,
        factor: 40,
        original_max_position_embeddings: 4096,
        mscale: 1,
        mscale_all_dim: 0.7,
        beta_fast: 16,
        beta_slow: 2,
        truncate: false,
      },
      [1.0, 0.31622776, 0.1, 0.031622779, 0.0057901046, 0.00012395246, 2.4999999e-5, 7.9056945e-6],
      1.0879546075066122,
    ],
  ])('%s', (_name, rope_parameters, invFreq, factor) => {
    const c = resolve({ ...base, rope_parameters });
    for (const [i, f] of invFreq.entries()) expect(c.ropeInvFreq[i]! / f).toBeCloseTo(1, 5);
    expect(c.ropeInvFreq).toHaveLength(invFreq.length);
    expect(c.ropeAttentionFactor).toBeCloseTo(factor, 6);
  });

  test('truncate: null truncates nothing', () => {
    const yarn = (truncate?: boolean | null) =>
      resolve({
        ...base,
        rope_parameters: {
          rope_type: 'yarn',
          factor: 4,
          original_max_position_embeddings: 32,
          beta_fast: 4,
          truncate,
        },
      }).ropeInvFreq;
    expect(yarn(null)).toEqual(yarn(false));
    expect(yarn()).toEqual(yarn(true));
    expect(yarn()).not.toEqual(yarn(false));
  });

  test('attention_factor overrides, yarn reaches factor times the original length', () => {
    const c = resolve({
      ...base,
      rope_scaling: { type: 'yarn', factor: 4, original_max_position_embeddings: 64, attention_factor: 1.5 },
    });
    expect([c.ropeAttentionFactor, c.maxPositions]).toEqual([1.5, 256]);
  });
});
