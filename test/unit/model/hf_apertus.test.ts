import { resolveModelConfig } from '../../../ts/model/hf_config';
import { tensorMapping } from '../../../ts/model/tensor_names';

const resolve = (raw: object) => resolveModelConfig(raw, 'lm', 'config.json').native;
/** What its published files say, with keys that transformers does not read. */
const apertus = {
  model_type: 'apertus',
  vocab_size: 131072,
  hidden_size: 4096,
  intermediate_size: 21504,
  num_hidden_layers: 2,
  num_attention_heads: 32,
  num_key_value_heads: 8,
  hidden_act: 'xielu',
  max_position_embeddings: 65536,
  rms_norm_eps: 1e-5,
  attention_bias: false,
  mlp_bias: false,
  qk_norm: true,
  post_norm: false,
  rope_theta: 12000000,
  rope_scaling: {
    factor: 8,
    high_freq_factor: 4,
    low_freq_factor: 1,
    original_max_position_embeddings: 8192,
    rope_type: 'llama3',
  },
};
const { rope_scaling, rope_theta, ...withoutRope } = apertus;

test('Llama with norms of queries and keys, without a gate, and with a trained activation', () => {
  const { rope_scaling: _, ...others } = apertus;
  const llama = resolve({ ...others, rope_scaling, model_type: 'llama', hidden_act: 'silu' });
  expect(resolve(apertus)).toEqual({
    ...llama,
    family: 'apertus',
    qkNorm: true,
    gatedMlp: false,
    activation: 'xielu',
  });
  expect(resolve({ ...apertus, hidden_act: 'relu2' }).activation).toBe('relu2');
  expect(resolve({ ...apertus, attention_bias: true })).toMatchObject({ qkvBias: true, outputBias: true });
});

test('without parameters of RoPE it has those of the published models, whatever the theta', () => {
  const published = resolve(apertus).ropeInvFreq;
  for (const more of [{}, { rope_theta: 10000 }, { rope_parameters: null }, { rope_scaling: {} }])
    expect(resolve({ ...withoutRope, ...more }).ropeInvFreq).toEqual(published);
  const plain = { rope_parameters: { rope_type: 'default' } };
  const turning = resolve({ ...withoutRope, ...plain }).ropeInvFreq;
  expect(turning[1]).toBeCloseTo(12e6 ** (-2 / 128), 14);
  expect(resolve({ ...withoutRope, ...plain, rope_theta: 10000 }).ropeInvFreq[1]).toBeCloseTo(
    10000 ** (-2 / 128),
    14,
  );
  // An empty object is one: nothing is scaled.
  expect(resolve({ ...withoutRope, rope_parameters: {} }).ropeInvFreq).toEqual(turning);
});

test('names of norms and of what the activation has', () => {
  const mapping = tensorMapping(resolve(apertus));
  const of = (name: string) => mapping.find(({ hf }) => hf === `model.layers.1.${name}`);
  expect(of('attention_layernorm.weight')).toMatchObject({ param: 'layers.1.attn_norm.weight' });
  expect(of('feedforward_layernorm.weight')).toMatchObject({ param: 'layers.1.mlp_norm.weight' });
  expect(of('mlp.up_proj.weight')).toMatchObject({ param: 'layers.1.mlp.in.weight', shape: [21504, 4096] });
  expect(of('mlp.gate_proj.weight')).toBeUndefined();
  for (const alpha of ['alpha_p', 'alpha_n'])
    expect(of(`mlp.act_fn.${alpha}`)).toEqual({
      hf: `model.layers.1.mlp.act_fn.${alpha}`,
      param: `layers.1.mlp.${alpha}`,
      shape: [1],
      row: 0,
      rows: 1,
      transpose: false,
    });
  // Numbers without dimensions in the files.
  for (const constant of ['beta', 'eps'])
    expect(of(`mlp.act_fn.${constant}`)).toMatchObject({
      param: `layers.1.mlp.${constant}`,
      shape: [],
      rows: 1,
      buffer: true,
    });
  const plain = tensorMapping(resolve({ ...apertus, hidden_act: 'relu2' }));
  expect(plain.filter(({ hf }) => hf.includes('act_fn'))).toEqual([]);
});

test.each([
  [{ qk_norm: false }, /qk_norm/],
  [{ post_norm: true }, /post_norm/],
  [{ mlp_bias: true }, /mlp_bias/],
  [{ hidden_act: 'swiglu' }, /hidden_act "swiglu" is not supported/],
])('%j is refused: no published model has it', (change, message) => {
  expect(() => resolve({ ...apertus, ...change })).toThrow(message);
});

test('xIELU is of this family alone', () => {
  expect(() => resolve({ ...apertus, model_type: 'llama' })).toThrow(/hidden_act "xielu" is not supported/);
});
