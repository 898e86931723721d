// What config.json says of GPT-2: learned positions, layer norms, biases everywhere, no gate in the MLP.
import type { NativeModelConfig } from '../native/bridge';
import { activation, invalid, ONE_ROPE, ONE_SHAPE } from './hf_decoder';
import type { FamilyConfig } from './hf_schema';

export function gpt2(c: FamilyConfig<'gpt2'>, where: string): NativeModelConfig {
  if (c.scale_attn_by_inverse_layer_idx)
    throw invalid(where, 'scale_attn_by_inverse_layer_idx: true is not supported; supported: false');
  if (c.add_cross_attention)
    throw invalid(where, 'add_cross_attention: true is not supported; supported: false');
  const headDim = Math.floor(c.n_embd / c.n_head);
  if (headDim * c.n_head !== c.n_embd)
    throw invalid(where, `n_embd ${c.n_embd} does not divide by n_head ${c.n_head}`);
  return {
    family: 'gpt2',
    head: 'lm',
    vocabSize: c.vocab_size,
    hiddenSize: c.n_embd,
    numLayers: c.n_layer,
    numHeads: c.n_head,
    numKvHeads: c.n_head,
    headDim,
    intermediateSize: c.n_inner ?? 4 * c.n_embd,
    maxPositions: c.n_positions,
    norm: 'layer',
    normEps: c.layer_norm_epsilon,
    normUnitOffset: false,
    inputNorms: true,
    postNorms: false,
    qkNorm: false,
    wholeQkNorm: false,
    attentionScale: c.scale_attn_weights ? headDim ** -0.5 : 1,
    attentionSoftcap: 0,
    finalSoftcap: 0,
    logitsScaling: 1,
    residualScale: 1,
    attentionGate: false,
    gatesApart: false,
    attentionSinks: false,
    slidingWindows: new Array(c.n_layer).fill(0),
    qkvBias: true,
    outputBias: true,
    mlpBias: true,
    gatedMlp: false,
    activation: activation(c.activation_function, 'activation_function', where),
    positions: 'learned',
    ropeInvFreq: new Float64Array(0),
    ropeAttentionFactor: 1,
    ropePairs: false,
    ...ONE_ROPE,
    ...ONE_SHAPE,
    embeddingScale: 1,
    tiedEmbeddings: c.tie_word_embeddings,
    valueBias: false,
    latent: null,
    moe: null,
    moeLayers: [],
    linear: null,
    linearLayers: [],
    bareLayers: [],
    vision: null,
    prediction: null,
  };
}
