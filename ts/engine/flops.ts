import { atLayer, headsAt, sharesKeys } from '../model/layer_shapes';
import { linearColumns } from '../model/linear_columns';
import type { NativeLinearConfig, NativeModelConfig } from '../native/bridge';

/**
 * Floating-point operations of a forward and backward pass over sequences of these lengths: 6 N Σ L for the matrices that a
 * token meets, plus 6 Σ L² head_dim heads layers for causal attention (half of the full square; head_dim is the mean of a key's and a
 * value's), verl's estimate, in the layers that have it. Layers that predict further tokens are counted where they are trained. Window and recomputation are left out.
 */
export function trainingFlops(c: NativeModelConfig, lengths: ArrayLike<number>): number {
  const mixerSize = (layer: number): number =>
    c.linear !== null && c.linearLayers[layer]
      ? linearSize(c, c.linear)
      : attentionSize(atLayer(c, layer), sharesKeys(c, layer));
  const innerSize = (layer: number): number => {
    if (c.bareLayers[layer]) return 0;
    const sparse = c.moe !== null && (c.moeLayers[layer] ?? true) ? moeSize(c, c.moe) : 0;
    const dense = sparse === 0 || c.moe?.besideMlp ? mlpSize(c, atLayer(c, layer).intermediateSize) : 0;
    // Of the token: the row's gate and what comes back from it, and the layer's part of the projection.
    return sparse + dense + 3 * c.hiddenSize * c.perLayerSize;
  };
  let matrices = 0;
  // Σ of head_dim over the layers with attention.
  let dims = 0;
  const further = c.prediction?.trained ? c.prediction.layers : 0;
  for (let layer = 0; layer < c.numLayers + further; layer++) {
    matrices += mixerSize(layer) + innerSize(layer);
    if (!c.linearLayers[layer]) dims += meanHeadDim(c, layer);
  }
  // Embedding and head count once each, as in verl; a value head is small enough to count as nothing.
  matrices += (c.head === 'lm' ? 2 : 1) * c.vocabSize * c.hiddenSize;
  // A layer that predicts a further token joins two inputs, and goes through the head again.
  matrices += further * c.hiddenSize * (2 * c.hiddenSize + c.vocabSize);
  let tokens = 0;
  let squares = 0;
  for (let i = 0; i < lengths.length; i++) {
    const length = lengths[i] as number;
    tokens += length;
    squares += length * length;
  }
  return 6 * matrices * tokens + 6 * squares * dims * c.numHeads;
}

/** Of keys and values. */
const meanHeadDim = (c: NativeModelConfig, layer: number): number =>
  c.latent === null
    ? headsAt(c, layer).headDim
    : (c.latent.stillDim + c.latent.rotaryDim + c.latent.valueDim) / 2;

function attentionSize(c: NativeModelConfig, withoutKeys: boolean): number {
  if (c.latent === null) {
    const gates = c.attentionGate ? c.numHeads : 0;
    const matricesOfKeys = withoutKeys ? 0 : c.valuesFromKeys ? 1 : 2;
    return c.hiddenSize * c.headDim * (2 * c.numHeads + matricesOfKeys * c.numKvHeads + gates);
  }
  const { queryRank, keyRank, stillDim, rotaryDim, valueDim } = c.latent;
  const queries = c.numHeads * (stillDim + rotaryDim);
  return (
    (queryRank > 0 ? queryRank * (c.hiddenSize + queries) : c.hiddenSize * queries) +
    c.hiddenSize * (keyRank + rotaryDim) +
    keyRank * c.numHeads * (stillDim + valueDim) +
    c.numHeads * valueDim * c.hiddenSize
  );
}

/** Both projections, and the products of a token with the states, where there are some: what it finds (of the gated delta rule), changes and reads. */
function linearSize(c: NativeModelConfig, linear: NativeLinearConfig): number {
  const values = linear.valueHeads * linear.valueDim;
  const products = linear.rule === 'mamba2' ? 2 : 3;
  return c.hiddenSize * (linearColumns(linear) + values) + products * values * linear.keyDim;
}

const mlpSize = (c: NativeModelConfig, inner: number): number => c.hiddenSize * inner * (c.gatedMlp ? 3 : 2);

const moeSize = (c: NativeModelConfig, moe: NonNullable<NativeModelConfig['moe']>): number =>
  moe.topK * mlpSize({ ...c, hiddenSize: moe.latentSize || c.hiddenSize }, moe.intermediateSize) +
  2 * moe.latentSize * c.hiddenSize +
  c.hiddenSize * moe.numExperts +
  mlpSize(c, moe.sharedIntermediateSize) +
  (moe.sharedIntermediateSize > 0 && moe.sharedGate ? c.hiddenSize : 0);

/**
 * Model FLOP utilisation: the share of the devices' peak that a pass over sequences of these lengths reached. `seconds`: its wall
 * time, all devices working on it together; `peakTflops`: of one device. A forward pass alone, of all sequences or of those whose
 * `hasGradient` is 0, takes a third of {@link trainingFlops}.
 */
export function flopUtilisation(
  model: NativeModelConfig,
  lengths: ArrayLike<number>,
  o: {
    seconds: number;
    peakTflops: number;
    devices: number;
    passes?: number;
    forwardOnly?: boolean;
    hasGradient?: Uint8Array | null;
  },
): number {
  const whole = Array.from(lengths).filter((_, i) => !o.forwardOnly && o.hasGradient?.[i] !== 0);
  const passed = o.forwardOnly ? { ...model, prediction: null } : model;
  const forward = trainingFlops(passed, lengths) / 3;
  const flops = (forward + (trainingFlops(model, whole) * 2) / 3) * (o.passes ?? 1);
  return flops / (o.seconds * o.peakTflops * 1e12 * o.devices);
}
