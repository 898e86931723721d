import { readdirSync, readFileSync } from 'node:fs';
import path from 'node:path';
import { architectureName, tensorMapping } from '../../../ts/model/tensor_names';
import { resolve, small } from './small_config';

const models = path.join(__dirname, '../../fixtures/conformance/models');
const configOf = (name: string, role = 'actor'): Record<string, unknown> =>
  JSON.parse(readFileSync(path.join(models, name, role, 'config.json'), 'utf8'));

describe('conformance models', () => {
  test.each(readdirSync(models))('%s resolves, and its class is the one that saved it', (name) => {
    const actor = configOf(name);
    const critic = configOf(name, 'critic');
    const lm = resolve(actor);
    const value = resolve(critic, 'value');
    const saved = (actor.architectures as string[]).map(
      (of) => of.replace('ForConditionalGeneration', 'ForCausalLM'), // of a model with images the language model
    );
    expect([architectureName(lm)]).toEqual(saved);
    expect([architectureName(value)]).toEqual(critic.architectures);
    expect(lm.slidingWindows).toHaveLength(lm.numLayers);
    expect(value.tiedEmbeddings).toBe(false);
    expect(value.finalSoftcap).toBe(0);
    const names = tensorMapping(lm).map((m) => `${m.hf} ${m.part ?? ''}`.trim());
    expect(new Set(names).size).toBe(names.length);
    expect(names.includes('lm_head.weight')).toBe(!lm.tiedEmbeddings);
  });

  test('traps', () => {
    expect(resolve(configOf('qwen2_tied')).slidingWindows).toEqual([0, 0, 0]); // use_sliding_window: false
    expect(resolve(configOf('qwen2_tied'))).toMatchObject({
      headDim: 14,
      qkvBias: true,
      outputBias: false,
      tiedEmbeddings: true,
    });
    expect(resolve(configOf('mistral_swa')).slidingWindows).toEqual([5, 5]);
    expect(resolve(configOf('qwen3_headdim'))).toMatchObject({ headDim: 24, qkNorm: true, numKvHeads: 2 });
    expect(resolve(configOf('gemma2'))).toMatchObject({
      slidingWindows: [6, 0],
      normUnitOffset: true,
      postNorms: true,
      attentionScale: 24 ** -0.5,
      attentionSoftcap: 8,
      finalSoftcap: 12,
      activation: 'gelu_tanh',
      embeddingScale: Math.sqrt(48),
    });
    expect(resolve(configOf('mixtral'))).toMatchObject({
      headDim: 12,
      moe: {
        numExperts: 4,
        topK: 2,
        intermediateSize: 40,
        normalizeTopK: true,
        sharedIntermediateSize: 0,
      },
      moeLayers: [true, true],
    });
    expect(resolve(configOf('qwen3_moe')).moe).toEqual({
      numExperts: 6,
      topK: 2,
      intermediateSize: 24,
      normalizeTopK: true,
      sharedIntermediateSize: 0,
      sharedGate: true,
      score: 'softmax',
      wideLogits: false,
      latentSize: 0,
      correctionBias: false,
      groups: 1,
      topGroups: 1,
      groupBest: 1,
      biases: false,
      routedScale: 1,
      normalizerEps: 0,
      besideMlp: false,
    });
    expect(resolve(configOf('qwen2_moe'))).toMatchObject({
      qkvBias: true,
      outputBias: false,
      qkNorm: false,
      slidingWindows: [0, 0, 0],
      moe: {
        numExperts: 6,
        topK: 2,
        intermediateSize: 24,
        normalizeTopK: false,
        sharedIntermediateSize: 40,
      },
      moeLayers: [true, false, true],
    });
    expect(resolve(configOf('gpt2'))).toMatchObject({
      positions: 'learned',
      norm: 'layer',
      gatedMlp: false,
      intermediateSize: 192,
    });
  });

  test('both spellings of RoPE say the same', () => {
    const hub = {
      ...small,
      model_type: 'llama',
      rope_theta: 5000,
      rope_scaling: { type: 'linear', factor: 2 },
    };
    const five = {
      ...small,
      model_type: 'llama',
      rope_parameters: { rope_theta: 5000, rope_type: 'linear', factor: 2 },
    };
    expect(resolve(hub).ropeInvFreq).toEqual(resolve(five).ropeInvFreq);
    expect(resolve(hub).ropeInvFreq[1]).toBeCloseTo(1 / 5000 ** (2 / 16) / 2, 15);
    expect(resolve(hub).maxPositions).toBe(4096);
  });
});

test('Phi-3 keeps its fused matrices whole', () => {
  const c = resolve(configOf('phi3'));
  const layer = tensorMapping(c).filter(({ hf }) => hf.startsWith('model.layers.1.') && hf.includes('proj'));
  expect(layer.map(({ hf, param, shape }) => [hf.slice(15), param.slice(9), shape])).toEqual([
    ['self_attn.qkv_proj.weight', 'attn.qkv.weight', [64, 32]],
    ['self_attn.o_proj.weight', 'attn.out.weight', [32, 32]],
    ['mlp.gate_up_proj.weight', 'mlp.in.weight', [56, 32]],
    ['mlp.down_proj.weight', 'mlp.out.weight', [32, 28]],
  ]);
  expect(c.ropeInvFreq).toHaveLength(2);
  expect(c.slidingWindows).toEqual([6, 6, 6]);
  expect(c.maxPositions).toBe(64);
});
