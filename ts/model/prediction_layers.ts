// Layers that predict further tokens (multi-token prediction, MTP): how many a model has, and what its files call them.
import type { NativeModelConfig } from '../native/bridge';
import { invalid, type Raw } from './hf_decoder';
import type { Family } from './hf_schema';
import type { MappingBuilder, TensorMapping } from './tensor_mapping';

/** Where the files of some families have the parts of such a layer beside those of any layer. */
interface PartNames {
  /** Of layer `layer`, which is number `k` of these, its tensors as one of the decoder. */
  readonly block: (layer: number, k: number) => string;
  /** Of the parts below: where they are; default: in the block. */
  readonly root?: string;
  readonly tokenNorm: string;
  readonly hiddenNorm: string;
  readonly projection: string;
  readonly norm: string;
  readonly hiddenFirst: boolean;
  /** Copies of the embeddings and of the head. */
  readonly copies: readonly (readonly [hf: string, param: string])[];
}

const MIMO: PartNames = {
  block: (_, k) => `model.mtp_layers.${k}`,
  tokenNorm: 'token_layernorm',
  hiddenNorm: 'hidden_layernorm',
  projection: 'input_proj',
  norm: 'final_layernorm',
  hiddenFirst: true,
  copies: [],
};

const BEHIND_THE_LAST: PartNames = {
  block: (layer) => `model.layers.${layer}`,
  tokenNorm: 'enorm',
  hiddenNorm: 'hnorm',
  projection: 'eh_proj',
  norm: 'shared_head.norm',
  hiddenFirst: false,
  copies: [
    ['embed_tokens', 'embed.weight'],
    ['shared_head.head', 'head.weight'],
  ],
};

const QWEN: PartNames = {
  block: (_, k) => `mtp.layers.${k}`,
  root: 'mtp',
  tokenNorm: 'pre_fc_norm_embedding',
  hiddenNorm: 'pre_fc_norm_hidden',
  projection: 'fc',
  norm: 'norm',
  hiddenFirst: false,
  copies: [],
};

const NAMES: Readonly<Partial<Record<Family, PartNames>>> = {
  mimo: MIMO,
  glm4_moe: BEHIND_THE_LAST,
  deepseek_v3: BEHIND_THE_LAST,
  kimi_k2: BEHIND_THE_LAST,
  glm4_moe_lite: BEHIND_THE_LAST,
  qwen3_next: QWEN,
  qwen3_5_text: QWEN,
  qwen3_5_moe_text: QWEN,
  qwen3_5: QWEN,
  qwen3_5_moe: QWEN,
};

const namesOf = ({ family }: NativeModelConfig): PartNames | undefined => NAMES[family as Family];

/** Families whose files may have such layers that are neither trained nor draft here, nor in transformers: they are kept as they are. */
const KEPT: Readonly<Partial<Record<Family, (hf: string, config: NativeModelConfig) => boolean>>> = {
  ernie4_5_moe: (hf) => /^(model\.)?mtp/.test(hf),
  exaone_moe: (hf) => hf.startsWith('mtp.'),
  glm4v_moe: isBehindTheLast,
  hy_v3: isBehindTheLast,
  mellum: (hf) => hf.startsWith('mtp.'),
  nemotron_h: (hf) => hf.startsWith('mtp.'),
};

function isBehindTheLast(hf: string, { numLayers }: NativeModelConfig): boolean {
  const layer = /^model\.(?:language_model\.)?layers\.(\d+)\./.exec(hf)?.[1];
  return layer !== undefined && Number(layer) >= numLayers;
}

/** config.json of Qwen3-Next does not say that it has one. */
function layersOf(family: string, raw: Raw): number {
  const text = raw['text_config'] as Raw | undefined;
  const said = [
    raw['num_nextn_predict_layers'],
    raw['mtp_num_hidden_layers'],
    text?.['mtp_num_hidden_layers'],
  ];
  const count = said.find((value) => value !== undefined && value !== null);
  if (count === undefined) return family === 'qwen3_next' ? 1 : 0;
  return typeof count === 'number' && Number.isInteger(count) && count > 0 ? count : 0;
}

/** What the layers that predict further tokens are to an engine that has them: trained with the model, or held as they are, to draft with. */
export type PredictionUse = 'trained' | 'held';

/** The model with its prediction layers as a part of it. */
export function withPredictions(
  config: NativeModelConfig,
  raw: Raw,
  where: string,
  use: PredictionUse,
): NativeModelConfig {
  const names = namesOf(config);
  const layers = names === undefined ? 0 : layersOf(config.family, raw);
  if (names === undefined || layers === 0)
    throw invalid(
      where,
      'expected a model with layers that predict further tokens (num_nextn_predict_layers, mtp_num_hidden_layers), to train them (mtp.enable_train) or to draft with them (speculative_config.method mtp)',
    );
  if (names.root !== undefined && layers > 1)
    throw invalid(where, `mtp_num_hidden_layers ${layers} is not supported; supported: 1`);
  return { ...config, prediction: { layers, hiddenFirst: names.hiddenFirst, trained: use === 'trained' } };
}

/** Where the files have layer `layer` of the model, number `k` of those that predict further tokens. */
export const predictionBlock = (config: NativeModelConfig, layer: number, k: number): string =>
  (namesOf(config) as PartNames).block(layer, k);

/** Of that layer, what no other layer has. */
export function predictionParts(c: NativeModelConfig, layer: number, k: number, map: MappingBuilder): void {
  const { block, root, tokenNorm, hiddenNorm, projection, norm } = namesOf(c) as PartNames;
  const hf = root ?? block(layer, k);
  const own = `layers.${layer}.predict`;
  map.tensor(`${hf}.${tokenNorm}.weight`, `${own}.token_norm.weight`, c.hiddenSize);
  map.tensor(`${hf}.${hiddenNorm}.weight`, `${own}.hidden_norm.weight`, c.hiddenSize);
  map.tensor(`${hf}.${projection}.weight`, `${own}.in.weight`, c.hiddenSize, 2 * c.hiddenSize);
  map.tensor(`${hf}.${norm}.weight`, `${own}.norm.weight`, c.hiddenSize);
}

/** The copies of embeddings and head that the files of such layers may have, by the parameter that they are equal to. */
export function predictionCopies(c: NativeModelConfig): { hf: string; param: string }[] {
  const { copies, block } = namesOf(c) as PartNames;
  return Array.from({ length: c.prediction?.layers ?? 0 }, (_, k) =>
    copies.map(([name, param]) => ({
      hf: `${block(c.numLayers + k, k)}.${name}.weight`,
      param: param === 'head.weight' && c.tiedEmbeddings ? 'embed.weight' : param,
    })),
  ).flat();
}

/**
 * Of such a layer: behind the last one of the decoder, which transformers leaves out as well, or under a name of its own. Whether it is
 * trained or not.
 */
export function isPredictionLayer(config: NativeModelConfig, hf: string): boolean {
  const names = namesOf(config);
  if (names === MIMO) return hf.startsWith('model.mtp_layers.');
  if (names === QWEN) return hf.startsWith('mtp.');
  if (names === BEHIND_THE_LAST) return isBehindTheLast(hf, config);
  return KEPT[config.family as Family]?.(hf, config) ?? false;
}

/** The decoder alone: what engines that generate take, and give. */
export const decoderMapping = (
  config: NativeModelConfig,
  mapping: readonly TensorMapping[],
): TensorMapping[] => mapping.filter(({ hf }) => !isPredictionLayer(config, hf));
