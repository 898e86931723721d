import { cpSync, mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { loadModelDirectory } from '../../../ts/checkpoint/model_dir';
import { adapterTargets } from '../../../ts/model/adapter_sites';
import { resolveModelConfig } from '../../../ts/model/hf_config';
import { architectureName, tensorMapping } from '../../../ts/model/tensor_names';
import type { NativeModelConfig } from '../../../ts/native/bridge';
import { CONFORMANCE } from '../../helpers/conformance';
import { changeTensorHeader } from '../../helpers/tensor_header';

const recorded = path.join(CONFORMANCE, 'models', 'olmo_hybrid', 'actor');
const raw = JSON.parse(readFileSync(path.join(recorded, 'config.json'), 'utf8')) as object;
const resolve = (config: object): NativeModelConfig => resolveModelConfig(config, 'lm', 'config.json').native;

test('the conformance model: delta rule with input norms, attention with norms behind it', () => {
  const c = resolve(raw);
  expect(c).toMatchObject({
    inputNorms: false,
    postNorms: true,
    wholeQkNorm: true,
    positions: 'none',
    linearLayers: [true, true, false, true],
  });
  expect(c.linear).toEqual({
    rule: 'gated_delta',
    keyHeads: 2,
    valueHeads: 4,
    keyDim: 6,
    valueDim: 5,
    matrices: 'apart',
    convBias: false,
    convWidth: 4,
    leastStep: 0,
    betaScale: 2,
    normEps: 1e-5,
  });
  expect(architectureName(c)).toBe('OlmoHybridForCausalLM');
});

test('OLMo Hybrid 7B: parameters and names as in the published files', () => {
  const mapping = tensorMapping(
    resolve({ model_type: 'olmo_hybrid', rope_parameters: { rope_theta: null } }),
  );
  const weights = mapping.reduce((sum, { shape }) => sum + shape.reduce((a, b) => a * b, 1), 0);
  expect(weights).toBe(7_430_870_688);
  expect(mapping).toHaveLength(523);
  const layer = (i: number) =>
    mapping
      .filter(({ hf }) => hf.startsWith(`model.layers.${i}.`))
      .map(({ hf, shape }) => [hf.replace(`model.layers.${i}.`, ''), shape]);
  expect(layer(0)).toEqual([
    ['input_layernorm.weight', [3840]],
    ['linear_attn.q_proj.weight', [2880, 3840]],
    ['linear_attn.k_proj.weight', [2880, 3840]],
    ['linear_attn.v_proj.weight', [5760, 3840]],
    ['linear_attn.g_proj.weight', [5760, 3840]],
    ['linear_attn.b_proj.weight', [30, 3840]],
    ['linear_attn.a_proj.weight', [30, 3840]],
    ['linear_attn.q_conv1d.weight', [2880, 1, 4]],
    ['linear_attn.k_conv1d.weight', [2880, 1, 4]],
    ['linear_attn.v_conv1d.weight', [5760, 1, 4]],
    ['linear_attn.A_log', [30]],
    ['linear_attn.dt_bias', [30]],
    ['linear_attn.o_norm.weight', [192]],
    ['linear_attn.o_proj.weight', [3840, 5760]],
    ['post_attention_layernorm.weight', [3840]],
    ['mlp.gate_proj.weight', [11008, 3840]],
    ['mlp.up_proj.weight', [11008, 3840]],
    ['mlp.down_proj.weight', [3840, 11008]],
  ]);
  expect(layer(3).filter(([name]) => String(name).includes('norm'))).toEqual([
    ['self_attn.q_norm.weight', [3840]],
    ['self_attn.k_norm.weight', [3840]],
    ['post_attention_layernorm.weight', [3840]],
    ['post_feedforward_layernorm.weight', [3840]],
  ]);
});

test('layers where config.json does not say', () => {
  const layers = (num_hidden_layers: number) =>
    resolve({ model_type: 'olmo_hybrid', num_hidden_layers }).linearLayers;
  expect(layers(6)).toEqual([true, true, true, false, true, true]);
  expect(layers(3)).toEqual([true, true, false]);
});

test.each<[object, number]>([
  [{}, 10_000],
  [{ rope_parameters: null }, 10_000],
  [{ rope_theta: 500_000 }, 500_000],
  [{ rope_parameters: { rope_type: 'default', rope_theta: 1000 }, rope_theta: null }, 1000],
  [{ rope_theta: null }, 0],
  [{ rope_parameters: { rope_theta: null, rope_type: 'default' } }, 0],
])('%j turns by %d', (rope, theta) => {
  const c = resolve({ model_type: 'olmo_hybrid', ...rope });
  expect(c.positions).toBe(theta === 0 ? 'none' : 'rope');
  if (theta > 0) expect(c.ropeInvFreq[1]).toBeCloseTo(theta ** (-2 / 128), 15);
  else expect(c.ropeInvFreq).toHaveLength(0);
});

test.each<[object, RegExp]>([
  [{ hidden_act: 'gelu' }, /hidden_act "gelu" is not supported for this model_type/],
  [{ linear_conv_kernel_dim: 5 }, /linear_conv_kernel_dim 5 is not supported; supported: 1 to 4/],
  [{ linear_num_value_heads: 3 }, /linear_num_value_heads 3 does not divide by linear_num_key_heads 2/],
  [{ layer_types: ['sliding_attention'] }, /layer_types has 1 entries but the model has 4 layers/],
])('%j is refused', (change, message) => {
  expect(() => resolve({ ...raw, ...change })).toThrow(message);
});

test('adapters on what each layer projects', () => {
  const c = resolve(raw);
  const of = (layer: number) =>
    adapterTargets(c, tensorMapping(c)).flatMap(({ module, row }) =>
      module.startsWith(`model.layers.${layer}.`) && !module.includes('.mlp.')
        ? [[module.split('.').at(-1), row]]
        : [],
    );
  expect(of(0)).toEqual([
    ['q_proj', 0],
    ['k_proj', 12],
    ['v_proj', 24],
    ['g_proj', 44],
    ['b_proj', 64],
    ['a_proj', 68],
    ['o_proj', 0],
  ]);
  expect(of(2).map(([name]) => name)).toEqual(['q_proj', 'k_proj', 'v_proj', 'o_proj']);
});

test('a convolution in equal parts, as transformers 5 cuts it', () => {
  const name = (part: string) => `model.layers.0.linear_attn.${part}_conv1d.weight`;
  const rowsOf = (q: number, k: number, v: number) => {
    const stored = new Map(
      Object.entries({ q, k, v }).map(([part, n]) => [name(part), { shape: [n, 1, 4] }]),
    );
    return tensorMapping(resolve(raw), stored)
      .filter(({ param }) => param === 'layers.0.delta.conv.weight')
      .map(({ hf, row, rows }) => [hf, row, rows]);
  };
  const published = [
    [name('q'), 0, 12],
    [name('k'), 12, 12],
    [name('v'), 24, 20],
  ];
  expect(rowsOf(12, 12, 20)).toEqual(published);
  expect(rowsOf(15, 15, 14)).toEqual([
    [name('q'), 0, 15],
    [name('k'), 15, 15],
    [name('v'), 30, 14],
  ]);
  expect(rowsOf(15, 15, 15)).toEqual(published); // another model's: their shapes are told
});

test('norms under the names that transformers 5 gives them where it saves a model', () => {
  const directory = mkdtempSync(path.join(tmpdir(), 'troupe-olmo-hybrid-'));
  try {
    cpSync(recorded, directory, { recursive: true });
    changeTensorHeader(path.join(directory, 'model.safetensors'), (header) => {
      for (const name of Object.keys(header)) {
        const saved = name
          .replace('input_layernorm', 'attention_layer_norm')
          .replace('post_attention_layernorm', 'feedforward_layer_norm');
        const entry = header[name] as (typeof header)[string];
        delete header[name];
        header[saved] = entry;
      }
    });
    const published = loadModelDirectory(recorded, 'lm').mapping;
    const { mapping } = loadModelDirectory(directory, 'lm');
    expect(mapping.map(({ param, row }) => [param, row])).toEqual(
      published.map(({ param, row }) => [param, row]),
    );
    const norms = mapping
      .filter(({ hf }) => /layers\.[23]\..*layer_?norm/.test(hf))
      .map(({ hf, param }) => [hf, param]);
    expect(norms).toEqual([
      ['model.layers.2.feedforward_layer_norm.weight', 'layers.2.attn_post_norm.weight'],
      ['model.layers.2.post_feedforward_layernorm.weight', 'layers.2.mlp_post_norm.weight'],
      ['model.layers.3.attention_layer_norm.weight', 'layers.3.attn_norm.weight'],
      ['model.layers.3.feedforward_layer_norm.weight', 'layers.3.mlp_norm.weight'],
    ]);
  } finally {
    rmSync(directory, { recursive: true });
  }
});
