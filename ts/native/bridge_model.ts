// A resolved model, as the functions of the native addon take it (bridge.ts); the rules of bridge_data.ts hold.
export interface NativeMoeConfig {
  numExperts: number;
  topK: number;
  intermediateSize: number;
  normalizeTopK: boolean;
  /** Of the expert that every token goes to; 0: none. */
  sharedIntermediateSize: number;
  /** That expert's output is weighted by a gate of its own. */
  sharedGate: boolean;
  score: 'softmax' | 'sigmoid';
  /** The router's product is in float32 whatever the compute dtype. */
  wideLogits: boolean;
  /** Of what experts see in place of a row (native/model/expert_latent.h); 0: the row itself. */
  latentSize: number;
  /** A buffer that is added to the scores for the choice alone. */
  correctionBias: boolean;
  /** A token chooses among the experts of `topGroups` of so many equal parts. */
  groups: number;
  topGroups: number;
  /** A group ranks by the sum of its so many best scores. */
  groupBest: number;
  /** Factor of the routing weights. */
  routedScale: number;
  /** Added to the sum that the routing weights are divided by. */
  normalizerEps: number;
  /** Of the router and of both matrices of every expert. */
  biases: boolean;
  /** The layer's MLP takes the same row, through norms of its own (native/model/block_beside.cc). */
  besideMlp: boolean;
}

/** Of attention: key heads, and the numbers of each head. */
export interface NativeHeadShape {
  numKvHeads: number;
  headDim: number;
}

/** Multi-head latent attention (native/model/latent_projection.h). */
export interface NativeLatentConfig {
  /** 0: one matrix makes the queries. */
  queryRank: number;
  keyRank: number;
  /** Of a query and a key: what does not turn, and what does. */
  stillDim: number;
  rotaryDim: number;
  valueDim: number;
  /** Numbers 2i and 2i + 1 turn together, else i and i + rotaryDim / 2. */
  interleaved: boolean;
  /** Of the latents' norms. */
  normEps: number;
}

/** Linear attention, or a short convolution, in the place of attention (native/model/linear_attention.h). */
export interface NativeLinearConfig {
  /** short_conv: as many key heads as value heads, which are its channels: of no numbers, and of one. */
  rule: 'gated_delta' | 'mamba2' | 'short_conv';
  /** Of queries and keys; of Mamba 2 its groups. */
  keyHeads: number;
  /** Of values and states: a multiple. */
  valueHeads: number;
  keyDim: number;
  valueDim: number;
  /**
   * Of the gated delta rule, of which matrices files have the input projection: one of q, k and v, then z, b and a (Qwen3.5); one of q, k, v and z
   * by key head, and one of b and a (Qwen3-Next); or each apart (OLMo Hybrid).
   */
  matrices: 'joined' | 'by_key_head' | 'apart';
  /** Of the convolution; of a short one of both projections, too. */
  convBias: boolean;
  /** Rows that go into one of the convolution: at most 4. */
  convWidth: number;
  /** Of Mamba 2: no step is below it. */
  leastStep: number;
  /** Of the gated delta rule: multiplies the sigmoid that says how much of what a key held is replaced. */
  betaScale: number;
  /** Of the gated norm. */
  normEps: number;
}

/** The tower that reads images (native/model/vision_tower.h). */
export interface NativeVisionConfig {
  numLayers: number;
  hiddenSize: number;
  numHeads: number;
  intermediateSize: number;
  gatedMlp: boolean;
  activation: 'silu' | 'gelu' | 'gelu_tanh' | 'quick_gelu' | 'relu' | 'relu2';
  norm: 'rms' | 'layer';
  normEps: number;
  /** Pixels on a side. */
  patchSize: number;
  /** Frames of a patch, of which an image is all. */
  temporalPatchSize: number;
  /** Of the product that patches go through. */
  patchBias: boolean;
  /** Behind that product. */
  patchNorm: boolean;
  /** Of the layers, and of their other products. */
  qkvBias: boolean;
  layerBias: boolean;
  /** Patches on a side that one token stands for. */
  mergeSize: number;
  /** Of the square of learned positions; 0: there are none. */
  positionSide: number;
  /** They are interpolated bicubically, not bilinearly. */
  cubicPositions: boolean;
  /** Inner width of a merger with a gate; 0: it has none. */
  gatedMergerSize: number;
  /** Tokens on a side of the squares that attention sees; 0: all of an image. */
  windowSide: number;
  /** With windows: the layers that see all of an image all the same. */
  wholeLayers: number[];
  /** [hiddenSize / numHeads / 4] */
  ropeInvFreq: Float64Array;
  /** After these of its layers a merger makes what is added behind the decoder's layers 0, 1, ... */
  deepstackLayers: number[];
  /** [3] of pixels between 0 and 1, by channel. */
  pixelMean: number[];
  pixelStd: number[];
  /** The token that stands for mergeSize^2 patches of an image. */
  imageToken: number;
  /** Of each rotary frequency of the decoder, what it turns by: 0 time, 1 row, 2 column. */
  ropeAxes: number[];
  trained: boolean;
}

/** Layers that predict further tokens (native/model/prediction_layer.h). */
export interface NativePredictionConfig {
  layers: number;
  /** Of their projection: the columns of the row come before those of the token. */
  hiddenFirst: boolean;
  /** Otherwise they stay as they are, and a rollout drafts with them. */
  trained: boolean;
}

/** A fully resolved decoder (native/model/model_config.h); made from config.json by ts/model. */
export interface NativeModelConfig {
  family: string;
  head: 'lm' | 'value';
  vocabSize: number;
  hiddenSize: number;
  numLayers: number;
  numHeads: number;
  numKvHeads: number;
  headDim: number;
  intermediateSize: number;
  maxPositions: number;
  norm: 'rms' | 'layer';
  normEps: number;
  normUnitOffset: boolean;
  /** Before attention and before the MLP, and behind each of them. */
  inputNorms: boolean;
  postNorms: boolean;
  /** Of each head's query and key. */
  qkNorm: boolean;
  /** Of all heads' queries together, and of all keys (native/model/whole_qk_norm.h). */
  wholeQkNorm: boolean;
  /** Of each head's value, without a weight. */
  valueNorm: boolean;
  /** A factor of each layer's output: a buffer. */
  layerScale: boolean;
  attentionScale: number;
  attentionSoftcap: number;
  finalSoftcap: number;
  /** Divides the logits, behind the soft cap. */
  logitsScaling: number;
  /** Multiplies what attention and the MLP add to a row. */
  residualScale: number;
  /** Each head's output is multiplied by the sigmoid of a gate. */
  attentionGate: boolean;
  /** Gates have a matrix of their own; else each comes with its query. */
  gatesApart: boolean;
  /** A logit per query head that takes part in each row's softmax (native/kernels/attention_sinks.h). */
  attentionSinks: boolean;
  slidingWindows: number[];
  qkvBias: boolean;
  outputBias: boolean;
  mlpBias: boolean;
  gatedMlp: boolean;
  /** clamped_swiglu: of pairs of a gate and an up row (native/kernels/ops.h); xielu has trained scalars (native/kernels/xielu.h). */
  activation: 'silu' | 'gelu' | 'gelu_tanh' | 'quick_gelu' | 'relu' | 'relu2' | 'clamped_swiglu' | 'xielu';
  positions: 'rope' | 'learned' | 'none';
  ropeInvFreq: Float64Array;
  ropeAttentionFactor: number;
  /** Numbers 2i and 2i + 1 of a head turn together; else i and R/2 + i of the R that turn. */
  ropePairs: boolean;
  /** Per layer, or empty: those that turn by the second set; without frequencies they do not turn. */
  secondRopeLayers: boolean[];
  secondRopeInvFreq: Float64Array;
  secondRopeAttentionFactor: number;
  /** Of these layers; null: as of the others. */
  secondHeads: NativeHeadShape | null;
  /** In layers but these a value is what its key is before norm and rotary. */
  valuesFromKeys: boolean;
  /** The last so many layers take keys and values from the last one of their kind (these layers, or the others) before all of them. */
  sharedKvLayers: number;
  /** Of the MLPs of those; 0: as of the others. */
  sharedMlpSize: number;
  /** Numbers that every layer gets of a row's token (native/model/per_layer_embeddings.h); 0: none. */
  perLayerSize: number;
  embeddingScale: number;
  tiedEmbeddings: boolean;
  valueBias: boolean;
  /** headDim is then that of queries and keys, or of values where these are wider. */
  latent: NativeLatentConfig | null;
  moe: NativeMoeConfig | null;
  moeLayers: boolean[];
  linear: NativeLinearConfig | null;
  linearLayers: boolean[];
  /** Per layer, or empty: those that end behind their mixer, without an MLP. */
  bareLayers: boolean[];
  vision: NativeVisionConfig | null;
  /** null: they are no part of the model, whatever its files have. */
  prediction: NativePredictionConfig | null;
}
