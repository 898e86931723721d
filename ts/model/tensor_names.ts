import type { NativeModelConfig } from '../native/bridge';
import { attentionMapping, hasGlm4Names, hasLfm2Names, mlpMapping } from './block_names';
import { deltaMapping } from './delta_names';
import { exaoneMapping, exaoneModule } from './exaone_names';
import {
  type ExpertFiles,
  expertFiles,
  gptOssExpertsMapping,
  graniteMlpMapping,
  moeMapping,
  type StoredShapes,
} from './expert_names';
import { gemma4Mapping } from './gemma4_names';
import type { Family } from './hf_schema';
import { lfm2Mapping } from './lfm2_names';
import { mambaMapping } from './mamba_names';
import { nemotronMapping } from './nemotron_names';
import { predictionBlock, predictionParts } from './prediction_layers';
import { MappingBuilder, type TensorMapping } from './tensor_mapping';
import { visionMapping } from './vision_names';

/** The parts of one tensor of a checkpoint, in the order in which they lie there: one, where it is no part. */
export type FileTensor = readonly [TensorMapping, ...TensorMapping[]];

/** What `mapping` says, by tensor, in its order. */
export function fileTensors(mapping: readonly TensorMapping[]): FileTensor[] {
  const byName = new Map<string, [TensorMapping, ...TensorMapping[]]>();
  for (const entry of mapping) {
    const parts = byName.get(entry.hf);
    if (parts === undefined) byName.set(entry.hf, [entry]);
    else parts.push(entry);
  }
  return [...byName.values()];
}

/**
 * Every tensor of a checkpoint of this model, under its hub name, in the order of the parameters. Where files may have the same in
 * several ways, as those in `stored` have it.
 */
export function tensorMapping(config: NativeModelConfig, stored: StoredShapes = new Map()): TensorMapping[] {
  const map = new MappingBuilder();
  if (config.family === 'gpt2') gpt2Mapping(config, map);
  else if (config.family === 'nemotron_h') nemotronMapping(config, map);
  else if (hasLfm2Names(config)) lfm2Mapping(config, map);
  else if (config.family === 'exaone') exaoneMapping(config, map);
  else if (config.family === 'gemma4_text') gemma4Mapping(config, map);
  else llamaLikeMapping(config, map, stored);
  headMapping(config, map);
  furtherMapping(config, map, stored);
  if (config.vision !== null) visionMapping(config.vision, config.hiddenSize, hasFirstNames(config), map);
  return map.entries;
}

/** Where the decoder's tensors are, by their names: beside those of a tower. */
const decoderRoot = (c: NativeModelConfig): string =>
  c.vision === null || hasFirstNames(c) ? 'model' : 'model.language_model';

/** Published with the names of classes before transformers 4.52, which are in its files still. */
export const hasFirstNames = (c: NativeModelConfig): boolean =>
  c.family === 'qwen2_vl' || c.family === 'qwen2_5_vl';

/** What the classes of transformers call a tensor of the files. */
export function moduleName(c: NativeModelConfig, hf: string): string {
  if (c.family === 'exaone') return exaoneModule(hf);
  if (c.family === 'nemotron_h') return hf.replace(/^backbone\./, 'model.');
  if (c.family === 'hy_v3') return hf.replace('.shared_mlp.', '.shared_experts.');
  return hasFirstNames(c)
    ? hf.replace(/^model\./, 'model.language_model.').replace(/^visual\./, 'model.visual.')
    : hf;
}

/** Of a model that {@link hasFirstNames}: the name in its files, from that or one of the classes, with a head or without one. */
export const publishedName = (hf: string): string =>
  hf.replace(/^model\.visual\./, 'visual.').replace(/^(model\.)?language_model\./, 'model.');

function llamaLikeMapping(c: NativeModelConfig, map: MappingBuilder, stored: StoredShapes): void {
  const root = decoderRoot(c);
  const experts = expertFiles(c, `${root}.layers.${c.moeLayers.indexOf(true)}.mlp`, stored);
  map.tensor(`${root}.embed_tokens.weight`, 'embed.weight', c.vocabSize, c.hiddenSize);
  for (let i = 0; i < c.numLayers; i++) layerMapping(c, map, i, `${root}.layers.${i}`, experts, stored);
  map.tensor(`${root}.norm.weight`, 'norm.weight', c.hiddenSize);
}

/** Layer `i`, of the decoder or of those that predict further tokens, whose tensors are under `hf`. */
function layerMapping(
  c: NativeModelConfig,
  map: MappingBuilder,
  i: number,
  hf: string,
  experts: ExpertFiles,
  stored: StoredShapes,
): void {
  const own = `layers.${i}`;
  // Linear attention has input norms alone.
  const linear = c.linearLayers[i] === true;
  const [before, behind] = [c.inputNorms || linear, c.postNorms && !linear];
  const norm = (leaf: string, name: string): void =>
    map.tensor(`${hf}.${storedNorm(c, hf, leaf, stored)}.weight`, `${own}.${name}.weight`, c.hiddenSize);
  if (before) norm(c.family === 'apertus' ? 'attention_layernorm' : 'input_layernorm', 'attn_norm');
  if (c.linear?.rule === 'mamba2' && linear) mambaMapping(c, c.linear, map, `${hf}.mamba`, `${own}.mamba`);
  else if (c.linear !== null && linear)
    deltaMapping(c, c.linear, map, `${hf}.linear_attn`, `${own}.delta`, stored);
  else attentionMapping(c, map, `${hf}.self_attn`, `${own}.attn`);
  const [attnPostNorm, mlpNorm, mlpPostNorm] = mlpNorms(c, behind);
  if (behind) norm(attnPostNorm, 'attn_post_norm');
  if (before) norm(mlpNorm, 'mlp_norm');
  if (c.moe?.biases) gptOssExpertsMapping(c, c.moe, map, `${hf}.mlp`, `${own}.moe`);
  else if (c.moe !== null && (c.moeLayers[i] ?? true)) moeMapping(c, c.moe, map, hf, own, experts);
  else if (c.family === 'granitemoehybrid') graniteMlpMapping(c, map, hf, `${own}.mlp`, c.intermediateSize);
  else mlpMapping(c, map, `${hf}.mlp`, `${own}.mlp`);
  if (behind) norm(mlpPostNorm, 'mlp_post_norm');
}

/** What transformers 5 calls norms of OLMo Hybrid where it saves one, in layers of both kinds. */
const SAVED_NORMS: Readonly<Record<string, string>> = {
  input_layernorm: 'attention_layer_norm',
  post_attention_layernorm: 'feedforward_layer_norm',
};

/** The name of a norm in files that have it as published, or as transformers writes it. */
function storedNorm(c: NativeModelConfig, hf: string, leaf: string, stored: StoredShapes): string {
  const saved = c.family === 'olmo_hybrid' ? SAVED_NORMS[leaf] : undefined;
  return saved !== undefined && stored.has(`${hf}.${saved}.weight`) ? saved : leaf;
}

/** Layers that predict further tokens, where they are a part of the model. */
function furtherMapping(c: NativeModelConfig, map: MappingBuilder, stored: StoredShapes): void {
  for (let k = 0; k < (c.prediction?.layers ?? 0); k++) {
    const layer = c.numLayers + k;
    const hf = predictionBlock(c, layer, k);
    layerMapping(c, map, layer, hf, expertFiles(c, `${hf}.mlp`, stored), stored);
    predictionParts(c, layer, k, map);
  }
}

/** The norm behind attention, that before the MLP, and that behind it. */
function mlpNorms(c: NativeModelConfig, behind: boolean): readonly [string, string, string] {
  if (hasGlm4Names(c)) return ['post_self_attn_layernorm', 'post_attention_layernorm', 'post_mlp_layernorm'];
  if (c.family === 'apertus') return ['', 'feedforward_layernorm', ''];
  if (c.family === 'afmoe') return ['post_attention_layernorm', 'pre_mlp_layernorm', 'post_mlp_layernorm'];
  // Gemma 2 calls the norm behind attention what the others call the norm before the MLP.
  return [
    'post_attention_layernorm',
    behind ? 'pre_feedforward_layernorm' : 'post_attention_layernorm',
    'post_feedforward_layernorm',
  ];
}

function gpt2Mapping(c: NativeModelConfig, map: MappingBuilder): void {
  const H = c.hiddenSize;
  const layerNorm = (hf: string, own: string): void => {
    map.tensor(`${hf}.weight`, `${own}.weight`, H);
    map.tensor(`${hf}.bias`, `${own}.bias`, H);
  };
  const conv1d = (hf: string, own: string, rows: number, cols: number): void => {
    map.tensor(`${hf}.weight`, `${own}.weight`, rows, cols, true);
    map.tensor(`${hf}.bias`, `${own}.bias`, rows);
  };
  map.tensor('transformer.wte.weight', 'embed.weight', c.vocabSize, H);
  map.tensor('transformer.wpe.weight', 'pos_embed.weight', c.maxPositions, H);
  for (let i = 0; i < c.numLayers; i++) {
    const hf = `transformer.h.${i}`;
    const own = `layers.${i}`;
    layerNorm(`${hf}.ln_1`, `${own}.attn_norm`);
    conv1d(`${hf}.attn.c_attn`, `${own}.attn.qkv`, 3 * H, H);
    conv1d(`${hf}.attn.c_proj`, `${own}.attn.out`, H, H);
    layerNorm(`${hf}.ln_2`, `${own}.mlp_norm`);
    conv1d(`${hf}.mlp.c_fc`, `${own}.mlp.in`, c.intermediateSize, H);
    conv1d(`${hf}.mlp.c_proj`, `${own}.mlp.out`, H, c.intermediateSize);
  }
  layerNorm('transformer.ln_f', 'norm');
}

function headMapping(c: NativeModelConfig, map: MappingBuilder): void {
  if (c.head === 'value') {
    const hf = valueHeadName(c.family);
    map.tensor(`${hf}.weight`, 'head.weight', 1, c.hiddenSize);
    if (c.valueBias) map.tensor(`${hf}.bias`, 'head.bias', 1);
  } else if (!c.tiedEmbeddings) {
    map.tensor('lm_head.weight', 'head.weight', c.vocabSize, c.hiddenSize);
  }
}

/** Name of the token-classification head in a checkpoint of the family. */
export const valueHeadName = (family: string): string => (family === 'gpt2' ? 'classifier' : 'score');

const ARCHITECTURES: Readonly<Record<Family, string>> = {
  llama: 'Llama',
  arcee: 'Arcee',
  mistral: 'Mistral',
  ministral3: 'Ministral3',
  qwen2: 'Qwen2',
  qwen3: 'Qwen3',
  mimo: 'MiMo',
  seed_oss: 'SeedOss',
  gemma: 'Gemma',
  gemma2: 'Gemma2',
  gemma3_text: 'Gemma3',
  gemma4_text: 'Gemma4',
  smollm3: 'SmolLM3',
  granite: 'Granite',
  granitemoe: 'GraniteMoe',
  granitemoeshared: 'GraniteMoeShared',
  granitemoehybrid: 'GraniteMoeHybrid',
  glm: 'Glm',
  glm4: 'Glm4',
  exaone: 'Exaone',
  apertus: 'Apertus',
  exaone4: 'Exaone4',
  cwm: 'Cwm',
  ernie4_5: 'Ernie4_5',
  olmo2: 'Olmo2',
  olmo3: 'Olmo3',
  olmo_hybrid: 'OlmoHybrid',
  youtu: 'Youtu',
  mellum: 'Mellum',
  lfm2: 'Lfm2',
  lfm2_moe: 'Lfm2Moe',
  olmoe: 'Olmoe',
  phi3: 'Phi3',
  mixtral: 'Mixtral',
  qwen2_moe: 'Qwen2Moe',
  qwen3_moe: 'Qwen3Moe',
  qwen3_next: 'Qwen3Next',
  qwen3_5_text: 'Qwen3_5',
  qwen3_5_moe_text: 'Qwen3_5Moe',
  glm4_moe: 'Glm4Moe',
  dots1: 'Dots1',
  solar_open: 'SolarOpen',
  ernie4_5_moe: 'Ernie4_5_Moe',
  minimax_m2: 'MiniMaxM2',
  hy_v3: 'HYV3',
  exaone_moe: 'ExaoneMoe',
  afmoe: 'Afmoe',
  deepseek_v2: 'DeepseekV2',
  deepseek_v3: 'DeepseekV3',
  kimi_k2: 'DeepseekV3',
  glm4_moe_lite: 'Glm4MoeLite',
  gpt_oss: 'GptOss',
  nemotron_h: 'NemotronH',
  qwen2_vl: 'Qwen2VL',
  qwen2_5_vl: 'Qwen2_5_VL',
  qwen3_vl: 'Qwen3VL',
  qwen3_vl_moe: 'Qwen3VLMoe',
  glm4v: 'Glm4v',
  glm4v_moe: 'Glm4vMoe',
  qwen3_5: 'Qwen3_5',
  qwen3_5_moe: 'Qwen3_5Moe',
  gpt2: 'GPT2',
};

/** The Hugging Face class that loads such a checkpoint. */
export function architectureName(config: NativeModelConfig): string {
  const family = ARCHITECTURES[config.family as Family];
  if (config.head === 'value') return `${family}ForTokenClassification`;
  if (config.vision !== null) return `${family}ForConditionalGeneration`;
  return config.family === 'gpt2' ? 'GPT2LMHeadModel' : `${family}ForCausalLM`;
}

/** Tensors that some checkpoints carry and that hold no weights: rotary tables and causal masks. */
export const isBuffer = (hf: string): boolean =>
  /(^|\.)rotary_emb\.inv_freq$|(^|\.)attn\.(masked_)?bias$/.test(hf);

/** The same name without the wrapper's prefix: hub GPT-2 files, and bare `...Model` checkpoints, leave it out, and Nemotron-H has two. */
export const withoutPrefix = (hf: string): string => hf.replace(/^(model|transformer|backbone)\./, '');
