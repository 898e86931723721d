// GLM-4.1V and GLM-4.5V: the decoders of GLM-4 (0414) and of GLM-4.5, and a tower of their own.
import { MODEL_LIMITS } from '../base/limits';
import type { NativeModelConfig } from '../native/bridge';
import { invalid, type Raw, rmsDecoder } from './hf_decoder';
import { glm4Moe } from './hf_glm4';
import type { FamilyConfig } from './hf_schema';
import { axesInSections, checkedParts, plainTower } from './hf_tower';

type Config = FamilyConfig<'glm4v'> | FamilyConfig<'glm4v_moe'>;

/** mrope_section where config.json does not say it: of heads of 128 numbers of which a half turns. */
const SECTIONS = [8, 12, 12];

/** As Glm4vForConditionalGeneration of transformers, in which all of a head turns unless partial_rotary_factor says a part. */
export function glm4v(c: FamilyConfig<'glm4v'>, raw: Raw, where: string): NativeModelConfig {
  const { text, inside } = checkedParts(raw, where);
  const decoder = c.text_config;
  const { hidden_size: width, num_attention_heads: heads, head_dim: given } = decoder;
  if (given !== null && given !== Math.floor(width / heads))
    throw invalid(
      inside,
      `head_dim ${given}: expected hidden_size ${width} divided by the ${heads} num_attention_heads`,
    );
  const native = {
    ...rmsDecoder('glm4v', decoder, text, inside, { partialFactor: 1 }),
    postNorms: true,
    ropePairs: true,
    qkvBias: true,
  };
  return withTower(native, c, text, where);
}

/** As Glm4vMoeForConditionalGeneration, whose heads turn as those of GLM-4.5, without norms of queries and keys. */
export function glm4vMoe(c: FamilyConfig<'glm4v_moe'>, raw: Raw, where: string): NativeModelConfig {
  const { text, inside } = checkedParts(raw, where);
  const native = glm4Moe({ ...c.text_config, use_qk_norm: false }, text, inside);
  return withTower({ ...native, family: 'glm4v_moe' }, c, text, where);
}

function withTower(native: NativeModelConfig, c: Config, text: Raw, where: string): NativeModelConfig {
  const v = c.vision_config;
  const positionSide = Math.floor(v.image_size / v.patch_size);
  if (positionSide < 1 || positionSide ** 2 > MODEL_LIMITS.positions)
    throw invalid(
      `${where}: vision_config`,
      `image_size ${v.image_size} of patches of ${v.patch_size} pixels: expected from 1 to ${MODEL_LIMITS.positions} patches`,
    );
  return {
    ...native,
    // Either of the two keys ties, as in transformers.
    tiedEmbeddings: c.tie_word_embeddings === true || c.text_config.tie_word_embeddings,
    vision: {
      ...plainTower({ ...v, intermediate_size: v.out_hidden_size }, c.image_token_id, native, where),
      gatedMlp: true,
      norm: 'rms',
      normEps: v.rms_norm_eps,
      patchNorm: true,
      qkvBias: v.attention_bias,
      layerBias: false,
      positionSide,
      cubicPositions: true,
      gatedMergerSize: v.intermediate_size,
      ropeAxes: axesInSections(text, SECTIONS, native.ropeInvFreq.length, where),
    },
  };
}
