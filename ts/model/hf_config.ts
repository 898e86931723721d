import { MODEL_LIMITS } from '../base/limits';
import { show } from '../base/text';
import type { NativeModelConfig } from '../native/bridge';
import { afmoe } from './hf_afmoe';
import { checkAliases, withoutAliases } from './hf_aliases';
import { apertus } from './hf_apertus';
import { cwm } from './hf_cwm';
import { everyLayer, invalid, qwenWindows, type Raw, rmsDecoder, typedWindows } from './hf_decoder';
import { ernie, ernieMoe } from './hf_ernie';
import { exaone4, exaoneMoe } from './hf_exaone';
import { behindDense, deepseekExperts, mixtralExperts, qwenExperts } from './hf_experts';
import { gatedDelta, gatedDeltaMoe, qwen3Next } from './hf_gated_delta';
import { gemma, gemma2, gemma3 } from './hf_gemma';
import { gemma4 } from './hf_gemma4';
import { glm, glm4, glm4Moe, solarOpen } from './hf_glm4';
import { glm4v, glm4vMoe } from './hf_glm4v';
import { gptOss } from './hf_gpt_oss';
import { gpt2 } from './hf_gpt2';
import { granite, graniteMoe, graniteMoeShared } from './hf_granite';
import { graniteHybrid } from './hf_granite_hybrid';
import { hyV3 } from './hf_hy_v3';
import { deepseekV2, deepseekV3, glm4MoeLite, youtu } from './hf_latent';
import { lfm2, lfm2Moe } from './hf_lfm2';
import { mellum } from './hf_mellum';
import { minimaxM2 } from './hf_minimax';
import { ministral3, mistral } from './hf_mistral';
import { nemotronH } from './hf_nemotron_h';
import { olmo2, olmo3, olmoe } from './hf_olmo';
import { olmoHybrid } from './hf_olmo_hybrid';
import { qwen2Vl, qwen25Vl } from './hf_qwen2_vl';
import { refusedKey } from './hf_refused';
import type { Family, FamilyConfig } from './hf_schema';
import { FAMILIES, isFamily, schemas } from './hf_schema';
import { qwen3Vl, qwen3VlMoe, qwen35MoeWithImages, qwen35WithImages } from './hf_vision';
import { firstIssue } from './issue';
import { textPart, withTextConfig } from './text_part';

export type Head = NativeModelConfig['head'];

/** Reads and resolves config.json content; the one place where Hugging Face's defaults and quirks are known. */
export interface ResolvedModel {
  family: Family;
  native: NativeModelConfig;
  eosTokenIds: number[];
}

/**
 * Resolves a parsed config.json. `where` names the file in messages. `head` chooses the causal LM or the value head (a
 * token-classification head with one label). `readsImages`: with the tower of a model whose language model may be read alone. Throws
 * INVALID_MODEL naming the key and what is supported.
 */
export function resolveModelConfig(
  raw: unknown,
  head: Head,
  where: string,
  readsImages = false,
): ResolvedModel {
  const config = withTextConfig(textPart(asObject(raw, where), readsImages));
  const type = config.model_type;
  if (!isFamily(type)) {
    throw invalid(
      where,
      `model_type ${type === undefined ? '(missing)' : show(type)} is not supported; supported: ${FAMILIES.join(', ')}`,
    );
  }
  const refused = refusedKey(config);
  if (refused !== null) throw invalid(where, refused);
  const named = withoutAliases(type, config);
  const parsed = schemas[type].safeParse(named);
  if (!parsed.success) {
    throw invalid(where, firstIssue(parsed.error, named));
  }
  checkAliases(type, config, where);
  const native = resolveFamily(type, parsed.data, config, where);
  native.head = head;
  if (head === 'value' && native.vision !== null)
    throw invalid(
      where,
      `model_type ${show(type)} with a value head is not supported: only a language model is`,
    );
  if (head === 'value') {
    // Token classification has neither a tied head nor a cap on its output, nor is that divided.
    native.tiedEmbeddings = false;
    native.finalSoftcap = 0;
    native.logitsScaling = 1;
    native.valueBias = type === 'gpt2' || config.token_classification_bias !== false;
  }
  checkSizes(native, where);
  const { data } = parsed;
  const eos = data.eos_token_id ?? ('text_config' in data ? data.text_config.eos_token_id : null);
  return { family: type, native, eosTokenIds: eos === null ? [] : Array.isArray(eos) ? eos : [eos] };
}

function asObject(raw: unknown, where: string): Raw {
  if (typeof raw !== 'object' || raw === null || Array.isArray(raw))
    throw invalid(where, 'expected a JSON object');
  return raw as Raw;
}

function resolveFamily(family: Family, parsed: unknown, raw: Raw, where: string): NativeModelConfig {
  switch (family) {
    case 'llama':
    case 'exaone':
    case 'arcee': {
      const c = parsed as FamilyConfig<'llama'>;
      return {
        ...rmsDecoder(family, c, raw, where, family === 'exaone' ? { defaultTheta: 500_000 } : {}),
        gatedMlp: family !== 'arcee',
        qkvBias: c.attention_bias,
        outputBias: c.attention_bias,
        mlpBias: c.mlp_bias,
      };
    }
    case 'mistral':
      return mistral(family, parsed as FamilyConfig<'mistral'>, raw, where);
    case 'ministral3':
      return ministral3(parsed as FamilyConfig<'ministral3'>, raw, where);
    case 'qwen2':
    case 'mimo': {
      const c = parsed as FamilyConfig<'qwen2'>;
      return { ...rmsDecoder(family, c, raw, where), qkvBias: true, slidingWindows: qwenWindows(c, where) };
    }
    case 'qwen3': {
      const c = parsed as FamilyConfig<'qwen3'>;
      return {
        ...rmsDecoder(family, c, raw, where),
        qkNorm: true,
        qkvBias: c.attention_bias,
        outputBias: c.attention_bias,
        slidingWindows: qwenWindows(c, where),
      };
    }
    case 'seed_oss': {
      const c = parsed as FamilyConfig<'seed_oss'>;
      return {
        ...rmsDecoder(family, c, raw, where),
        qkvBias: c.attention_bias,
        outputBias: c.attention_out_bias,
        mlpBias: c.mlp_bias,
      };
    }
    case 'gemma':
      return gemma(parsed as FamilyConfig<'gemma'>, raw, where);
    case 'gemma2':
      return gemma2(parsed as FamilyConfig<'gemma2'>, raw, where);
    case 'phi3':
      return phi3(parsed as FamilyConfig<'phi3'>, raw, where);
    case 'gemma3_text':
      return gemma3(parsed as FamilyConfig<'gemma3_text'>, raw, where);
    case 'gemma4_text':
      return gemma4(parsed as FamilyConfig<'gemma4_text'>, raw, where);
    case 'granite':
      return granite(parsed as FamilyConfig<'granite'>, raw, where);
    case 'granitemoe':
      return graniteMoe(parsed as FamilyConfig<'granitemoe'>, raw, where);
    case 'granitemoeshared':
      return graniteMoeShared(parsed as FamilyConfig<'granitemoeshared'>, raw, where);
    case 'granitemoehybrid':
      return graniteHybrid(parsed as FamilyConfig<'granitemoehybrid'>, raw, where);
    case 'glm':
      return glm(family, parsed as FamilyConfig<'glm'>, raw, where);
    case 'glm4':
      return glm4(parsed as FamilyConfig<'glm4'>, raw, where);
    case 'exaone4':
      return exaone4(family, parsed as FamilyConfig<'exaone4'>, raw, where);
    case 'apertus':
      return apertus(parsed as FamilyConfig<'apertus'>, raw, where);
    case 'afmoe':
      return afmoe(parsed as FamilyConfig<'afmoe'>, raw, where);
    case 'exaone_moe':
      return exaoneMoe(parsed as FamilyConfig<'exaone_moe'>, raw, where);
    case 'cwm':
      return cwm(parsed as FamilyConfig<'cwm'>, raw, where);
    case 'ernie4_5_moe':
      return ernieMoe(parsed as FamilyConfig<'ernie4_5_moe'>, raw, where);
    case 'ernie4_5':
      return ernie(parsed as FamilyConfig<'ernie4_5'>, raw, where);
    case 'olmo2':
      return olmo2(parsed as FamilyConfig<'olmo2'>, raw, where);
    case 'olmo3':
      return olmo3(parsed as FamilyConfig<'olmo3'>, raw, where);
    case 'olmo_hybrid':
      return olmoHybrid(parsed as FamilyConfig<'olmo_hybrid'>, raw, where);
    case 'olmoe':
      return olmoe(parsed as FamilyConfig<'olmoe'>, raw, where);
    case 'smollm3':
      return smollm3(parsed as FamilyConfig<'smollm3'>, raw, where);
    case 'mixtral': {
      const c = parsed as FamilyConfig<'mixtral'>;
      return {
        ...rmsDecoder(family, c, raw, where, { defaultTheta: 1e6 }),
        slidingWindows: everyLayer(c, c.sliding_window),
        ...mixtralExperts(c),
      };
    }
    case 'qwen2_moe':
      return qwen2Moe(parsed as FamilyConfig<'qwen2_moe'>, raw, where);
    case 'qwen3_moe':
      return qwen3Moe(parsed as FamilyConfig<'qwen3_moe'>, raw, where);
    case 'qwen3_next':
      return qwen3Next(parsed as FamilyConfig<'qwen3_next'>, raw, where);
    case 'qwen3_5_text':
      return gatedDelta(family, parsed as FamilyConfig<'qwen3_5_text'>, raw, where);
    case 'qwen3_5_moe_text':
      return gatedDeltaMoe(family, parsed as FamilyConfig<'qwen3_5_moe_text'>, raw, where);
    case 'glm4_moe':
      return glm4Moe(parsed as FamilyConfig<'glm4_moe'>, raw, where);
    case 'solar_open':
      return solarOpen(parsed as FamilyConfig<'solar_open'>, raw, where);
    case 'dots1':
      return dots1(parsed as FamilyConfig<'dots1'>, raw, where);
    case 'minimax_m2':
      return minimaxM2(parsed as FamilyConfig<'minimax_m2'>, raw, where);
    case 'hy_v3':
      return hyV3(parsed as FamilyConfig<'hy_v3'>, raw, where);
    case 'nemotron_h':
      return nemotronH(parsed as FamilyConfig<'nemotron_h'>, raw, where);
    case 'deepseek_v3':
    case 'kimi_k2':
      return deepseekV3(family, parsed as FamilyConfig<'deepseek_v3'>, raw, where);
    case 'deepseek_v2':
      return deepseekV2(parsed as FamilyConfig<'deepseek_v2'>, raw, where);
    case 'youtu':
      return youtu(parsed as FamilyConfig<'youtu'>, raw, where);
    case 'mellum':
      return mellum(parsed as FamilyConfig<'mellum'>, raw, where);
    case 'lfm2':
      return lfm2(parsed as FamilyConfig<'lfm2'>, raw, where);
    case 'lfm2_moe':
      return lfm2Moe(parsed as FamilyConfig<'lfm2_moe'>, raw, where);
    case 'glm4_moe_lite':
      return glm4MoeLite(parsed as FamilyConfig<'glm4_moe_lite'>, raw, where);
    case 'gpt_oss':
      return gptOss(parsed as FamilyConfig<'gpt_oss'>, raw, where);
    case 'qwen2_vl':
      return qwen2Vl(parsed as FamilyConfig<'qwen2_vl'>, raw, where);
    case 'qwen2_5_vl':
      return qwen25Vl(parsed as FamilyConfig<'qwen2_5_vl'>, raw, where);
    case 'qwen3_vl':
      return qwen3Vl(parsed as FamilyConfig<'qwen3_vl'>, raw, where);
    case 'qwen3_vl_moe':
      return qwen3VlMoe(parsed as FamilyConfig<'qwen3_vl_moe'>, raw, where);
    case 'glm4v':
      return glm4v(parsed as FamilyConfig<'glm4v'>, raw, where);
    case 'glm4v_moe':
      return glm4vMoe(parsed as FamilyConfig<'glm4v_moe'>, raw, where);
    case 'qwen3_5':
      return qwen35WithImages(parsed as FamilyConfig<'qwen3_5'>, raw, where);
    case 'qwen3_5_moe':
      return qwen35MoeWithImages(parsed as FamilyConfig<'qwen3_5_moe'>, raw, where);
    case 'gpt2':
      return gpt2(parsed as FamilyConfig<'gpt2'>, where);
  }
}

/** What Phi-3 calls its one scaling. */
const PHI_ROPES = { default: 'default', longrope: 'longrope', su: 'longrope', yarn: 'longrope' } as const;

function phi3(c: FamilyConfig<'phi3'>, raw: Raw, where: string): NativeModelConfig {
  const { original_max_position_embeddings } = c;
  return {
    ...rmsDecoder('phi3', c, { ...raw, original_max_position_embeddings }, where, {
      partialFactor: 1,
      types: PHI_ROPES,
    }),
    slidingWindows: everyLayer(c, c.sliding_window),
  };
}

function smollm3(c: FamilyConfig<'smollm3'>, raw: Raw, where: string): NativeModelConfig {
  const turning =
    c.no_rope_layers ??
    Array.from({ length: c.num_hidden_layers }, (_, i) => ((i + 1) % c.no_rope_layer_interval === 0 ? 0 : 1));
  if (turning.length !== c.num_hidden_layers)
    throw invalid(
      where,
      `no_rope_layers has ${turning.length} entries but the model has ${c.num_hidden_layers} layers`,
    );
  const window = c.use_sliding_window ? c.sliding_window : null;
  return {
    ...rmsDecoder('smollm3', c, raw, where, { defaultTheta: 2e6 }),
    qkvBias: c.attention_bias,
    outputBias: c.attention_bias,
    mlpBias: c.mlp_bias,
    slidingWindows:
      c.layer_types !== null
        ? typedWindows(c.layer_types, c.num_hidden_layers, window, where)
        : turning.map((turns) => (turns ? 0 : (window ?? 0))),
    secondRopeLayers: turning.map((turns) => turns === 0),
  };
}

function qwen2Moe(c: FamilyConfig<'qwen2_moe'>, raw: Raw, where: string): NativeModelConfig {
  const window = c.use_sliding_window ? c.sliding_window : null;
  const windows =
    c.layer_types !== null
      ? typedWindows(c.layer_types, c.num_hidden_layers, window, where)
      : Array.from({ length: c.num_hidden_layers }, (_, i) =>
          i % 2 === 0 && i < c.max_window_layers ? (window ?? 0) : 0,
        );
  return {
    ...rmsDecoder('qwen2_moe', c, raw, where),
    qkvBias: c.qkv_bias,
    slidingWindows: windows,
    ...qwenExperts(c, c.shared_expert_intermediate_size),
  };
}

function qwen3Moe(c: FamilyConfig<'qwen3_moe'>, raw: Raw, where: string): NativeModelConfig {
  return {
    ...rmsDecoder('qwen3_moe', c, raw, where),
    qkNorm: true,
    qkvBias: c.attention_bias,
    outputBias: c.attention_bias,
    slidingWindows: everyLayer(c, c.use_sliding_window ? c.sliding_window : null),
    ...qwenExperts(c, 0),
  };
}

function dots1(c: FamilyConfig<'dots1'>, raw: Raw, where: string): NativeModelConfig {
  const windows =
    c.layer_types !== null
      ? typedWindows(c.layer_types, c.num_hidden_layers, c.sliding_window, where)
      : Array.from({ length: c.num_hidden_layers }, (_, i) =>
          i >= c.max_window_layers ? (c.sliding_window ?? 0) : 0,
        );
  return {
    ...rmsDecoder('dots1', c, raw, where),
    qkNorm: true,
    qkvBias: c.attention_bias,
    outputBias: c.attention_bias,
    slidingWindows: windows,
    ...deepseekExperts(c, behindDense(c), where),
  };
}

function checkSizes(c: NativeModelConfig, where: string): void {
  const blocks = c.numLayers * (c.moe?.numExperts ?? 1);
  if (blocks > MODEL_LIMITS.expertBlocks) {
    throw invalid(
      where,
      `${c.numLayers} layers of ${c.moe?.numExperts} experts: expected at most ${MODEL_LIMITS.expertBlocks} experts in all`,
    );
  }
  if (c.numHeads % c.numKvHeads !== 0) {
    throw invalid(
      where,
      `num_attention_heads ${c.numHeads} does not divide by num_key_value_heads ${c.numKvHeads}`,
    );
  }
  if (c.secondHeads !== null && c.numHeads % c.secondHeads.numKvHeads !== 0)
    throw invalid(
      where,
      `num_attention_heads ${c.numHeads} does not divide by num_key_value_heads ${c.secondHeads.numKvHeads}`,
    );
  if (c.secondHeads !== null && c.secondHeads.headDim % 2 !== 0)
    throw invalid(where, `head_dim ${c.secondHeads.headDim} is odd, RoPE needs an even one`);
  if (c.headDim < 1)
    throw invalid(where, `head_dim: hidden_size ${c.hiddenSize} is below num_attention_heads ${c.numHeads}`);
  if (c.positions === 'rope' && c.latent === null && c.headDim % 2 !== 0)
    throw invalid(where, `head_dim ${c.headDim} is odd, RoPE needs an even one`);
  if (c.moe !== null && c.moe.topK > c.moe.numExperts) {
    throw invalid(where, `num_experts_per_tok ${c.moe.topK} exceeds the ${c.moe.numExperts} experts`);
  }
}
