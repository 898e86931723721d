// What config.json says of a decoder beside a tower that reads images, as far as the families agree.
import { show } from '../base/text';
import type { NativeModelConfig, NativeVisionConfig } from '../native/bridge';
import { activation, invalid, type Raw } from './hf_decoder';
import { refusedKey } from './hf_refused';

/** Keys of `vision_config`. */
interface TowerConfig {
  depth: number;
  hidden_size: number;
  hidden_act: string;
  intermediate_size: number;
  num_heads: number;
  patch_size: number;
  spatial_merge_size: number;
  temporal_patch_size: number;
  out_hidden_size: number;
  rope_parameters?: { rope_theta?: number | null | undefined } | null | undefined;
}

/** Half of all bytes, as Qwen3-VL is published; `loadModelDirectory` puts those of the directory in their place. */
const HALF = [0.5, 0.5, 0.5];

/** The part of the decoder, and where it stands. */
export function checkedParts(raw: Raw, where: string): { text: Raw; inside: string } {
  const text = raw['text_config'] as Raw;
  const refused = refusedKey(text) ?? refusedKey(raw['vision_config'] as Raw);
  if (refused !== null) throw invalid(where, refused);
  return { text, inside: `${where}: text_config` };
}

/** What config.json calls the width of a tower, and that of the rows that it gives. */
interface WidthKeys {
  own: string;
  out: string;
}

/** LayerNorm, an MLP without a gate, attention that sees all of an image, neither learned positions nor deepstack. */
export function plainTower(
  v: TowerConfig,
  imageToken: number,
  native: NativeModelConfig,
  where: string,
  keys: WidthKeys = { own: 'hidden_size', out: 'out_hidden_size' },
): NativeVisionConfig {
  const inside = `${where}: vision_config`;
  const headDim = v.hidden_size / v.num_heads;
  if (!Number.isInteger(headDim) || headDim % 4 !== 0)
    throw invalid(
      inside,
      `${keys.own} ${v.hidden_size} of ${v.num_heads} num_heads: expected heads whose size divides by 4`,
    );
  if (v.out_hidden_size !== native.hiddenSize)
    throw invalid(
      inside,
      `${keys.out} ${v.out_hidden_size}: expected the hidden_size ${native.hiddenSize} of text_config`,
    );
  if (imageToken >= native.vocabSize)
    throw invalid(where, `image_token_id ${imageToken}: expected one below vocab_size ${native.vocabSize}`);
  if (v.spatial_merge_size !== 1 && v.spatial_merge_size !== 2)
    throw invalid(inside, `spatial_merge_size ${v.spatial_merge_size} is not supported; supported: 1, 2`);
  const theta = v.rope_parameters?.rope_theta ?? 10000;
  return {
    numLayers: v.depth,
    hiddenSize: v.hidden_size,
    numHeads: v.num_heads,
    intermediateSize: v.intermediate_size,
    gatedMlp: false,
    activation: activation(v.hidden_act, 'hidden_act', inside),
    norm: 'layer',
    normEps: 1e-6,
    patchSize: v.patch_size,
    temporalPatchSize: v.temporal_patch_size,
    patchBias: true,
    patchNorm: false,
    qkvBias: true,
    layerBias: true,
    mergeSize: v.spatial_merge_size,
    positionSide: 0,
    cubicPositions: false,
    gatedMergerSize: 0,
    windowSide: 0,
    wholeLayers: [],
    ropeInvFreq: Float64Array.from({ length: headDim / 4 }, (_, i) => theta ** -(i / (headDim / 4))),
    deepstackLayers: [],
    pixelMean: HALF,
    pixelStd: HALF,
    imageToken,
    ropeAxes: [],
    trained: true,
  };
}

/** The axes of the decoder's rotary frequencies where they turn in sections one behind another; `usual`: those where `text` says none. */
export function axesInSections(
  text: Raw,
  usual: readonly number[],
  frequencies: number,
  where: string,
): number[] {
  const ropes = { ...(text['rope_parameters'] as Raw | null), ...(text['rope_scaling'] as Raw | null) };
  const sections = rotarySections(ropes['mrope_section'] ?? usual, frequencies, where);
  return sections.flatMap((count, axis) => new Array<number>(count).fill(axis));
}

/** mrope_section of config.json: how many of the decoder's rotary frequencies turn by time, row and column. */
export function rotarySections(
  sections: unknown,
  frequencies: number,
  where: string,
): [number, number, number] {
  const [time, row, column, ...more] = Array.isArray(sections) ? (sections as unknown[]) : [];
  const isCount = (n: unknown): n is number => Number.isInteger(n) && (n as number) >= 0;
  if (
    isCount(time) &&
    isCount(row) &&
    isCount(column) &&
    more.length === 0 &&
    time + row + column === frequencies
  )
    return [time, row, column];
  throw invalid(
    where,
    `text_config: mrope_section ${show(sections)}: expected three numbers that make up the ${frequencies} rotary frequencies`,
  );
}
