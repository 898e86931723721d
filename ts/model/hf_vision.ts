// Qwen3-VL and Qwen3.5: a decoder of text, and a tower that reads images.
import { show } from '../base/text';
import type { NativeModelConfig, NativeVisionConfig } from '../native/bridge';
import { activation, invalid, type Raw, rmsDecoder } from './hf_decoder';
import { qwenExperts } from './hf_experts';
import { gatedDelta, gatedDeltaMoe } from './hf_gated_delta';
import { refusedKey } from './hf_refused';
import type { DecoderConfig, FamilyConfig } from './hf_schema';

type Config =
  | FamilyConfig<'qwen3_vl'>
  | FamilyConfig<'qwen3_vl_moe'>
  | FamilyConfig<'qwen3_5'>
  | FamilyConfig<'qwen3_5_moe'>;

/** Half of all bytes, as Qwen3-VL is published; `loadModelDirectory` puts those of the directory in their place. */
const HALF = [0.5, 0.5, 0.5];
/** mrope_section where config.json does not say it: of heads of 128 numbers, and of heads of 256 of which 64 turn. */
const SECTIONS = [24, 20, 20];
const SECTIONS_OF_A_QUARTER = [11, 11, 10];

export function qwen3Vl(c: FamilyConfig<'qwen3_vl'>, raw: Raw, where: string): NativeModelConfig {
  const { text, inside } = checkedParts(raw, where);
  const native = qwen3Decoder('qwen3_vl', tied(c.text_config, c), text, inside);
  return withVision(native, c, c.vision_config.deepstack_visual_indexes, text, SECTIONS, where);
}

/** As Qwen3VLMoeForConditionalGeneration of transformers, whose router divides by the sum of the chosen weights whatever `norm_topk_prob` is. */
export function qwen3VlMoe(c: FamilyConfig<'qwen3_vl_moe'>, raw: Raw, where: string): NativeModelConfig {
  const { text, inside } = checkedParts(raw, where);
  const decoder = tied(c.text_config, c);
  const native = {
    ...qwen3Decoder('qwen3_vl_moe', decoder, text, inside),
    ...qwenExperts({ ...decoder, norm_topk_prob: true }, 0),
  };
  return withVision(native, c, c.vision_config.deepstack_visual_indexes, text, SECTIONS, where);
}

function qwen3Decoder(
  family: 'qwen3_vl' | 'qwen3_vl_moe',
  c: DecoderConfig & { attention_bias: boolean },
  text: Raw,
  inside: string,
): NativeModelConfig {
  return {
    ...rmsDecoder(family, c, text, inside, { defaultTheta: 5e5 }),
    qkNorm: true,
    qkvBias: c.attention_bias,
    outputBias: c.attention_bias,
  };
}

/** As Qwen3_5ForConditionalGeneration of transformers: Qwen3-VL's tower and positions, without deepstack. */
export function qwen35WithImages(c: FamilyConfig<'qwen3_5'>, raw: Raw, where: string): NativeModelConfig {
  const { text, inside } = checkedParts(raw, where);
  const native = gatedDelta('qwen3_5', tied(c.text_config, c), text, inside);
  return withVision(native, c, [], text, SECTIONS_OF_A_QUARTER, where);
}

/** As Qwen3_5MoeForConditionalGeneration. */
export function qwen35MoeWithImages(
  c: FamilyConfig<'qwen3_5_moe'>,
  raw: Raw,
  where: string,
): NativeModelConfig {
  const { text, inside } = checkedParts(raw, where);
  const native = gatedDeltaMoe('qwen3_5_moe', tied(c.text_config, c), text, inside);
  return withVision(native, c, [], text, SECTIONS_OF_A_QUARTER, where);
}

/** The part of the decoder, and where it stands. */
function checkedParts(raw: Raw, where: string): { text: Raw; inside: string } {
  const text = raw['text_config'] as Raw;
  const refused = refusedKey(text) ?? refusedKey(raw['vision_config'] as Raw);
  if (refused !== null) throw invalid(where, refused);
  return { text, inside: `${where}: text_config` };
}

/** A decoder whose head is tied where the whole says so, or where that says nothing, as it says itself. */
const tied = <C extends { tie_word_embeddings: boolean }>(
  decoder: C,
  whole: { tie_word_embeddings?: boolean | null | undefined },
): C => ({ ...decoder, tie_word_embeddings: whole.tie_word_embeddings ?? decoder.tie_word_embeddings });

function withVision(
  native: NativeModelConfig,
  c: Config,
  deepstack: number[],
  text: Raw,
  usual: readonly number[],
  where: string,
): NativeModelConfig {
  const ropes = { ...(text['rope_parameters'] as Raw | null), ...(text['rope_scaling'] as Raw | null) };
  return { ...native, vision: visionOf(c, deepstack, ropes['mrope_section'] ?? usual, native, where) };
}

function visionOf(
  c: Config,
  layers: number[],
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
  // Rows have the frequencies 1, 4, ..., and columns 2, 5, ...: of 32 there are 11 and 10.
  const [mostRows, mostColumns] = [Math.floor((frequencies + 1) / 3), Math.floor(frequencies / 3)];
  if (
    all.length === 3 &&
    counts.length === 3 &&
    sum === frequencies &&
    rows <= mostRows &&
    columns <= mostColumns
  )
    return counts;
  throw invalid(
    where,
    `text_config: mrope_section ${show(sections)}: expected three numbers that make up the ${frequencies} rotary frequencies, ` +
      `the last two at most a third of them each, ${mostRows} and ${mostColumns}`,
  );
}
