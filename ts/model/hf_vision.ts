// Qwen3-VL: a decoder of text, and a tower that reads images.
import { show } from '../base/text';
import type { NativeModelConfig, NativeVisionConfig } from '../native/bridge';
import { activation, invalid, type Raw, rmsDecoder } from './hf_decoder';
import { refusedKey } from './hf_refused';
import type { FamilyConfig } from './hf_schema';

type Config = FamilyConfig<'qwen3_vl'>;

/** Half of all bytes, as Qwen3-VL is published; `loadModelDirectory` puts those of the directory in their place. */
const HALF = [0.5, 0.5, 0.5];
/** Of heads of 128 numbers. */
const SECTIONS = [24, 20, 20];

export function qwen3Vl(c: Config, raw: Raw, where: string): NativeModelConfig {
  const text = raw['text_config'] as Raw;
  const refused = refusedKey(text) ?? refusedKey(raw['vision_config'] as Raw);
  if (refused !== null) throw invalid(where, refused);
  const inside = `${where}: text_config`;
  const decoder = {
    ...c.text_config,
    tie_word_embeddings: c.tie_word_embeddings ?? c.text_config.tie_word_embeddings,
  };
  const native = {
    ...rmsDecoder('qwen3_vl', decoder, text, inside, { defaultTheta: 5e5 }),
    qkNorm: true,
    qkvBias: c.text_config.attention_bias,
    outputBias: c.text_config.attention_bias,
  };
  const ropes = { ...(text['rope_parameters'] as Raw | null), ...(text['rope_scaling'] as Raw | null) };
  return { ...native, vision: visionOf(c, ropes['mrope_section'] ?? SECTIONS, native, where) };
}

function visionOf(
  c: Config,
  sections: unknown,
  native: NativeModelConfig,
  where: string,
): NativeVisionConfig {
  const v = c.vision_config;
  const inside = `${where}: vision_config`;
  const headDim = v.hidden_size / v.num_heads;
  if (!Number.isInteger(headDim) || headDim % 4 !== 0)
    throw invalid(
      inside,
      `hidden_size ${v.hidden_size} of ${v.num_heads} num_heads: expected heads whose size divides by 4`,
    );
  const side = Math.sqrt(v.num_position_embeddings);
  if (!Number.isInteger(side))
    throw invalid(inside, `num_position_embeddings ${v.num_position_embeddings}: expected a square`);
  if (v.out_hidden_size !== native.hiddenSize)
    throw invalid(
      inside,
      `out_hidden_size ${v.out_hidden_size}: expected the hidden_size ${native.hiddenSize} of text_config`,
    );
  const layers = v.deepstack_visual_indexes;
  if (layers.some((layer, i) => layer >= v.depth || layer <= (layers[i - 1] ?? -1)))
    throw invalid(
      inside,
      `deepstack_visual_indexes ${show(layers)}: expected ascending layers below ${v.depth}`,
    );
  if (layers.length > native.numLayers)
    throw invalid(
      inside,
      `deepstack_visual_indexes: more than the ${native.numLayers} layers of text_config`,
    );
  if (c.image_token_id >= native.vocabSize)
    throw invalid(
      where,
      `image_token_id ${c.image_token_id}: expected one below vocab_size ${native.vocabSize}`,
    );
  if (v.spatial_merge_size !== 1 && v.spatial_merge_size !== 2)
    throw invalid(inside, `spatial_merge_size ${v.spatial_merge_size} is not supported; supported: 1, 2`);
  const act = activation(v.hidden_act, 'hidden_act', inside);
  if (act === 'clamped_swiglu') throw invalid(inside, `hidden_act ${show(v.hidden_act)} is not supported`);
  const theta = v.rope_parameters?.rope_theta ?? 10000;
  return {
    numLayers: v.depth,
    hiddenSize: v.hidden_size,
    numHeads: v.num_heads,
    intermediateSize: v.intermediate_size,
    activation: act,
    normEps: 1e-6,
    patchSize: v.patch_size,
    temporalPatchSize: v.temporal_patch_size,
    mergeSize: v.spatial_merge_size,
    positionSide: side,
    ropeInvFreq: Float64Array.from({ length: headDim / 4 }, (_, i) => theta ** -(i / (headDim / 4))),
    deepstackLayers: layers,
    pixelMean: HALF,
    pixelStd: HALF,
    imageToken: c.image_token_id,
    ropeSections: checkedSections(sections, native.ropeInvFreq.length, where),
    trained: true,
  };
}

function checkedSections(sections: unknown, frequencies: number, where: string): number[] {
  const all = Array.isArray(sections) ? (sections as unknown[]) : [];
  const counts = all.filter((n): n is number => Number.isInteger(n) && (n as number) >= 0);
  const [, rows = 0, columns = 0] = counts;
  const sum = counts.reduce((a, b) => a + b, 0);
  if (all.length === 3 && counts.length === 3 && sum === frequencies && 3 * Math.max(rows, columns) <= sum)
    return counts;
  throw invalid(
    where,
    `text_config: mrope_section ${show(sections)}: expected three numbers that make up the ${frequencies} rotary frequencies, ` +
      'the last two at most a third of them each',
  );
}
