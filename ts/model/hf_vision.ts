// Qwen3-VL and Qwen3.5: a decoder of text, and a tower that reads images.
import { show } from '../base/text';
import type { NativeModelConfig, NativeVisionConfig } from '../native/bridge';
import { invalid, type Raw, rmsDecoder } from './hf_decoder';
import { qwenExperts } from './hf_experts';
import { gatedDelta, gatedDeltaMoe } from './hf_gated_delta';
import type { DecoderConfig, FamilyConfig } from './hf_schema';
import { checkedParts, plainTower, rotarySections } from './hf_tower';

type Config =
  | FamilyConfig<'qwen3_vl'>
  | FamilyConfig<'qwen3_vl_moe'>
  | FamilyConfig<'qwen3_5'>
  | FamilyConfig<'qwen3_5_moe'>;

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
  const side = Math.sqrt(v.num_position_embeddings);
  if (!Number.isInteger(side))
    throw invalid(inside, `num_position_embeddings ${v.num_position_embeddings}: expected a square`);
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
  return {
    ...plainTower(v, c.image_token_id, native, where),
    positionSide: side,
    deepstackLayers: layers,
    ropeAxes: axesInTurn(sections, native.ropeInvFreq.length, where),
  };
}

/** Rows have the frequencies 1, 4, ..., and columns 2, 5, ..., as many as their sections say; time has the rest. */
function axesInTurn(sections: unknown, frequencies: number, where: string): number[] {
  const [, rows, columns] = rotarySections(sections, frequencies, where);
  const [mostRows, mostColumns] = [Math.floor((frequencies + 1) / 3), Math.floor(frequencies / 3)];
  if (rows > mostRows || columns > mostColumns)
    throw invalid(
      where,
      `text_config: mrope_section ${show(sections)}: expected of the ${frequencies} rotary frequencies ` +
        `at most a third for the last two each, ${mostRows} and ${mostColumns}`,
    );
  const own = [0, rows, columns];
  return Array.from({ length: frequencies }, (_, f) => (f < 3 * (own[f % 3] as number) ? f % 3 : 0));
}
