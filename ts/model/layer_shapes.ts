// What differs between the layers of one model: native/model/model_config.h.
import type { NativeHeadShape, NativeModelConfig } from '../native/bridge';

type Shapes = Pick<
  NativeModelConfig,
  'numLayers' | 'numKvHeads' | 'headDim' | 'secondHeads' | 'secondRopeLayers' | 'sharedKvLayers'
>;

/** Of attention in a layer. */
export const headsAt = (c: Shapes, layer: number): NativeHeadShape =>
  c.secondHeads !== null && c.secondRopeLayers[layer] === true
    ? c.secondHeads
    : { numKvHeads: c.numKvHeads, headDim: c.headDim };

/** Whether a layer takes keys and values from another one. */
export const sharesKeys = (c: Pick<Shapes, 'numLayers' | 'sharedKvLayers'>, layer: number): boolean =>
  layer < c.numLayers && layer >= c.numLayers - c.sharedKvLayers;

/** The model as this layer sees it: heads and MLP are those of the layer. */
export function atLayer(c: NativeModelConfig, layer: number): NativeModelConfig {
  const second = c.secondRopeLayers[layer] === true;
  return {
    ...c,
    ...headsAt(c, layer),
    valuesFromKeys: c.valuesFromKeys && !second,
    intermediateSize: sharesKeys(c, layer) && c.sharedMlpSize > 0 ? c.sharedMlpSize : c.intermediateSize,
  };
}
