// Qwen2-VL and Qwen2.5-VL: the decoder of Qwen 2 and a tower, whose layers see windows of an image in the second.
import type { NativeModelConfig, NativeVisionConfig } from '../native/bridge';
import { invalid, qwenWindows, type Raw, rmsDecoder } from './hf_decoder';
import type { FamilyConfig } from './hf_schema';
import { axesInSections, checkedParts, plainTower } from './hf_tower';
import { ROPE_TYPES } from './rope';

/** mrope_section where config.json does not say it. */
const SECTIONS = [16, 24, 24];
/** The name under which RoPE with sections is published. */
const TYPES = { ...ROPE_TYPES, mrope: 'default' } as const;

/** `raw`: with the keys of the decoder in text_config. */
export function qwen2Vl(c: FamilyConfig<'qwen2_vl'>, raw: Raw, where: string): NativeModelConfig {
  const native = qwen2Decoder('qwen2_vl', c, raw, where);
  const { hidden_size, embed_dim, mlp_ratio, ...tower } = c.vision_config;
  const v = {
    ...tower,
    hidden_size: embed_dim,
    intermediate_size: embed_dim * mlp_ratio,
    out_hidden_size: hidden_size,
  };
  const widths = { own: 'embed_dim', out: 'hidden_size' };
  const vision = { ...plainTower(v, c.image_token_id, native, where, widths), patchBias: false };
  return withTower(native, vision, raw, where);
}

/** `raw`: with the keys of the decoder in text_config. */
export function qwen25Vl(c: FamilyConfig<'qwen2_5_vl'>, raw: Raw, where: string): NativeModelConfig {
  const native = qwen2Decoder('qwen2_5_vl', c, raw, where);
  const v = c.vision_config;
  const windowSide = Math.floor(v.window_size / v.spatial_merge_size / v.patch_size);
  if (windowSide < 1)
    throw invalid(
      `${where}: vision_config`,
      `window_size ${v.window_size}: expected at least the ${v.spatial_merge_size * v.patch_size} pixels that a token has on a side`,
    );
  const tower: NativeVisionConfig = {
    ...plainTower(v, c.image_token_id, native, where),
    gatedMlp: true,
    norm: 'rms',
    patchBias: false,
    windowSide,
    // In any order; layers that a cut tower has no more are named in its config.json still.
    wholeLayers: Array.from({ length: v.depth }, (_, layer) => layer).filter((layer) =>
      v.fullatt_block_indexes.includes(layer),
    ),
  };
  return withTower(native, tower, raw, where);
}

function qwen2Decoder(
  family: 'qwen2_vl' | 'qwen2_5_vl',
  c: FamilyConfig<'qwen2_vl'> | FamilyConfig<'qwen2_5_vl'>,
  raw: Raw,
  where: string,
): NativeModelConfig {
  const { text, inside } = checkedParts(raw, where);
  const decoder = c.text_config;
  return {
    ...rmsDecoder(family, decoder, text, inside, { defaultTheta: 1e6, types: TYPES }),
    qkvBias: true,
    slidingWindows: qwenWindows(decoder, inside),
    // Either of the two keys ties, as in transformers.
    tiedEmbeddings: c.tie_word_embeddings === true || decoder.tie_word_embeddings,
  };
}

/** `vision` with the axes of the decoder's rotary frequencies: one section behind another. */
function withTower(
  native: NativeModelConfig,
  vision: NativeVisionConfig,
  raw: Raw,
  where: string,
): NativeModelConfig {
  const { text } = checkedParts(raw, where);
  const ropeAxes = axesInSections(text, SECTIONS, native.ropeInvFreq.length, where);
  return { ...native, vision: { ...vision, ropeAxes } };
}
